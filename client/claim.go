package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
)

var (
	// ErrClaimLost is the cause (context.Cause) of a handler's cancelled context when its claim is no longer
	// the worker's: it lasted for the longest total, ran out, or was settled elsewhere. Stop working on it.
	ErrClaimLost = errors.New("the claim is lost")

	// ErrStopped is the cause of a handler's cancelled context when the worker stops and DrainTimeout is over.
	ErrStopped = errors.New("the worker stops")

	errRelease = errors.New("released")
)

// A Claim is a message that a handler works on. The handler owns it until it returns.
type Claim struct {
	ID          string // the claim id, REVISION.NUMBER
	Message     *pb.Message
	Attempt     int    // which attempt this is, from 1
	MaxAttempts int    // the last one
	Mailbox     string // where it came from: the agent's name, role:NAME or channel:NAME
	Resumed     bool   // it was held before, by an earlier run of the same consumer
	TraceParent string // of the claim's span, else of the message; empty if there is no trace. The handler's context carries it

	client *Client
}

// Extend makes the claim last for d from now on, 1 s to 12 h, beyond what the broker extends it by itself while the worker
// is connected (MaxTotal). It fails with FAILED_PRECONDITION (CLAIM_LOST) if it is too late.
func (c *Claim) Extend(ctx context.Context, d time.Duration) error {
	_, err := c.client.Messages().ExtendClaims(ctx, &pb.ExtendClaimsRequest{
		Extensions: []*pb.Extension{{ClaimId: c.ID, ClaimFor: durationpb.New(d)}},
	})
	return err
}

// Reply answers the message and finishes it in one transaction, so that there is never one without the other; the handler
// returns nil afterwards. The receiver, the thread and the message answered are filled in. A claim that is over is
// FAILED_PRECONDITION (CLAIM_LOST), and nothing is sent. The handler's context ends with the claim, perhaps before the
// broker's answer is here, so this call goes on without it, for at most half a minute.
func (c *Claim) Reply(ctx context.Context, m *pb.Message) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), replyTimeout)
	defer cancel()
	_, err := c.client.Messages().Reply(ctx, &pb.ReplyRequest{Id: c.ID, Ack: true, Message: m})
	return err
}

// replyTimeout bounds the one call that does not end with its caller's context.
const replyTimeout = 30 * time.Second

// verdict is an error that says what becomes of a message.
type verdict struct {
	fatal bool
	delay time.Duration // before the next attempt, if given
	given bool
	err   error
}

func (v *verdict) Error() string { return v.err.Error() }
func (v *verdict) Unwrap() error { return v.err }

// Fatal returns an error for a handler to return when trying again cannot help: the message becomes a dead letter at once.
func Fatal(err error) error { return &verdict{fatal: true, err: orUnnamed(err)} }

// RetryAfter returns an error for a handler to return when the next attempt should wait for d, at most 12 h,
// instead of the broker's growing delay.
func RetryAfter(err error, d time.Duration) error {
	return &verdict{delay: d, given: true, err: orUnnamed(err)}
}

// Release returns an error for a handler to return when it gives the message back unharmed: no attempt is counted,
// and it keeps its place. err says why, for the handler's own callers; it may be nil.
func Release(err error) error {
	if err == nil {
		return errRelease
	}
	return fmt.Errorf("%w: %w", errRelease, err)
}

func orUnnamed(err error) error {
	if err == nil {
		return errors.New("failed without saying why")
	}
	return err
}

// settlement is what is to become of one claim.
type settlement struct {
	job  *job
	kind settlementKind
	nack *pb.Nack // for nacks
}

type settlementKind int

const (
	ack settlementKind = iota
	nack
	release
)

// longest text of an error that the broker keeps, in bytes.
const maxErrorText = 4 << 10

// settle turns what a handler returned into a settlement.
func settle(j *job, err error) settlement {
	switch {
	case err == nil:
		return settlement{job: j, kind: ack}
	case errors.Is(err, errRelease):
		return settlement{job: j, kind: release}
	}
	n := &pb.Nack{ClaimId: j.claim.ID, Error: errorText(err)}
	var v *verdict
	if errors.As(err, &v) {
		n.Fatal = v.fatal
		if v.given {
			n.Delay = durationpb.New(max(v.delay, 0))
		}
	}
	return settlement{job: j, kind: nack, nack: n}
}

// errorText makes an error's text fit for the broker.
func errorText(err error) string {
	text := strings.ToValidUTF8(strings.ReplaceAll(err.Error(), "\x00", ""), "�")
	if len(text) > maxErrorText {
		text = strings.ToValidUTF8(text[:maxErrorText-len("…")], "") + "…"
	}
	return text
}

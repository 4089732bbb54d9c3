package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"brokerd/client"
	"brokerd/internal/prompt"

	pb "brokerd/gen/brokerd/v1"
)

// holderVariable names the worker that lock run and token run hold by, so that commands within speak of the same owner.
const holderVariable = "BROKERD_HOLDER"

// turnOptions are what asking for locks and for a token have in common.
type turnOptions struct {
	wait    time.Duration
	maxHold time.Duration
	reason  string
}

// AddFlags adds the options.
func (o *turnOptions) AddFlags(f *pflag.FlagSet) {
	durationVar(f, &o.wait, "wait", 0, "wait up to this long, 24h at most (default: do not wait)")
	durationVar(f, &o.maxHold, "for", 0, "how long to hold it unless extended, 1s to 7d (default: 30m)")
	f.StringVar(&o.reason, "reason", "", "why, for agents that wait")
}

// acquireOptions are the options of lock acquire and token acquire.
type acquireOptions struct {
	turnOptions
	holderOption
	keep      bool
	dryRun    bool
	requestID string
}

// AddFlags adds the options.
func (o *acquireOptions) AddFlags(cmd *cobra.Command) {
	o.turnOptions.AddFlags(cmd.Flags())
	o.holderOption.AddFlags(cmd.Flags())
	cmd.Flags().BoolVar(&o.keep, "keep", false, "stay in the queue after --wait; a notice reports the grant")
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "only report whether it would be granted now")
	addRequestID(cmd, &o.requestID)
	cmd.MarkFlagsMutuallyExclusive("dry-run", "wait")
	cmd.MarkFlagsMutuallyExclusive("dry-run", "keep")
}

// holderOption says which worker of the agent owns what is asked for.
type holderOption struct{ name string }

// AddFlags adds the option.
func (o *holderOption) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&o.name, "holder", "",
		"worker of the agent that is the owner; workers exclude each other ("+holderVariable+"); '': none")
}

// holder returns whom the option, or else the environment, names. What the environment says is of its agent, not of another.
func (o *holderOption) holder(c *cli, cmd *cobra.Command) (string, error) {
	if cmd.Flags().Changed("holder") {
		return o.name, nil
	}
	s, err := c.settings()
	if err != nil || s.otherAgent {
		return "", err
	}
	return c.env.get(holderVariable), nil
}

// acquired is the broker's answer to whoever asks for locks or a token.
type acquired interface {
	proto.Message
	GetOutcome() pb.AcquireOutcome
	GetFence() int64
	GetHeldUntil() *timestamppb.Timestamp
	GetAlreadyHeld() bool
	GetTicket() int64
	GetPosition() int32
	GetObstacles() []*pb.Obstacle
}

// waitForTurn asks, as long as the wait lasts: a broker that is away for a while keeps the places in its queues.
func waitForTurn[A acquired](ctx context.Context, c *cli, what string, wait time.Duration, ask func(wait time.Duration) (A, error)) (A, error) {
	defer c.progress(wait, what)()
	end, pause := time.Now().Add(wait), 50*time.Millisecond
	for left := wait; ; left = max(time.Until(end), 0) {
		answer, err := ask(left)
		if err == nil || status.Code(err) != codes.Unavailable || time.Until(end) <= 0 {
			return answer, err
		}
		again := time.NewTimer(min(pause+rand.N(pause), max(time.Until(end), 0)))
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return answer, err
		}
		pause = min(2*pause, time.Second)
	}
}

// showAcquired prints the status of a request for paths, or for a token, which has no paths. Unless it was granted,
// the error has the exit code.
func (c *cli) showAcquired(
	cmd *cobra.Command, answer acquired, paths []string, o *acquireOptions, text func(w io.Writer),
) error {
	if answer.GetOutcome() == pb.AcquireOutcome_ACQUIRE_OUTCOME_GRANTED {
		return c.show(cmd, answer, func(w io.Writer) {
			if o.dryRun {
				prompt.Say(w, "it would be granted now")
				return
			}
			text(w)
		})
	}
	if format, err := c.format(); err != nil {
		return err
	} else if format == formatJSON {
		if err := writeJSON(cmd.OutOrStdout(), answer); err != nil {
			return err
		}
	}
	err := c.notAcquired(answer, paths)
	if answer.GetTicket() == 0 {
		return err
	}
	next := "the agent stays in the queue until it releases the ticket; a notice reports the grant"
	if !o.keep {
		next = "the agent stays in the queue for 10s: run the command again to keep the place, or release the ticket"
	}
	return failf(exitNothing, "%v; %s", err, next)
}

// notAcquired is the error that says which holders are in the way: busy, or the wait has ended.
func (c *cli) notAcquired(answer acquired, paths []string) error {
	text := c.inTheWay(answer.GetObstacles(), paths)
	if answer.GetOutcome() != pb.AcquireOutcome_ACQUIRE_OUTCOME_QUEUED {
		return failf(exitConflict, "%s", text)
	}
	if answer.GetTicket() > 0 {
		text += fmt.Sprintf("; place %d in the queue, ticket %d", answer.GetPosition(), answer.GetTicket())
	}
	return failf(exitNothing, "the wait has ended: %s", text)
}

// notReleased is the error of a release that found nothing.
func notReleased(broker *client.Client, what string) error {
	return failf(exitLost, "the agent %s neither holds %s nor waits for it: it never did, or it has lost it; "+
		"stop the work that needs it", broker.Identity().Agent, what)
}

// inTheWay says who is in the way of a request for paths, or for a token, which has no paths.
func (c *cli) inTheWay(obstacles []*pb.Obstacle, paths []string) string {
	return c.voice().InTheWay(obstacles, paths, c.forModel())
}

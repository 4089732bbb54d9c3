package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
)

// A Grant is the broker's answer to a request for locks or for a token.
type Grant interface {
	proto.Message
	GetOutcome() pb.AcquireOutcome
	GetFence() int64
	GetHeldUntil() *timestamppb.Timestamp
	GetAlreadyHeld() bool
	GetTicket() int64
	GetPosition() int32
	GetObstacles() []*pb.Obstacle
}

// Acquire asks for locks or for a token. While the broker is away it asks again, as long as wait lasts: the broker keeps
// the places in its queues. ask makes the call, with what is left of the wait.
func Acquire[G Grant](ctx context.Context, wait time.Duration, ask func(wait time.Duration) (G, error)) (G, error) {
	end, pause := time.Now().Add(wait), firstDelay
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

// A BusyError says that a lock or a token was not granted within the wait, and who is in the way.
type BusyError struct {
	What  string // such as "the lock on src/a.go"
	Grant Grant
}

// Error names the holders.
func (e *BusyError) Error() string {
	var owners []string
	for _, o := range e.Grant.GetObstacles() {
		owners = append(owners, fmt.Sprintf("%s (%s)", o.GetAgent(), o.GetResource()))
	}
	return fmt.Sprintf("%s is held by %s", e.What, strings.Join(owners, ", "))
}

// A HoldLostError is why a Hold has ended before its release. It unwraps to the broker's refusal, if that was the sign.
type HoldLostError struct {
	What string // such as "the lock on src/a.go"
	Why  string
	Err  error
}

// Error says what was lost, and why.
func (e *HoldLostError) Error() string { return e.What + " was lost: " + e.Why }

// Unwrap returns the refusal, or nil.
func (e *HoldLostError) Unwrap() error { return e.Err }

// HoldOptions say how to keep a lock or a token.
type HoldOptions struct {
	// Margin is how long before its end a hold counts as lost, so that what needs it has ended by then. It is at most a
	// quarter of the time of the hold. 0 = 5 s.
	Margin time.Duration
	// OnError, if set, receives why a loss would be noticed late: the event log cannot be read. It must return quickly.
	OnError func(error)
}

// A Hold is a lock or a token that the client keeps until Release: it extends the hold at half of its time, and follows
// the event log, so that it knows a loss at once. A hold counts from the moment before each call that the broker has
// answered, so that it ends before the broker gives the lock to another agent, even if the broker cannot be reached.
// It is safe for concurrent use.
type Hold struct {
	client *Client // without a fence: what an outer lock protects must not keep the hold from its release
	terms  terms
	o      HoldOptions
	fence  int64
	lasts  time.Duration // from the grant or an extension on
	ctx    context.Context
	lose   context.CancelCauseFunc
	gone   chan struct{}  // closed when the agent itself has given the hold away
	minded sync.WaitGroup // the goroutines that extend and watch
}

// terms are what to hold, and how.
type terms struct {
	what    string        // in errors
	wait    time.Duration // for the grant
	lasts   time.Duration // 0 = as the broker says
	types   []string      // of events that may show the end
	acquire func(ctx context.Context, wait time.Duration) (Grant, error)
	extend  func(ctx context.Context, fence int64) error
	release func(ctx context.Context) error
	held    func(ctx context.Context, fence int64) (bool, error)
}

// defaultHold is for how long the broker grants a lock without max_hold in the request.
const defaultHold = 30 * time.Minute

// HoldLocks locks paths and keeps them locked: see Hold. Without a holder in the request, the hold gets a new one, so
// that two holds of one agent exclude each other; Release also releases what else that holder has locked. A wait
// continues while the broker restarts. Wait and max_hold are as in AcquireLocksRequest; without max_hold 30 min.
//
// Errors are those of AcquireLocks, and a *BusyError if the lock was not granted within the wait. ctx bounds only
// HoldLocks, and the hold has its values. The hold needs Release.
func (c *Client) HoldLocks(ctx context.Context, r *pb.AcquireLocksRequest, o HoldOptions) (*Hold, error) {
	r = proto.CloneOf(r)
	if r.MaxHold == nil {
		r.MaxHold = durationpb.New(defaultHold)
	}
	r.Holder = ownHolder(r.GetHolder())
	wait, agent := r.GetWait().AsDuration(), c.identity.Agent
	free := unfenced(c)
	return newHold(ctx, free, o, terms{
		what: "the lock on " + strings.Join(r.GetPaths(), ", "), wait: wait, lasts: r.GetMaxHold().AsDuration(),
		types: []string{"lock.released", "lock.expired", "lock.revoked"},
		acquire: func(ctx context.Context, wait time.Duration) (Grant, error) {
			r.Wait = durationpb.New(wait)
			return c.Locks().AcquireLocks(ctx, r)
		},
		extend: func(ctx context.Context, fence int64) error {
			_, err := free.Locks().ExtendLocks(ctx, &pb.ExtendLocksRequest{Fences: []int64{fence}})
			return err
		},
		release: func(ctx context.Context) error {
			_, err := free.Locks().ReleaseLocks(ctx, &pb.ReleaseLocksRequest{Holder: r.GetHolder(), All: true})
			return err
		},
		held: func(ctx context.Context, fence int64) (bool, error) {
			request := &pb.ListLocksRequest{Agent: agent, PageSize: 1000}
			for {
				page, err := free.Locks().ListLocks(ctx, request)
				if slices.ContainsFunc(page.GetLocks(), func(l *pb.Lock) bool { return l.GetFence() == fence }) {
					return true, nil
				}
				if request.PageToken = page.GetNextPageToken(); err != nil || request.PageToken == "" {
					return false, err
				}
			}
		},
	})
}

// HoldToken acquires a token and keeps it: see Hold and HoldLocks. If the agent passes the token on or releases it
// elsewhere, the hold is not lost, and is extended no longer. Without max_hold the broker says how long it lasts, by its
// clock.
func (c *Client) HoldToken(ctx context.Context, r *pb.AcquireTokenRequest, o HoldOptions) (*Hold, error) {
	r = proto.CloneOf(r)
	r.Holder = ownHolder(r.GetHolder())
	kind, scope, agent := r.GetType(), r.GetScope(), c.identity.Agent
	free := unfenced(c)
	return newHold(ctx, free, o, terms{
		what: fmt.Sprintf("the token %s of %s", kind, scope),
		wait: r.GetWait().AsDuration(), lasts: r.GetMaxHold().AsDuration(),
		types: []string{"token.released", "token.passed", "token.expired", "token.revoked"},
		acquire: func(ctx context.Context, wait time.Duration) (Grant, error) {
			r.Wait = durationpb.New(wait)
			return c.Tokens().AcquireToken(ctx, r)
		},
		extend: func(ctx context.Context, _ int64) error {
			_, err := free.Tokens().ExtendToken(ctx, &pb.ExtendTokenRequest{Type: kind, Scope: scope, Holder: r.GetHolder()})
			return err
		},
		release: func(ctx context.Context) error {
			_, err := free.Tokens().ReleaseToken(ctx, &pb.ReleaseTokenRequest{Type: kind, Scope: scope, Holder: r.GetHolder()})
			return err
		},
		held: func(ctx context.Context, fence int64) (bool, error) {
			now, err := free.Tokens().GetToken(ctx, &pb.GetTokenRequest{Type: kind, Scope: scope})
			return now.GetToken().GetFence() == fence && now.GetToken().GetAgent() == agent, err
		},
	})
}

// ownHolder returns the holder of a request, or one that no other hold has.
func ownHolder(given string) string {
	if given != "" {
		return given
	}
	return "hold-" + uuid.NewString()
}

// unfenced returns a client whose calls depend on no lock.
func unfenced(c *Client) *Client {
	if c.identity.Fence == 0 {
		return c
	}
	return c.Fenced(0)
}

// newHold waits for a grant and begins to keep it.
func newHold(ctx context.Context, c *Client, o HoldOptions, t terms) (*Hold, error) {
	h := &Hold{client: c, terms: t, o: o, lasts: t.lasts, gone: make(chan struct{})}
	if h.o.Margin == 0 {
		h.o.Margin = 5 * time.Second
	}
	h.ctx, h.lose = context.WithCancelCause(context.WithoutCancel(ctx))
	granted, err := h.take(ctx)
	if err != nil {
		h.lose(nil)
		if t.wait > 0 || h.fence > 0 { // no caller returns for the place in the queue
			_ = h.giveBack(context.WithoutCancel(ctx)) // without an answer, it ends by itself
		}
		return nil, err
	}
	h.minded.Go(h.watch)
	h.minded.Go(func() { h.keep(granted) })
	return h, nil
}

// take waits for the grant. It returns from when the time of the grant counts.
func (h *Hold) take(ctx context.Context) (granted time.Time, err error) {
	g, err := Acquire(ctx, h.terms.wait, func(left time.Duration) (Grant, error) {
		granted = time.Now()
		return h.terms.acquire(ctx, left)
	})
	switch {
	case err != nil:
		return granted, err
	case g.GetOutcome() != pb.AcquireOutcome_ACQUIRE_OUTCOME_GRANTED:
		return granted, &BusyError{h.terms.what, g}
	}
	return h.count(ctx, g, granted)
}

// count notes the grant. Its time counts from the call that got it, unless that call has waited: then from an extension.
func (h *Hold) count(ctx context.Context, g Grant, began time.Time) (time.Time, error) {
	if h.fence = g.GetFence(); h.lasts == 0 {
		h.lasts = max(time.Until(g.GetHeldUntil().AsTime()), time.Second)
	}
	if time.Since(began) < h.lasts/4 {
		return began, nil
	}
	began = time.Now()
	return began, h.terms.extend(ctx, h.fence)
}

// Fence returns the number of the grant. It only grows: give it to the systems that the lock protects.
func (h *Hold) Fence() int64 { return h.fence }

// Client returns a client whose calls the broker refuses once the hold has ended.
func (h *Hold) Client() *Client { return h.client.Fenced(h.fence) }

// Unfenced returns the client of the hold, whose calls depend on no lock.
func (h *Hold) Unfenced() *Client { return h.client }

// Margin returns how long before its end the hold counts as lost.
func (h *Hold) Margin() time.Duration { return min(h.o.Margin, h.lasts/4) }

// Context returns a context for what needs the hold. It ends when the hold is lost, and its cause is then a
// *HoldLostError; and at Release.
func (h *Hold) Context() context.Context { return h.ctx }

// Lost returns a *HoldLostError if the hold was lost, and nil otherwise.
func (h *Hold) Lost() error {
	if lost := (*HoldLostError)(nil); errors.As(context.Cause(h.ctx), &lost) {
		return lost
	}
	return nil
}

// Release ends the hold and releases the lock or the token. An error says that the broker has not confirmed this: it then
// ends by itself after its max_hold. Release does nothing after a loss and after another Release.
func (h *Hold) Release(ctx context.Context) error {
	ended := h.ctx.Err() != nil
	h.lose(nil)
	h.minded.Wait()
	if ended {
		return nil
	}
	return h.giveBack(ctx)
}

// releasing bounds the calls that release what was held.
const releasing = 5 * time.Second

// giveBack releases what is held, also if the broker is just restarting.
func (h *Hold) giveBack(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, releasing)
	defer cancel()
	again := retry{link: h.client.link}
	for {
		err := h.terms.release(ctx)
		if status.Code(err) != codes.Unavailable || !again.wait(ctx, err) {
			return err
		}
	}
}

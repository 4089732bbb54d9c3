package supervise

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/turn"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// releaseAfter bounds the giving back at the end.
const releaseAfter = 5 * time.Second

// RunOptions are the options of lock run and token run.
type RunOptions struct {
	turn.Options
	timeout time.Duration
}

// AddFlags adds the options.
func (o *RunOptions) AddFlags(cmd *cobra.Command) {
	o.Options.AddFlags(cmd.Flags())
	command.DurationVar(cmd.Flags(), &o.timeout, "timeout", 0, "stop a command that runs longer (default: none)")
}

// commandAfterDash wants arguments, then -- and a command.
func commandAfterDash(least, most int, names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		dash := cmd.ArgsLenAtDash()
		switch {
		case dash < 0 || dash == len(args):
			return problem.Usagef("the command is missing: %s", cmd.UseLine())
		case dash < least:
			return problem.Usagef("%s is missing", names[dash])
		case most > 0 && dash > most:
			return problem.Usagef("argument %q is one too many; the command comes after --", args[most])
		}
		return nil
	}
}

// newHolder names an owner that nobody else is.
func newHolder() string { return "run-" + uuid.NewString() }

// Hold is a lock or token that is kept while a command runs.
type Hold struct {
	what    string        // such as "the lock on src/a.go"
	fence   int64         // of the grant
	Granted time.Time     // at this time, or a little later
	Lasts   time.Duration // unless it is extended
	Env     [][2]string   // for the command
	types   []string      // of events that may tell of its end
	broker  *client.Client

	Extend  func(context.Context) error
	release func(context.Context) error
	held    func(context.Context) (bool, error)
}

// count lets the time run from the call that granted it, unless that call has waited: then from an extension.
func (h *Hold) count(ctx context.Context, began time.Time) error {
	h.Granted = began
	if time.Since(began) < h.Lasts/4 {
		return nil
	}
	h.Granted = time.Now()
	return h.Extend(ctx)
}

// ErrGrantLost is why a command is stopped.
type ErrGrantLost struct{ why string }

// Error says how it was lost.
func (e *ErrGrantLost) Error() string { return e.why }

// runHolding takes a grant, runs the command for as long as it lasts, and gives it back.
func (o *RunOptions) runHolding(c *command.Caller, cmd *cobra.Command, command []string, take func() (*Hold, error)) error {
	path, err := c.Env.LookPath(command[0])
	if err != nil {
		return startFailure(cmd.Name(), err)
	}
	h, err := take()
	var f *problem.Failure
	switch {
	case errors.As(err, &f), status.Code(err) == codes.Aborted, strings.HasPrefix(client.Reason(err), "TICKET_"), err != nil && cmd.Context().Err() != nil:
		return err
	case err != nil:
		return ownFailure(c, cmd.Name(), err)
	}
	return h.run(c, cmd, path, command, o.timeout)
}

// run runs the command for as long as the grant lasts, and gives it back.
func (h *Hold) run(c *command.Caller, cmd *cobra.Command, path string, command []string, timeout time.Duration) error {
	ctx, lose := context.WithCancelCause(context.WithoutCancel(cmd.Context()))
	gone := make(chan struct{})
	var minders sync.WaitGroup
	minders.Go(func() { h.Watch(ctx, c, cmd, lose, gone) })
	minders.Go(func() { h.Keep(ctx, lose, gone) })
	p := &process{
		path: path, args: command, env: forCommand(c.Env, h.broker, append(surroundings(c, ctx, h.broker), h.Env...)), dir: c.Env.ChildDir(),
		stdin: cmd.InOrStdin(), stdout: cmd.OutOrStdout(), stderr: cmd.ErrOrStderr(),
		timeout: timeout, grace: h.margin(), interrupted: cmd.Context(), hurry: c.Hurry,
	}
	code, err := p.run(ctx)
	cause := context.Cause(ctx)
	lose(nil)
	minders.Wait()
	if lost := (*ErrGrantLost)(nil); errors.As(cause, &lost) {
		return c.Lost(h.what+" was lost, and the command was stopped", lost.why)
	}
	h.giveBack(c, cmd)
	switch {
	case p.notStarted:
		return startFailure(cmd.Name(), err)
	case code != commandDone:
		return &problem.Failure{Code: code}
	}
	return nil
}

// giveBack releases the grant. If the broker is away it ends by itself.
func (h *Hold) giveBack(c *command.Caller, cmd *cobra.Command) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), releaseAfter)
	defer cancel()
	if err := h.release(ctx); err != nil && h.fence > 0 {
		_, text := c.Explain(err)
		fmt.Fprintf(cmd.ErrOrStderr(), "brokerctl: %s was not given back, and ends by itself: %s\n", h.what, prompt.OneLine(text))
	}
}

// margin is how long before its end a grant is taken for lost, so that the command has ended by then.
func (h *Hold) margin() time.Duration { return min(KillAfter, h.Lasts/4) }

// Keep extends the grant at half time, again and again, until ctx ends, the grant is lost, or gone is closed.
func (h *Hold) Keep(ctx context.Context, lose context.CancelCauseFunc, gone <-chan struct{}) {
	since := h.Granted
	next := since.Add(h.Lasts / 2)
	for {
		last := since.Add(h.Lasts - h.margin())
		if next.After(last) {
			next = last
		}
		t := time.NewTimer(time.Until(next))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		case <-gone:
			t.Stop()
			return
		}
		if !time.Now().Before(last) {
			lose(&ErrGrantLost{"the broker is away, and its time is over"})
			return
		}
		began := time.Now()
		call, cancel := context.WithDeadline(ctx, earlier(last, began.Add(command.CallTimeout)))
		err := h.Extend(call)
		cancel()
		switch {
		case err == nil:
			since, next = began, began.Add(h.Lasts/2)
		case endsGrant(err):
			h.explainLoss(ctx, lose, gone, err)
			return
		default: // the broker is away, or the wish not granted now: what was granted still counts
			next = time.Now().Add(min(time.Second, h.Lasts/20))
		}
	}
}

// explainLoss ends the command, unless the log says within a moment that the agent itself has given the grant away.
func (h *Hold) explainLoss(ctx context.Context, lose context.CancelCauseFunc, gone <-chan struct{}, err error) {
	t := time.NewTimer(time.Second)
	defer t.Stop()
	select {
	case <-gone:
	case <-ctx.Done():
	case <-t.C:
		lose(&ErrGrantLost{status.Convert(err).Message()})
	}
}

// endsGrant reports whether the broker's answer says that the grant is over.
func endsGrant(err error) bool {
	switch client.Reason(err) {
	case "LOCK_LOST", "TOKEN_LOST", "FENCE_LOST", "STALE_INCARNATION", "AGENT_NOT_REGISTERED":
		return true
	}
	return status.Code(err) == codes.NotFound
}

// Watch follows the log: what ends the grant is known at once. What the agent itself gives away, such as a token
// that the command passes on, is not lost: gone is closed, and the command continues.
func (h *Hold) Watch(ctx context.Context, c *command.Caller, cmd *cobra.Command, lose context.CancelCauseFunc, gone chan<- struct{}) {
	filter := &pb.EventFilter{Types: append(slices.Clone(h.types), "agent.failed", "agent.stopped", "agent.deregistered")}
	for e, err := range h.broker.FollowEvents(ctx, client.EventOptions{After: h.fence, Filter: filter}) {
		if err != nil {
			_, text := c.Explain(err)
			fmt.Fprintf(cmd.ErrOrStderr(), "brokerctl: the loss of %s would be noticed late: %s\n", h.what, prompt.OneLine(text))
			return
		}
		if !h.concerns(e) {
			continue
		}
		call, cancel := context.WithTimeout(ctx, command.CallTimeout)
		held, err := h.held(call)
		cancel()
		switch {
		case err != nil || held: // what cannot be known now, extending will tell
		case givenAway(e):
			close(gone)
			return
		default:
			lose(&ErrGrantLost{e.GetSummary()})
			return
		}
	}
}

// givenAway reports whether an event says that the owner has let go by itself: there is no cause beside its wish.
func givenAway(e *pb.Event) bool {
	var details struct {
		Cause string `json:"cause"`
	}
	return slices.Contains([]string{"lock.released", "token.released", "token.passed"}, e.GetType()) &&
		json.Unmarshal([]byte(e.GetDetails()), &details) == nil && details.Cause == ""
}

// concerns reports whether an event names the grant, or the agent that has it.
func (h *Hold) concerns(e *pb.Event) bool {
	if e.GetCategory() == pb.EventCategory_EVENT_CATEGORY_AGENT {
		return e.GetSource() == h.broker.Identity().Agent || slices.Contains(e.GetRelated(), h.broker.Identity().Agent)
	}
	var details any
	if json.Unmarshal([]byte(e.GetDetails()), &details) != nil {
		return true
	}
	return slices.Contains(e.GetRelated(), strconv.FormatInt(h.fence, 10)) || mentions(details, float64(h.fence))
}

// mentions reports whether a number is anywhere in decoded JSON.
func mentions(v any, n float64) bool {
	switch v := v.(type) {
	case float64:
		return v == n
	case []any:
		return slices.ContainsFunc(v, func(v any) bool { return mentions(v, n) })
	case map[string]any:
		for _, v := range v {
			if mentions(v, n) {
				return true
			}
		}
	}
	return false
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

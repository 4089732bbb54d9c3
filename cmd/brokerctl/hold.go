package main

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
	"brokerd/internal/prompt"

	pb "brokerd/gen/brokerd/v1"
)

const (
	callTimeout  = 10 * time.Second // of a call beside the command
	releaseAfter = 5 * time.Second  // for giving back at the end
)

// runOptions are the options of lock run and token run.
type runOptions struct {
	turnOptions
	timeout time.Duration
}

// AddFlags adds the options.
func (o *runOptions) AddFlags(cmd *cobra.Command) {
	o.turnOptions.AddFlags(cmd.Flags())
	durationVar(cmd.Flags(), &o.timeout, "timeout", 0, "stop a command that runs longer (default: none)")
}

// commandAfterDash wants arguments, then -- and a command.
func commandAfterDash(least, most int, names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		dash := cmd.ArgsLenAtDash()
		switch {
		case dash < 0 || dash == len(args):
			return usagef("the command is missing: %s", cmd.UseLine())
		case dash < least:
			return usagef("%s is missing", names[dash])
		case most > 0 && dash > most:
			return usagef("argument %q is one too many; the command comes after --", args[most])
		}
		return nil
	}
}

// newHolder names an owner that nobody else is.
func newHolder() string { return "run-" + uuid.NewString() }

// hold is a lock or token that is kept while a command runs.
type hold struct {
	what    string        // such as "the lock on src/a.go"
	fence   int64         // of the grant
	granted time.Time     // at this time, or a little later
	lasts   time.Duration // unless it is extended
	env     [][2]string   // for the command
	types   []string      // of events that may tell of its end
	broker  *client.Client

	extend  func(context.Context) error
	release func(context.Context) error
	held    func(context.Context) (bool, error)
}

// count lets the time run from the call that granted it, unless that call has waited: then from an extension.
func (h *hold) count(ctx context.Context, began time.Time) error {
	h.granted = began
	if time.Since(began) < h.lasts/4 {
		return nil
	}
	h.granted = time.Now()
	return h.extend(ctx)
}

// errGrantLost is why a command is stopped.
type errGrantLost struct{ why string }

func (e *errGrantLost) Error() string { return e.why }

// runHolding takes a grant, runs the command for as long as it lasts, and gives it back.
func (o *runOptions) runHolding(c *cli, cmd *cobra.Command, command []string, take func() (*hold, error)) error {
	path, err := c.env.lookPath(command[0])
	if err != nil {
		return startFailure(cmd.Name(), err)
	}
	h, err := take()
	var f *failure
	switch {
	case errors.As(err, &f), status.Code(err) == codes.Aborted, strings.HasPrefix(client.Reason(err), "TICKET_"), err != nil && cmd.Context().Err() != nil:
		return err
	case err != nil:
		return ownFailure(c, cmd.Name(), err)
	}
	return h.run(c, cmd, path, command, o.timeout)
}

// run runs the command for as long as the grant lasts, and gives it back.
func (h *hold) run(c *cli, cmd *cobra.Command, path string, command []string, timeout time.Duration) error {
	ctx, lose := context.WithCancelCause(context.WithoutCancel(cmd.Context()))
	gone := make(chan struct{})
	var minders sync.WaitGroup
	minders.Go(func() { h.watch(ctx, c, cmd, lose, gone) })
	minders.Go(func() { h.keep(ctx, lose, gone) })
	p := &process{
		path: path, args: command, env: c.env.forCommand(h.broker, append(c.surroundings(ctx, h.broker), h.env...)), dir: c.env.childDir(),
		stdin: cmd.InOrStdin(), stdout: cmd.OutOrStdout(), stderr: cmd.ErrOrStderr(),
		timeout: timeout, grace: h.margin(), interrupted: cmd.Context(), hurry: c.hurry,
	}
	code, err := p.run(ctx)
	cause := context.Cause(ctx)
	lose(nil)
	minders.Wait()
	if lost := (*errGrantLost)(nil); errors.As(cause, &lost) {
		return c.lost(h.what+" was lost, and the command was stopped", lost.why)
	}
	h.giveBack(c, cmd)
	switch {
	case p.notStarted:
		return startFailure(cmd.Name(), err)
	case code != commandDone:
		return &failure{code: code}
	}
	return nil
}

// giveBack releases the grant. If the broker is away it ends by itself.
func (h *hold) giveBack(c *cli, cmd *cobra.Command) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), releaseAfter)
	defer cancel()
	if err := h.release(ctx); err != nil && h.fence > 0 {
		_, text := c.explain(err)
		fmt.Fprintf(cmd.ErrOrStderr(), "brokerctl: %s was not given back, and ends by itself: %s\n", h.what, prompt.OneLine(text))
	}
}

// margin is how long before its end a grant is taken for lost, so that the command has ended by then.
func (h *hold) margin() time.Duration { return min(killAfter, h.lasts/4) }

// keep extends the grant at half time, again and again, until ctx ends, the grant is lost, or gone is closed.
func (h *hold) keep(ctx context.Context, lose context.CancelCauseFunc, gone <-chan struct{}) {
	since := h.granted
	next := since.Add(h.lasts / 2)
	for {
		last := since.Add(h.lasts - h.margin())
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
			lose(&errGrantLost{"the broker is away, and its time is over"})
			return
		}
		began := time.Now()
		call, cancel := context.WithDeadline(ctx, earlier(last, began.Add(callTimeout)))
		err := h.extend(call)
		cancel()
		switch {
		case err == nil:
			since, next = began, began.Add(h.lasts/2)
		case endsGrant(err):
			h.explainLoss(ctx, lose, gone, err)
			return
		default: // the broker is away, or the wish not granted now: what was granted still counts
			next = time.Now().Add(min(time.Second, h.lasts/20))
		}
	}
}

// explainLoss ends the command, unless the log says within a moment that the agent itself has given the grant away.
func (h *hold) explainLoss(ctx context.Context, lose context.CancelCauseFunc, gone <-chan struct{}, err error) {
	t := time.NewTimer(time.Second)
	defer t.Stop()
	select {
	case <-gone:
	case <-ctx.Done():
	case <-t.C:
		lose(&errGrantLost{status.Convert(err).Message()})
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

// watch follows the log: what ends the grant is known at once. What the agent itself gives away, such as a token
// that the command passes on, is not lost: gone is closed, and the command continues.
func (h *hold) watch(ctx context.Context, c *cli, cmd *cobra.Command, lose context.CancelCauseFunc, gone chan<- struct{}) {
	filter := &pb.EventFilter{Types: append(slices.Clone(h.types), "agent.failed", "agent.stopped", "agent.deregistered")}
	for e, err := range h.broker.FollowEvents(ctx, client.EventOptions{After: h.fence, Filter: filter}) {
		if err != nil {
			_, text := c.explain(err)
			fmt.Fprintf(cmd.ErrOrStderr(), "brokerctl: the loss of %s would be noticed late: %s\n", h.what, prompt.OneLine(text))
			return
		}
		if !h.concerns(e) {
			continue
		}
		call, cancel := context.WithTimeout(ctx, callTimeout)
		held, err := h.held(call)
		cancel()
		switch {
		case err != nil || held: // what cannot be known now, extending will tell
		case givenAway(e):
			close(gone)
			return
		default:
			lose(&errGrantLost{e.GetSummary()})
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
func (h *hold) concerns(e *pb.Event) bool {
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

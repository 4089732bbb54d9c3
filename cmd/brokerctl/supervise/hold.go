package supervise

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/turn"
	"brokerd/internal/prompt"
)

// runOptions are the options of lock run and token run.
var runOptions = append([]command.Option{
	{Name: "timeout", Type: "duration", Usage: "stop a command that runs longer (default: none)"},
}, turn.Options...)

// running makes a command of one whose arguments end with the command that it runs. rule says how that is given.
func running(cmd *cobra.Command, rule cobra.PositionalArgs) *cobra.Command {
	cmd.DisableFlagsInUseLine, cmd.Args = true, rule
	return cmd
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

// newHolder returns the name of an owner that is no other's.
func newHolder() string { return "run-" + uuid.NewString() }

// A hold is a lock or a token that is kept while a command runs.
type hold struct {
	*client.Hold
	what string      // such as "the lock on src/a.go"
	env  [][2]string // for the command
}

// keeping says how the client keeps what a command needs. The command has KillAfter to end before another may get it.
func keeping(c *command.Caller, cmd *cobra.Command, what string) client.HoldOptions {
	return client.HoldOptions{Margin: KillAfter, OnError: func(err error) {
		_, text := c.Explain(err)
		fmt.Fprintf(cmd.ErrOrStderr(), "brokerctl: the loss of %s would be noticed late: %s\n", what, prompt.OneLine(text))
	}}
}

// notTaken is the error of a hold that was not granted, for a command line.
func notTaken(c *command.Caller, paths []string, err error) error {
	if busy := (*client.BusyError)(nil); errors.As(err, &busy) {
		return turn.NotAcquired(c, busy.Grant, paths)
	}
	return err
}

// runHolding takes a grant, runs the command for as long as it lasts, and gives it back.
func runHolding(g *command.Given, take func() (*hold, error)) error {
	c, cmd := g.Caller, g.Cmd
	command := g.Args[cmd.ArgsLenAtDash():]
	path, err := c.Env.LookPath(command[0])
	if err != nil {
		return startFailure(cmd.Name(), err)
	}
	h, err := take()
	var f *problem.Failure
	switch {
	case errors.As(err, &f), status.Code(err) == codes.Aborted, strings.HasPrefix(client.Reason(err), "TICKET_"),
		err != nil && cmd.Context().Err() != nil:
		return err
	case err != nil:
		return ownFailure(c, cmd.Name(), err)
	}
	return h.run(c, cmd, path, command, g.Duration("timeout"))
}

// run runs the command for as long as the hold lasts, and gives it back.
func (h *hold) run(c *command.Caller, cmd *cobra.Command, path string, command []string, timeout time.Duration) error {
	ctx, broker := h.Context(), h.Unfenced()
	p := &process{
		path: path, args: command, env: forCommand(c.Env, broker, append(surroundings(c, ctx, broker), h.env...)),
		dir: c.Env.ChildDir(), stdin: cmd.InOrStdin(), stdout: cmd.OutOrStdout(), stderr: cmd.ErrOrStderr(),
		timeout: timeout, grace: h.Margin(), interrupted: cmd.Context(), hurry: c.Hurry,
	}
	code, err := p.run(ctx)
	if lost := (*client.HoldLostError)(nil); errors.As(h.Lost(), &lost) {
		_ = h.Release(ctx) // there is nothing to give back
		return c.Lost(h.what+" was lost, and the command was stopped", lost.Why)
	}
	if err := h.Release(context.WithoutCancel(cmd.Context())); err != nil {
		_, text := c.Explain(err)
		fmt.Fprintf(cmd.ErrOrStderr(), "brokerctl: %s was not given back, and ends by itself: %s\n", h.what,
			prompt.OneLine(text))
	}
	switch {
	case p.notStarted:
		return startFailure(cmd.Name(), err)
	case code != commandDone:
		return &problem.Failure{Code: code}
	}
	return nil
}

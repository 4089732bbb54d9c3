// Command brokerctl is the command line of brokerd: for operators, for scripts, and for agents
// that only have a shell. It speaks only to the API.
//
// What it prints goes through the command's writers and every failure becomes one line and one
// exit code (exit.go), so that the whole command tree can be run inside a test.
package main

import (
	"cmp"
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"brokerd/cmd/brokerctl/harness"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/setting"
	"brokerd/cmd/brokerctl/local"
	"brokerd/internal/prompt"
)

func main() {
	noted := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // nohup
		noted = append(noted, syscall.SIGHUP)
	}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, noted...)
	dir, err := os.Getwd()
	if err != nil {
		dir = "" // commands that need it report this
	}
	os.Exit(run(context.Background(), setting.Environment{
		In: os.Stdin, Out: os.Stdout, Err: output.WithoutSIGPIPE(os.Stderr),
		Columns: output.TerminalColumns(os.Stdout), ErrTerminal: output.TerminalColumns(os.Stderr) > 0,
		Variables: os.Environ(), Dir: dir, Now: time.Now, Mark: prompt.NewMark, Signals: signals,
		Ancestors: harness.Ancestors,
	}, os.Args[1:]))
}

// run executes one command line and returns its exit code. It may be called several times, and
// concurrently.
func run(ctx context.Context, env setting.Environment, args []string) int {
	ctx, interrupt := context.WithCancelCause(ctx)
	defer interrupt(nil)
	env.Out, env.Err = output.SharedOutput(env.Out), output.SharedOutput(env.Err)
	c := command.New(env, args...)
	c.Start = func(ctx context.Context) error {
		_, err := local.Up(c, ctx, nil)
		return err
	}
	finished := make(chan struct{})
	defer close(finished)
	go func() {
		for first := true; ; first = false {
			select {
			case s := <-env.Signals:
				switch {
				case first:
					interrupt(&problem.Interrupted{Signal: s})
				case s != syscall.SIGHUP: // a shell and the kernel may each send one when a terminal is closed
					close(c.Hurry)
					return
				}
			case <-finished:
				return
			}
		}
	}()

	return execute(ctx, c, newRoot(c))
}

// execute runs the command line of c in a tree of commands and returns its exit code.
func execute(ctx context.Context, c *command.Caller, root *cobra.Command) int {
	root.SetArgs(c.Args)
	root.SetIn(c.Env.In)
	root.SetOut(c.Env.Out)
	root.SetErr(c.Env.Err)
	ran, err := root.ExecuteContextC(ctx)
	err = cmp.Or(err, c.EndOutput())
	c.Close()
	return c.Report(ctx, ran, cmp.Or(err, c.Unknown))
}

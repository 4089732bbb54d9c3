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

	"brokerd/cmd/brokerctl/harness"
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
	os.Exit(run(context.Background(), environment{
		In: os.Stdin, Out: os.Stdout, Err: withoutSIGPIPE(os.Stderr),
		Columns: terminalColumns(os.Stdout), ErrTerminal: terminalColumns(os.Stderr) > 0,
		Variables: os.Environ(), Dir: dir, Now: time.Now, Mark: prompt.NewMark, Signals: signals,
		Ancestors: harness.Ancestors,
	}, os.Args[1:]))
}

// run executes one command line and returns its exit code. It may be called several times, and
// concurrently.
func run(ctx context.Context, env environment, args []string) int {
	ctx, interrupt := context.WithCancelCause(ctx)
	defer interrupt(nil)
	env.Out, env.Err = sharedOutput(env.Out), sharedOutput(env.Err)
	c := &cli{env: env, args: args, hurry: make(chan struct{})}
	finished := make(chan struct{})
	defer close(finished)
	go func() {
		for first := true; ; first = false {
			select {
			case s := <-env.Signals:
				switch {
				case first:
					interrupt(&interrupted{s})
				case s != syscall.SIGHUP: // a shell and the kernel may each send one when a terminal is closed
					close(c.hurry)
					return
				}
			case <-finished:
				return
			}
		}
	}()

	root := newRoot(c)
	root.SetArgs(args)
	root.SetIn(env.In)
	root.SetOut(env.Out)
	root.SetErr(env.Err)
	ran, err := root.ExecuteContextC(ctx)
	err = cmp.Or(err, c.endOutput())
	c.close()
	return c.report(ctx, ran, cmp.Or(err, c.unknown))
}

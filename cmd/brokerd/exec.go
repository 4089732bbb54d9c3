package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"brokerd/internal/app"
)

// Exit codes of exec, as env and timeout have them; others are the command's.
const (
	exitOwnFailure  = 125
	exitNotRunnable = 126
	exitNotFound    = 127
	exitSignal      = 128 // plus the signal's number
)

// exitCode is an error that carries an exit code. Without an error of its own nothing is printed.
type exitCode struct {
	code int
	err  error
}

// Error returns the text of the error, if there is one.
func (e *exitCode) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

// Unwrap returns the error itself.
func (e *exitCode) Unwrap() error { return e.err }

func newExec() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "exec -- COMMAND [ARGUMENT...]",
		Short: "Run a command with a broker of its own, for CI and tests",
		Long: `exec starts a broker on a temporary data folder, runs the command when it answers, stops it when the command has ended and
removes the folder. The command finds it by itself: BROKERD_ADDR and BROKERD_DATA are set, and what else the environment says of a
broker or agent is not. SIGINT, SIGTERM and SIGHUP are passed on.

The exit code is the command's, 128+N if signal N ended it, 125 if the broker failed, 126 if the command cannot be run, 127 if
there is none of that name.`,
		Example:               `  brokerd exec -- make integration-test`,
		DisableFlagsInUseLine: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError{errors.New("the command is missing: brokerd exec -- COMMAND [ARGUMENT...]")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return execute(context.WithoutCancel(cmd.Context()), cmd, args)
		},
	}
	cmd.Flags().SetInterspersed(false) // what follows the command's name is the command's
	return cmd
}

// execute runs the command beside a broker. Signals end the command, not the broker: that goes when the command has gone.
func execute(ctx context.Context, cmd *cobra.Command, args []string) error {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	path, err := exec.LookPath(args[0])
	switch {
	case errors.Is(err, fs.ErrPermission):
		return &exitCode{exitNotRunnable, err}
	case err != nil:
		return &exitCode{exitNotFound, err}
	}
	log, err := newLogger("warn", "auto", cmd.ErrOrStderr())
	if err != nil {
		return &exitCode{exitOwnFailure, err}
	}
	dir, err := os.MkdirTemp("", "brokerd-exec-")
	if err != nil {
		return &exitCode{exitOwnFailure, fmt.Errorf("make a data folder: %w", err)}
	}
	// What the broker writes need not survive a power failure: nor does the folder.
	broker, err := app.Start(ctx, app.Config{Dir: dir, Sync: "normal", Version: programVersion(), Log: log})
	if err != nil {
		return &exitCode{exitOwnFailure, errors.Join(err, os.RemoveAll(dir))}
	}
	child := &exec.Cmd{
		Path: path, Args: args, Env: environment(broker), Stdin: cmd.InOrStdin(), Stdout: cmd.OutOrStdout(), Stderr: cmd.ErrOrStderr(),
	}
	outcome := attend(child, signals, broker.Failed(), terminal(os.Stdin))
	if err := errors.Join(broker.Stop(ctx), os.RemoveAll(dir)); err != nil && outcome == nil {
		return &exitCode{exitOwnFailure, err}
	}
	return outcome
}

// environment is the process's own, with the broker in place of any other.
func environment(broker *app.App) []string {
	others := []string{"BROKERD_ADDR", "BROKERD_DATA", "BROKERD_SESSION", "BROKERD_AGENT", "BROKERD_INCARNATION", "BROKERD_CREDENTIAL_FILE"}
	kept := slices.DeleteFunc(os.Environ(), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		return slices.Contains(others, name)
	})
	return append(kept, "BROKERD_ADDR="+broker.Addresses()[0], "BROKERD_DATA="+broker.Dir())
}

// attend runs the command until it ends, passes signals on, and returns its exit code as an error. A terminal sends its signals
// to the command as well: they must not come twice.
func attend(child *exec.Cmd, signals <-chan os.Signal, failed <-chan error, atTerminal bool) error {
	if err := child.Start(); err != nil {
		return &exitCode{exitNotRunnable, err}
	}
	var failure error // of the broker
	ended := make(chan error, 1)
	go func() { ended <- child.Wait() }()
	for {
		select {
		case s := <-signals:
			if atTerminal && s != syscall.SIGTERM {
				continue
			}
			_ = child.Process.Signal(s) // fails only if it has ended
		case err := <-failed:
			failed, failure = nil, err
			_ = child.Process.Signal(syscall.SIGTERM) // as above
		case err := <-ended:
			if failure != nil {
				return &exitCode{exitOwnFailure, failure}
			}
			return ending(child.ProcessState, err)
		}
	}
}

// ending says how the command ended; nil for exit code 0.
func ending(state *os.ProcessState, err error) error {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &exit):
		return &exitCode{exitOwnFailure, err}
	}
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return &exitCode{exitSignal + int(ws.Signal()), nil}
	}
	return &exitCode{state.ExitCode(), nil}
}

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

	"brokerd/cmd/internal/childdaemon"
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
		Long: `exec starts a broker on a temporary data folder and runs the command when the
broker answers. When the command has ended, exec stops the broker and removes
the folder. The command finds the broker by BROKERD_ADDR and BROKERD_DATA; exec
removes other variables that name a broker or an agent from its environment.
exec passes SIGINT, SIGTERM and SIGHUP on to the command.

If exec is killed with SIGKILL, the broker stops and removes the folder; the
command continues without it.

The exit code is the command's, 128+N if signal N ended it, 125 if the broker
failed, 126 if the command cannot be run, 127 if there is none of that name.`,
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

// execute runs the command beside a broker. Signals end the command, and the end of the command
// ends the broker.
func execute(ctx context.Context, cmd *cobra.Command, args []string) error {
	passed := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // nohup
		passed = append(passed, syscall.SIGHUP)
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, passed...)
	defer signal.Stop(signals)
	path, err := exec.LookPath(args[0])
	switch {
	case errors.Is(err, fs.ErrPermission):
		return &exitCode{exitNotRunnable, err}
	case err != nil:
		return &exitCode{exitNotFound, err}
	}
	self, err := os.Executable()
	if err != nil {
		return &exitCode{exitOwnFailure, err}
	}
	// A broker in this process would leave its folder behind if this process was killed.
	// Its data need not survive a power failure: neither does the folder.
	broker, err := childdaemon.Start(ctx, self, "", os.Environ(), cmd.ErrOrStderr(), "--sync", "normal")
	if err != nil {
		return &exitCode{exitOwnFailure, err}
	}
	outcome := attend(cmd, broker, path, args, signals)
	if err := broker.Stop(); err != nil && outcome == nil {
		return &exitCode{exitOwnFailure, err}
	}
	return outcome
}

// environment is the process's own, with the broker in place of any other.
func environment(broker *childdaemon.Daemon) ([]string, error) {
	address, err := broker.Address()
	if err != nil {
		return nil, err
	}
	others := []string{"BROKERD_ADDR", "BROKERD_DATA", "BROKERD_SESSION",
		"BROKERD_AGENT", "BROKERD_INCARNATION", "BROKERD_ROLE", "BROKERD_CREDENTIAL_FILE"}
	kept := slices.DeleteFunc(os.Environ(), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		return slices.Contains(others, name)
	})
	return append(kept, "BROKERD_ADDR="+address, "BROKERD_DATA="+broker.Dir()), nil
}

// attend runs the command until it ends, passes signals on, and returns its exit code as an error.
func attend(cmd *cobra.Command, broker *childdaemon.Daemon, path string, args []string, signals <-chan os.Signal) error {
	env, err := environment(broker)
	if err != nil {
		return &exitCode{exitOwnFailure, err}
	}
	child := &exec.Cmd{
		Path: path, Args: args, Env: env, Stdin: cmd.InOrStdin(), Stdout: cmd.OutOrStdout(), Stderr: cmd.ErrOrStderr(),
	}
	if err := child.Start(); err != nil {
		return &exitCode{exitNotRunnable, err}
	}
	atTerminal := terminal(os.Stdin)
	var failure error // of the broker
	ended, failed := make(chan error, 1), broker.Ended()
	go func() { ended <- child.Wait() }()
	for {
		select {
		case s := <-signals:
			// Ctrl-C on a terminal reaches the command as well, and must not come twice. SIGHUP may
			// come twice: another process may have sent it to exec alone.
			if atTerminal && s == syscall.SIGINT {
				continue
			}
			_ = child.Process.Signal(s) // fails only if it has ended
		case <-failed:
			failed, failure = nil, broker.Failure()
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

package supervise

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/setting"
	"brokerd/internal/prompt"
)

// The limits of a process.
const (
	ErrorTail = 2 << 10          // bytes of standard error that are kept with a failed attempt
	KillAfter = 10 * time.Second // between SIGTERM and SIGKILL
	pipeGrace = 2 * time.Second  // for output of what the command left running
)

// process is one run of a command.
type process struct {
	path        string
	args        []string // the command's name and arguments
	env         []string
	dir         string // the working folder; "": that of brokerctl
	stdin       io.Reader
	stdout      io.Writer
	stderr      io.Writer
	terminal    *os.File        // of the command, instead of stdin, stdout and stderr; nil = none. run closes it
	keepErrors  bool            // the error of a failed run ends with the end of standard error
	timeout     time.Duration   // 0 = none
	grace       time.Duration   // between SIGTERM and SIGKILL
	interrupted context.Context // when it ends its signal is passed on
	hurry       <-chan struct{} // when it is closed the command is killed

	notStarted bool // run could not start the command
}

// forCommand is the environment of a command that brokerctl runs: its own, with who acts where, so that brokerctl works inside it,
// and more.
func forCommand(e setting.Environment, broker *client.Client, more [][2]string) []string {
	id := broker.Identity()
	incarnation := "" // the newest
	if id.Incarnation > 0 {
		incarnation = fmt.Sprint(id.Incarnation)
	}
	env := slices.Clone(e.Variables)
	for _, pair := range append([][2]string{
		{"BROKERD_ADDR", broker.Address()},
		{"BROKERD_SESSION", id.Session},
		{"BROKERD_AGENT", id.Agent},
		{"BROKERD_INCARNATION", incarnation},
	}, more...) {
		env = append(env, pair[0]+"="+pair[1])
	}
	return env
}

// ownFailure is an error of brokerctl itself where the exit code is a command's: it cannot be mistaken for one.
func ownFailure(c *command.Caller, what string, err error) error {
	if errors.Is(err, setting.ErrRefused) {
		return err
	}
	_, text := c.Explain(err)
	return &problem.Failure{Code: problem.ExitOwnFailure, Text: what + ": " + text, Err: err}
}

// startFailure is the error of a command that cannot be started. It has the exit code that shells
// use: 127 if there is no such command, 126 if it cannot be executed.
func startFailure(what string, err error) error {
	exit := problem.ExitNotRunnable
	if errors.As(err, new(*exec.Error)) && !errors.Is(err, fs.ErrPermission) {
		exit = problem.ExitNoCommand
	}
	return &problem.Failure{Code: exit, Text: what + ": " + err.Error(), Err: err}
}

// run runs the command until it ends. It returns the exit code, 128 + N for signal N and exitTimedOut after the
// time-out, and an error unless the code is 0. When ctx ends the command gets SIGTERM.
func (p *process) run(ctx context.Context) (int, error) {
	tail := &tail{to: p.stderr, limit: ErrorTail}
	cmd := &exec.Cmd{
		Path: p.path, Args: p.args, Env: p.env, Dir: p.dir, Stdin: p.stdin, Stdout: p.stdout, Stderr: p.stderr, WaitDelay: pipeGrace,
		// A group of its own: signals reach the command's children as well, and those of the terminal reach it once, through us.
		// But a command that reads the terminal must stay in the terminal's group, or it would be stopped.
		SysProcAttr: &syscall.SysProcAttr{Setpgid: !output.IsTerminal(p.stdin)},
	}
	if p.keepErrors {
		cmd.Stderr = tail
	}
	if p.terminal != nil {
		cmd.Stdin, cmd.Stdout, cmd.Stderr = p.terminal, p.terminal, p.terminal
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	}
	err := cmd.Start()
	if p.terminal != nil {
		_ = p.terminal.Close() // the command has its own descriptors
	}
	if err != nil {
		p.notStarted = true
		return problem.ExitNotRunnable, fmt.Errorf("start the command: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	timedOut, err := p.attend(ctx, cmd, ended)

	if err != nil && cmd.ProcessState == nil {
		return problem.ExitOwnFailure, fmt.Errorf("wait for the command: %w", err)
	}
	code, how := exitOf(cmd.ProcessState)
	if timedOut {
		code, how = problem.ExitTimedOut, "timed out after "+prompt.Duration(p.timeout)
	}
	if code == commandDone {
		return code, nil
	}
	text := how
	if t := strings.TrimSpace(tail.String()); t != "" {
		text += ": " + t
	}
	return code, errors.New(text)
}

// attend waits for the end of the command, and sends it the signals that are due. A signal goes to the whole group, if the command
// has one of its own; it fails only if nobody is left.
func (p *process) attend(ctx context.Context, cmd *exec.Cmd, ended <-chan error) (timedOut bool, err error) {
	whom, ownGroup := cmd.Process.Pid, cmd.SysProcAttr.Setpgid || cmd.SysProcAttr.Setsid
	if ownGroup {
		whom = -whom
	}
	// A stopped command, such as one that has read a terminal from the background, takes a signal
	// only when it continues.
	send := func(s syscall.Signal) {
		_ = syscall.Kill(whom, s)
		_ = syscall.Kill(whom, syscall.SIGCONT)
	}
	var timeout, kill <-chan time.Time
	if p.timeout > 0 {
		t := time.NewTimer(p.timeout)
		defer t.Stop()
		timeout = t.C
	}
	interrupted, done, hurry := p.interrupted.Done(), ctx.Done(), p.hurry
	terminate := func() {
		send(syscall.SIGTERM)
		kill = time.After(p.grace)
	}
	for {
		select {
		case err := <-ended:
			return timedOut, err
		case <-interrupted:
			interrupted = nil
			s, ok := problem.SignalOf(p.interrupted)
			if !ok {
				s = syscall.SIGTERM
			}
			// A terminal sends SIGINT to its whole group. It sends SIGHUP too, but another process
			// may have sent that to brokerctl alone.
			if ownGroup || s != syscall.SIGINT {
				send(s)
			}
		case <-done:
			done = nil
			terminate()
		case <-timeout:
			timeout, timedOut = nil, true
			terminate()
		case <-kill:
			kill = nil
			_ = syscall.Kill(whom, syscall.SIGKILL)
		case <-hurry:
			hurry = nil
			_ = syscall.Kill(whom, syscall.SIGKILL)
		}
	}
}

// exitOf says how a process ended.
func exitOf(s *os.ProcessState) (code int, how string) {
	if ws, ok := s.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return problem.ExitSignal + int(ws.Signal()), "ended by signal: " + ws.Signal().String()
	}
	return s.ExitCode(), fmt.Sprintf("exit status %d", s.ExitCode())
}

// tail passes on what is written and keeps the last bytes of it. It is used by one goroutine at a
// time.
type tail struct {
	to    io.Writer
	limit int
	kept  []byte
	cut   bool
}

// Write never fails: a command must not end by SIGPIPE because brokerctl's own terminal was closed.
func (t *tail) Write(p []byte) (int, error) {
	_, _ = t.to.Write(p)
	t.kept = append(t.kept, p...)
	if more := len(t.kept) - t.limit; more > 0 {
		t.kept = append(t.kept[:0], t.kept[more:]...)
		t.cut = true
	}
	return len(p), nil
}

// String returns what was kept, from the beginning of a character, with … in front of it if something was left out.
func (t *tail) String() string {
	kept := t.kept
	if t.cut {
		for len(kept) > 0 && !utf8.RuneStart(kept[0]) {
			kept = kept[1:]
		}
	}
	return prompt.Either(t.cut, "…", "") + strings.ToValidUTF8(string(kept), "\ufffd")
}

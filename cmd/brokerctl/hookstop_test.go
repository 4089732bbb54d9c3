package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"brokerd/internal/apptest"
)

// continuedInput is the end of a turn that a hook has continued.
var continuedInput = strings.ReplaceAll(stopInput, `"stop_hook_active":false`, `"stop_hook_active":true`)

// awaitIdle returns when an agent has reported that it is idle: a hook does so before it listens.
func awaitIdle(t *shell, name string) {
	t.Helper()
	for deadline := time.Now().Add(patience); at(t, fields(t, "agent", "get", name), "agent", "status") != "idle"; {
		if time.Now().After(deadline) {
			t.Fatal("the agent is not idle")
		}
	}
}

// reasonOf returns the reason with which a hook continues the turn; "" if it lets the turn end.
func reasonOf(t testing.TB, got result) string {
	t.Helper()
	if got.code != 0 || got.err != "" {
		t.Fatalf("%+v", got)
	}
	if got.out == "" {
		return ""
	}
	answer := decode(t, got.out)
	if at(t, answer, "decision") != "block" {
		t.Fatalf("%+v", got)
	}
	return at(t, answer, "reason").(string)
}

func TestHookListen_PassesTheNextMessageToTheAgent(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	t.Setenv("BROKERD_AGENT", "builder-1")
	for _, message := range [][]string{{"send", "builder-1", "Add login"}, {"agent", "nudge", "builder-1", "look"}} {
		must0(t, "agent", "heartbeat", "--status", "active")
		done := make(chan result, 1)
		go func() { done <- hooked(t, stopInput, "--listen", "1h") }()
		awaitIdle(t, "builder-1")
		must0(t, append([]string{"--agent", "lead"}, message...)...)
		if reason := reasonOf(t, <-done); !strings.Contains(reason, message[len(message)-1]) {
			t.Errorf("%v: %q", message, reason)
		}
	}
	if reason := reasonOf(t, hooked(t, stopInput)); reason != "" {
		t.Errorf("passed twice: %q", reason)
	}
	inbox := fields(t, "inbox")
	if at(t, inbox, "delivery", "state") != "pending" || at(t, inbox, "delivery", "read_at") == nil {
		t.Errorf("the message is not read and unclaimed: %v", inbox)
	}
}

func TestHookListen_ReturnsAtOnceWithOpenWork(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	t.Setenv("BROKERD_AGENT", "builder-1")
	planned(t, smallPlan)
	must0(t, "task", "claim")
	reason := reasonOf(t, hooked(t, stopInput, "--listen", "1h"))
	if !strings.Contains(reason, "Open: holds task schema") {
		t.Errorf("%q", reason)
	}
}

func TestHookListen_NamesTheQueuesThatHaveMail(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	t.Setenv("BROKERD_AGENT", "builder-1")
	message := sent(t, "--agent", "lead", "role:builder", "for one of you")
	reason := reasonOf(t, hooked(t, stopInput, "--listen", "1h"))
	if reason != "Messages wait in role:builder. Take one now: brokerctl next\n" {
		t.Errorf("%q", reason)
	}
	if d := delivery(t, message); at(t, d, "state") != "pending" || at(t, d, "delivered_at") != nil {
		t.Errorf("the hook has taken it: %v", d)
	}
}

// Two agents that answer each other continue their turns once per pause at most.
func TestHookListen_AContinuedTurnListensForAPause(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	t.Setenv("BROKERD_AGENT", "builder-1")
	sent(t, "--agent", "lead", "builder-1", "again")
	if reason := reasonOf(t, hooked(t, continuedInput, "--listen", "200ms")); reason != "" {
		t.Errorf("a message continues the turn before the pause ends: %q", reason)
	}
	reason := reasonOf(t, hooked(t, continuedInput, "--listen", "1h", "--pause", "1ms"))
	if !strings.Contains(reason, "again") {
		t.Errorf("after the pause: %q", reason)
	}
	sent(t, "--agent", "lead", "builder-1", "and again")
	reason = reasonOf(t, hooked(t, continuedInput, "--listen", "1h", "--pause", "1h", "--keep-going"))
	if !strings.Contains(reason, "and again") {
		t.Errorf("with --keep-going: %q", reason)
	}
	must0(t, "--agent", "lead", "agent", "nudge", "builder-1", "look")
	reason = reasonOf(t, hooked(t, continuedInput, "--listen", "1h", "--pause", "1h"))
	if !strings.Contains(reason, "nudge from lead") {
		t.Errorf("a directive: %q", reason)
	}
}

// listeningHook starts a hook that listens as a process, by the given shell command in which
// "hook" stands for it, and returns once it listens.
func listeningHook(t *shell, script string) (cmd *exec.Cmd, stdout *os.File) {
	t.Helper()
	input := filepath.Join(t.TempDir(), "input.json")
	apptest.NoError(t, os.WriteFile(input, []byte(stopInput), 0o600))
	hook := "brokerctl hook claude-code --within 5m --listen 1h < " + input
	cmd = t.command("sh", "-c", strings.ReplaceAll(script, "hook", hook))
	cmd.Env = program(t)
	stdout, w, err := os.Pipe()
	apptest.NoError(t, err)
	t.Cleanup(func() { _ = stdout.Close() })
	cmd.Stdout = w
	must0(t, "agent", "heartbeat", "--status", "active")
	apptest.NoError(t, cmd.Start())
	apptest.NoError(t, w.Close())
	awaitIdle(t, "builder-1")
	return cmd, stdout
}

func TestHookListen_EndsAtOnceWithTheCodingAgentAndLosesNoMessage(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	t.Setenv("BROKERD_AGENT", "builder-1")
	for name, end := range map[string]struct {
		script string
		by     func(cmd *exec.Cmd, stdout *os.File) error
	}{
		"SIGKILL":    {"exec hook", func(cmd *exec.Cmd, _ *os.File) error { return cmd.Process.Kill() }},
		"SIGTERM":    {"exec hook", func(cmd *exec.Cmd, _ *os.File) error { return cmd.Process.Signal(syscall.SIGTERM) }},
		"the parent": {"hook & wait", func(cmd *exec.Cmd, _ *os.File) error { return cmd.Process.Kill() }},
		"the reader": {"exec hook", func(_ *exec.Cmd, stdout *os.File) error { return stdout.Close() }},
	} {
		t.Run(name, func(t *shell) {
			cmd, stdout := listeningHook(t, end.script)
			apptest.NoError(t, end.by(cmd, stdout))
			if name != "the reader" {
				if out, err := io.ReadAll(stdout); err != nil || len(out) > 0 { // until the hook has ended
					t.Errorf("%q, %v", out, err)
				}
			}
			_ = cmd.Wait() // most of them were killed
			message := sent(t, "--agent", "lead", "builder-1", "after "+name)
			if d := delivery(t, message); at(t, d, "delivered_at") != nil {
				t.Errorf("the ended hook received it: %v", d)
			}
			if reason := reasonOf(t, hooked(t, stopInput)); strings.Count(reason, "Subject: ") != 1 {
				t.Errorf("%q", reason)
			}
		})
	}
}

// failingWriter is the output of a hook whose coding agent does not read.
type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errors.New("no reader") }

func TestHook_AMessageThatTheAgentDidNotReceiveStaysUnread(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	t.Setenv("BROKERD_AGENT", "builder-1")
	sent(t, "--agent", "lead", "builder-1", "Add login")
	var errs bytes.Buffer
	run(t.Context(), t.environment(stopInput, failingWriter{}, &errs), []string{"hook", "claude-code", "--within", "5m"})
	if reason := reasonOf(t, hooked(t, stopInput)); !strings.Contains(reason, "Add login") {
		t.Errorf("%q", reason)
	}
}

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"brokerd/cmd/brokerctl/hook"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/internal/apptest"
)

// wakeFile returns the file of a session's listener.
func wakeFile(t *shell, session string) string {
	t.Helper()
	h := &hook.Hook{C: command.New(t.environment("", nil, nil)), In: hook.Input{SessionID: session}}
	l, err := h.Listener()
	apptest.NoError(t, err)
	return l.File
}

// until returns as soon as something holds.
func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for late := time.Now().Add(patience); !holds(); {
		if time.Now().After(late) {
			t.Fatal("in vain: ", what)
		}
	}
}

func TestHookWake_WakesTheSessionWithItsMail(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead")
	t.Setenv("BROKERD_AGENT", "builder-1")
	done := make(chan result, 1)
	go func() { done <- hooked(t, eventOf("s1", "SessionStart"), "--wake") }()
	until(t, "the listener registers the agent", func() bool { return ctl(t, "--agent", "", "agent", "get", "builder-1").code == 0 })
	id := sent(t, "--agent", "lead", "builder-1", "Add login")
	got := <-done
	if got.code != hook.ExitBlock || got.out != "" || strings.Count(got.err, "Subject: Add login") != 1 || !strings.HasPrefix(got.err, "1 message came for you") {
		t.Errorf("%+v", got)
	}
	if d := delivery(t, id); at(t, d, "read_at") != nil || at(t, d, "offers", 0, "way") != "wake" {
		t.Errorf("%v", d)
	}
	hooked(t, eventOf("s1", "Stop")) // it may be the end of the turn before
	if d := delivery(t, id); at(t, d, "read_at") != nil {
		t.Errorf("after the end of a turn: %v", d)
	}
	hooked(t, strings.Replace(eventOf("s1", "UserPromptSubmit"), `"go on"`, jsonText(got.err), 1))
	if d := delivery(t, id); at(t, d, "read_at") == nil {
		t.Errorf("the prompt quotes it: %v", d)
	}
}

func TestHookWake_ARunWithoutAScreenHasNoListener(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	t.Setenv("BROKERD_AGENT", "builder-1")
	t.Setenv("CLAUDE_CODE_ENTRYPOINT", "sdk-cli")
	sent(t, "--agent", "lead", "builder-1", "Add login")
	if got := hooked(t, eventOf("s1", "Stop"), "--wake"); got.code != 0 || got.out+got.err != "" {
		t.Errorf("%+v", got)
	}
}

// Two agents that only write to each other do not wake each other for ever.
func TestHookWake_EndsWithItsSessionAndWakesItFiveTimesWithoutATool(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	t.Setenv("BROKERD_AGENT", "builder-1")
	for i := range hook.MostWakes {
		sent(t, "--agent", "lead", "builder-1", fmt.Sprint("again ", i))
		if got := hooked(t, eventOf("s1", "Stop"), "--wake"); got.code != hook.ExitBlock || !strings.Contains(got.err, "again") {
			t.Fatalf("%d: %+v", i, got)
		}
	}
	id := sent(t, "--agent", "lead", "builder-1", "once more")
	if err := os.Remove(wakeFile(t, "s1")); err != nil { // that of the listener before
		t.Fatal(err)
	}
	done := make(chan result, 1)
	go func() { done <- hooked(t, eventOf("s1", "Stop"), "--wake") }()
	until(t, "the listener begins", func() bool { return hook.FileNumber(wakeFile(t, "s1")) == os.Getpid() })
	hooked(t, eventOf("s1", "SessionEnd"))
	if got := <-done; got.code != 0 || got.out+got.err != "" {
		t.Errorf("%+v", got)
	}
	if at(t, delivery(t, id), "delivered_at") != nil {
		t.Error("it was offered")
	}
	if left, err := filepath.Glob(wakeFile(t, "s1") + "*"); err != nil || len(left) > 0 {
		t.Errorf("files of the session are left: %v, %v", left, err)
	}

	hooked(t, eventOf("s2", "Stop"), "--wake") // takes the message
	for range hook.MostWakes - 1 {
		sent(t, "--agent", "lead", "builder-1", "again")
		hooked(t, eventOf("s2", "Stop"), "--wake")
	}
	hooked(t, eventOf("s2", "PostToolUse")) // a tool permits further wakes
	sent(t, "--agent", "lead", "builder-1", "after a tool")
	if got := hooked(t, eventOf("s2", "Stop"), "--wake"); got.code != hook.ExitBlock {
		t.Errorf("%+v", got)
	}
}

func TestHookWake_ANewListenerEndsTheOneBefore(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "builder-1/builder")
	t.Setenv("BROKERD_AGENT", "builder-1")
	done := make(chan result, 1)
	go func() { done <- hooked(t, eventOf("s1", "Stop"), "--wake") }()
	file := wakeFile(t, "s1")
	until(t, "the listener begins", func() bool { return hook.FileNumber(file) == os.Getpid() })
	if err := os.WriteFile(file, []byte("1"), 0o600); err != nil { // as another process does
		t.Fatal(err)
	}
	if got := <-done; got.code != 0 || got.out+got.err != "" {
		t.Errorf("%+v", got)
	}
}

// No hook of a program that was killed says that its session has ended: the listener does.
func TestHookWake_ReportsThatItsProgramHasEnded(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	t.Setenv("BROKERD_AGENT", "builder-1")
	listener := exec.Command(os.Args[0], "hook", "claude-code", "--within", "5m", "--wake") //nolint:noctx // it ends with its program
	listener.Env, listener.Dir = t.environ(asProgram+"=1"), t.dir
	listener.Stdin = strings.NewReader(strings.ReplaceAll(eventOf("s1", "Stop"), "DIR", t.dir))
	errs, err := listener.StderrPipe()
	if err == nil {
		err = listener.Start()
	}
	apptest.NoError(t, err)
	state := func() any {
		got := ctl(t, "--agent", "", "-o", "json", "agent", "get", "builder-1")
		if got.code != 0 {
			return nil
		}
		return at(t, decode(t, got.out), "agent", "harness")
	}
	until(t, "the listener listens", func() bool { h := state(); return h != nil && at(t, h, "listening") == "wake" })
	if err := errs.Close(); err != nil { // as the end of the program does
		t.Fatal(err)
	}
	if err := listener.Wait(); err != nil {
		t.Errorf("the listener: %v", err)
	}
	if h := state(); at(t, h, "state") != "ended" {
		t.Errorf("the session is %v", h)
	}
}

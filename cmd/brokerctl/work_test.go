package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/supervise"
	"brokerd/internal/apptest"
)

// pipe makes a named pipe: what a command writes to it, the test waits for.
func pipe(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pipe")
	apptest.NoError(t, syscall.Mkfifo(path, 0o600))
	return path
}

// await blocks until a command has written a line to the pipe.
func await(t testing.TB, path string) {
	t.Helper()
	apptest.NoError(t, apptest.Err(os.ReadFile(path)))
}

// takeReleased wants a message that work gave back, "" for any, to be there for others at once and unharmed, and
// finishes it. It waits a little: the broker takes back what it was about to hand to a worker that left.
func takeReleased(t *shell, id string) {
	t.Helper()
	got := fields(t, "--agent", "builder-1", "claim", "--consumer", "another", "--wait", "20s")
	if at(t, got, "attempt") != json.Number("1") || id != "" && at(t, got, "message", "revision") != json.Number(id) {
		t.Errorf("want message %s, released and its first attempt, not %v", id, got)
	}
	must0(t, "--agent", "builder-1", "ack", at(t, got, "claim_id").(string))
}

func TestWork_TheCommandsExitCodeDecides(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead", "builder-1")
	for _, c := range []struct {
		script   string
		flags    []string
		code     int
		state    string
		attempts string
		text     string // in the history
	}{
		{"exit 0", nil, 0, "acked", "0", ""},
		{"exit 75", nil, 75, "pending", "0", ""},
		{"echo no such repository >&2; exit 65", nil, 65, "dead", "1", "exit status 65: no such repository"},
		{"echo lots; echo tests fail >&2; exit 3", nil, 3, "delayed", "1", "exit status 3: tests fail"},
		{"kill -KILL $$", nil, 137, "delayed", "1", "ended by signal: killed"},
		{"sleep 60", []string{"--timeout", "50ms"}, 124, "delayed", "1", "timed out after 50ms"},
	} {
		id := sent(t, "--agent", "lead", "builder-1", c.script)
		args := append([]string{"--agent", "builder-1", "work", "--once"}, c.flags...)
		if got := ctl(t, append(args, "--", "sh", "-c", c.script)...); got.code != c.code {
			t.Errorf("%s: %+v, want code %d", c.script, got, c.code)
		}
		if c.state == "pending" {
			takeReleased(t, id)
			continue
		}
		d := delivery(t, id)
		if at(t, d, "state") != c.state || at(t, d, "attempts") != json.Number(c.attempts) {
			t.Errorf("%s: the delivery is %v, want %s after %s", c.script, d, c.state, c.attempts)
		}
		if c.text != "" && at(t, d, "history", 0, "error") != c.text {
			t.Errorf("%s: the history is %v, want %q", c.script, at(t, d, "history"), c.text)
		}
		if c.state == "delayed" { // it would be the next one's
			must0(t, "message", "cancel", id)
		}
	}
}

func TestWork_TheCommandGetsTheMessageAndItsEnvironment(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	t.Setenv("BROKERD_AGENT", "lead")
	t.Setenv("BROKERD_INCARNATION", "1")
	register(t, "lead/lead")
	id := sent(t, "--session", "default", "--agent", "", "role:builder", "Add login", "--type", "task", "--payload", "9007199254740993", "--task", "K")
	dump := filepath.Join(t.TempDir(), "dump")
	got := ctl(t, "--agent", "builder-1", "work", "--once", "--role", "builder", "--", "sh", "-c",
		`cat; for v in REVISION CLAIM_ID ATTEMPT MAX_ATTEMPTS MAILBOX TYPE SENDER SUBJECT TASK_ID AGENT INCARNATION; do
			eval echo "\"\$BROKERD_$v\"" >> `+dump+`; done; test -n "$BROKERD_MESSAGE_ID" -a -n "$BROKERD_ADDR" -a -n "$BROKERD_THREAD_ID"`)
	if got.code != 0 {
		t.Fatalf("%+v", got)
	}
	if m := decode(t, got.out); at(t, m, "subject") != "Add login" || at(t, m, "payload") != json.Number("9007199254740993") {
		t.Errorf("standard input was %s", got.out)
	}
	lines, err := os.ReadFile(dump)
	apptest.NoError(t, err)
	want := []string{id, id + ".1", "1", "3", "role:builder", "task_assignment", "system", "Add login", "K", "builder-1", ""}
	if got := strings.Split(strings.TrimSuffix(string(lines), "\n"), "\n"); strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("the environment was %q, want %q", got, want)
	}
}

func TestWork_TheEndOfStandardErrorIsKept(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "builder-1")
	id := sent(t, "builder-1", "noisy")
	got := ctl(t, "--agent", "builder-1", "work", "--once", "--", "sh", "-c", `i=0; while [ $i -lt 1000 ]; do echo "line $i é" >&2; i=$((i+1)); done; exit 1`)
	text := at(t, delivery(t, id), "history", 0, "error").(string)
	if !strings.HasPrefix(text, "exit status 1: …") || !strings.HasSuffix(text, "line 999 é") || len(text) > supervise.ErrorTail+64 {
		t.Errorf("%d bytes kept: %q", len(text), text)
	}
	if !strings.Contains(got.err, "line 0 é\n") {
		t.Error("standard error is not passed on")
	}
}

func TestWork_EndsAfterAsManyMessagesAsAsked(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "builder-1")
	var ids []string
	for i := range 5 {
		ids = append(ids, sent(t, "builder-1", fmt.Sprint(i)))
	}
	got := ctl(t, "--agent", "builder-1", "work", "--limit", "3", "--concurrency", "2", "--", "true")
	if got.code != 0 {
		t.Fatalf("%+v", got)
	}
	acked := 0
	for _, id := range ids {
		if at(t, delivery(t, id), "state") == "acked" {
			acked++
		}
	}
	if acked != 3 {
		t.Errorf("%d messages are acknowledged, want 3", acked)
	}
	takeReleased(t, "")
	takeReleased(t, "")
}

// workUntilIdle runs a worker with a short --wait until it has worked: a busy machine may take longer to deliver.
func workUntilIdle(t *shell, command ...string) result {
	t.Helper()
	args := append(append([]string{"--agent", "builder-1"}, command...), "--wait", "100ms", "--", "true")
	for deadline := time.Now().Add(patience); ; {
		if got := ctl(t, args...); got.code != problem.ExitNothing || time.Now().After(deadline) {
			return got
		}
	}
}

func TestWork_NothingCameIsExitCode4(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "builder-1")
	if got := ctl(t, "--agent", "builder-1", "work", "--wait", "20ms", "--", "true"); got.code != 4 || !strings.Contains(got.err, "nothing came within 20ms") {
		t.Errorf("%+v", got)
	}
	sent(t, "builder-1", "one")
	if got := workUntilIdle(t, "work"); got.code != 0 {
		t.Errorf("%+v", got)
	}
}

func TestWork_ItsOwnFailureIsNoOutcomeOfTheCommand(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "builder-1")
	id := sent(t, "builder-1", "one")
	notRunnable := filepath.Join(t.TempDir(), "no-program")
	apptest.NoError(t, os.WriteFile(notRunnable, []byte("\x7fELF nonsense"), 0o700))
	for _, c := range []struct {
		args []string
		code int
	}{
		{[]string{"--agent", "builder-1", "work", "--", notRunnable}, 126},
		{[]string{"--agent", "stranger", "work", "--", "true"}, 125},
		{[]string{"--addr", "127.0.0.1:1", "--agent", "builder-1", "work", "--", "true"}, 125},
	} {
		if got := ctl(t, c.args...); got.code != c.code || !strings.Contains(got.err, "brokerctl: work: ") {
			t.Errorf("%q: %+v", c.args, got)
		}
	}
	if d := delivery(t, id); at(t, d, "state") != "pending" || at(t, d, "attempts") != json.Number("0") {
		t.Errorf("the delivery is %v", d)
	}
}

// working starts a worker, by work or task work, on a script that writes to the pipe once it is
// ready. It returns the signals that end the worker.
func working(t *shell, command, script string, flags ...string) (signals chan os.Signal, ended <-chan result) {
	t.Helper()
	signals = make(chan os.Signal, 2)
	done := make(chan result, 1)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	ready := pipe(t)
	args := append(append([]string{"--agent", "builder-1"}, strings.Fields(command)...), flags...)
	go func() {
		done <- t.invoke(ctx, "", signals, append(args, "--", "sh", "-c", strings.ReplaceAll(script, "READY", "echo > "+ready))...)
	}()
	await(t, ready)
	return signals, done
}

func TestWork_ASignalIsPassedOnAndWhatWasNotFinishedGoesBack(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "builder-1")
	for _, c := range []struct {
		script string
		state  string
	}{
		{`trap 'exit 1' INT; READY; while :; do sleep 0.01; done`, "pending"},
		{`trap 'exit 0' INT; READY; while :; do sleep 0.01; done`, "acked"},
	} {
		id := sent(t, "builder-1", "one")
		signals, ended := working(t, "work", c.script)
		signals <- os.Interrupt
		if got := <-ended; got.code != 0 {
			t.Errorf("%s: %+v", c.script, got)
		}
		if c.state == "pending" {
			takeReleased(t, id)
		} else if d := delivery(t, id); at(t, d, "state") != c.state {
			t.Errorf("%s: the delivery is %v, want %s", c.script, d, c.state)
		}
	}
}

func TestWork_ASecondSignalKills(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "builder-1")
	sent(t, "builder-1", "one")
	signals, ended := working(t, "work", `trap '' INT TERM; READY; while :; do sleep 0.01; done`, "--once")
	signals <- syscall.SIGTERM
	signals <- syscall.SIGTERM
	if got := <-ended; got.code != 137 {
		t.Errorf("%+v", got)
	}
}

func TestWork_ALostClaimStopsTheCommand(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "builder-1")
	id := sent(t, "builder-1", "one")
	_, ended := working(t, "work", `READY; exec sleep 60`, "--once")
	must0(t, "--agent", "builder-1", "ack", id) // settled by somebody else
	if got := <-ended; got.code != 6 || !strings.Contains(got.err, "was lost") {
		t.Errorf("%+v", got)
	}
}

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"brokerd/internal/apptest"
)

func TestTaskWork_TheExitCodeDecides(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	for i, c := range []struct {
		script string
		code   int
		state  string
		failed string
		text   string
	}{
		{"exit 0", 0, "done", "0", ""},
		{"exit 75", 75, "ready", "0", ""},
		{"echo broken >&2; exit 65", 65, "failed", "1", "exit status 65: broken"},
		{"echo tests fail >&2; exit 3", 3, "ready", "1", "exit status 3: tests fail"},
		{"kill -9 $$", 137, "ready", "1", "ended by signal: killed"},
	} {
		id := fmt.Sprintf("job-%d", i)
		planned(t, "tasks: [{id: "+id+", title: The job}]")
		got := ctl(t, "--agent", "builder-1", "task", "work", "--once", "--", "sh", "-c", c.script)
		if got.code != c.code {
			t.Errorf("%s: %+v, want code %d", c.script, got, c.code)
		}
		task := at(t, fields(t, "task", "get", id), "task")
		if at(t, task, "state") != c.state || at(t, task, "attempts") != json.Number(c.failed) || at(t, task, "error") != c.text {
			t.Errorf("%s: %v, want %s after %s failures with %q", c.script, task, c.state, c.failed, c.text)
		}
		if c.text != "" && !strings.Contains(got.err, "brokerctl: task "+id+" ") {
			t.Errorf("%s: %q", c.script, got.err)
		}
		ctl(t, "task", "cancel", id) // if it is ready, it would be claimed next
	}
}

func TestTaskWork_TheCommandGetsTheTaskAndItsEnvironment(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	planned(t, "tasks: [{id: job, title: The job, description: All of it., labels: {a: b}, max_attempts: 7}, {id: other, title: Another}]")
	dump := filepath.Join(t.TempDir(), "dump")
	got := ctl(t, "--agent", "builder-1", "task", "work", "--once", "--label", "a=b", "--", "sh", "-c",
		`cat; for v in TASK_ID TASK_TITLE ATTEMPT MAX_ATTEMPTS AGENT ROLE FENCE; do eval echo "\"\$BROKERD_$v\"" >> `+dump+`; done`)
	if got.code != 0 {
		t.Fatalf("%+v", got)
	}
	input := decode(t, got.out)
	if at(t, input, "id") != "job" || at(t, input, "description") != "All of it." {
		t.Errorf("standard input was %s", got.out)
	}
	lines, err := os.ReadFile(dump)
	apptest.NoError(t, err)
	want := "job|The job|1|7|builder-1|builder|" + string(at(t, input, "fence").(json.Number))
	if got := strings.ReplaceAll(strings.TrimSpace(string(lines)), "\n", "|"); got != want {
		t.Errorf("the environment was %q, want %q", got, want)
	}
}

func TestTaskWork_ItRunsUntilItsLimitAndStoresResults(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	planned(t, "tasks: [{id: a, title: A}, {id: b, title: B, depends_on: [a]}, {id: c, title: C, depends_on: [b]}, {id: d, title: D, depends_on: [c]}]")
	got := ctl(t, "--agent", "builder-1", "task", "work", "--limit", "3", "--concurrency", "2", "--result", "--", "sh", "-c", "echo finished $BROKERD_TASK_ID")
	if got.code != 0 || got.out != "finished a\nfinished b\nfinished c\n" {
		t.Fatalf("%+v", got)
	}
	if result := at(t, fields(t, "task", "get", "b"), "task", "result"); result != "finished b\n" {
		t.Errorf("the result is %q", result)
	}
	if state := taskState(t, "d"); state != "ready" {
		t.Errorf("d is %v", state)
	}
	if got := workUntilIdle(t, "task", "work"); got.code != 0 || taskState(t, "d") != "done" {
		t.Errorf("%+v", got)
	}
	if got := ctl(t, "--agent", "builder-1", "task", "work", "--wait", "20ms", "--", "true"); got.code != 4 {
		t.Errorf("%+v", got)
	}
}

func TestTaskWork_ResumeBeginsWithTheTaskThatTheAgentHolds(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	planned(t, "tasks: [{id: urgent, title: Urgent, priority: 9}, {id: held, title: Held}]")
	must0(t, "--agent", "builder-1", "task", "claim", "held")
	got := ctl(t, "--agent", "builder-1", "task", "work", "--resume", "--limit", "2", "--", "sh", "-c", "echo $BROKERD_TASK_ID")
	if got.code != 0 || got.out != "held\nurgent\n" {
		t.Errorf("%+v", got)
	}
}

func TestTaskWork_AnInterruptedCommandReturnsItsTask(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	planned(t, "tasks: [{id: job, title: The job}]")
	signals, ended := working(t, "task work", `trap 'exit 1' INT; READY; while :; do sleep 0.01; done`)
	signals <- os.Interrupt
	if got := <-ended; got.code != 0 {
		t.Errorf("%+v", got)
	}
	if task := at(t, fields(t, "task", "get", "job"), "task"); at(t, task, "state") != "ready" || at(t, task, "attempts") != json.Number("0") {
		t.Errorf("%v", task)
	}
	signals, ended = working(t, "task work", `trap '' INT TERM; READY; while :; do sleep 0.01; done`, "--once")
	signals <- syscall.SIGTERM
	signals <- syscall.SIGTERM
	if got := <-ended; got.code != 137 {
		t.Errorf("%+v", got)
	}
}

func TestTaskWork_ACancelledTaskStopsItsCommand(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	planned(t, "tasks: [{id: job, title: The job}]")
	_, ended := working(t, "task work", `READY; exec sleep 60`, "--once")
	must0(t, "--agent", "lead", "task", "cancel", "job")
	if got := <-ended; got.code != 6 || !strings.Contains(got.err, "the claim of task job was lost; the command was stopped") {
		t.Errorf("%+v", got)
	}
}

func TestTaskWork_BrokerctlWorksInsideTheCommand(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	planned(t, "tasks: [{id: job, title: The job}]")
	self, err := os.Executable()
	apptest.NoError(t, err)
	t.Setenv("BROKERCTL", self)
	t.Setenv(asProgram, "1")
	got := ctl(t, "--agent", "builder-1", "task", "work", "--once", "--", "sh", "-c", `"$BROKERCTL" task update --progress 0.5 --note half && "$BROKERCTL" task complete --result inside`)
	if got.code != 0 || !strings.Contains(got.out, "completed job") {
		t.Errorf("%+v", got)
	}
	if task := at(t, fields(t, "task", "get", "job"), "task"); at(t, task, "state") != "done" || at(t, task, "result") != "inside" {
		t.Errorf("%v", task)
	}
}

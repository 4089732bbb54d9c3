package main

import (
	"encoding/json"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"brokerd/internal/app"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

// number is a number out of JSON as it is written.
func number(v any) string { return string(v.(json.Number)) }

func TestStatus_FitsOnOneScreen(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	must0(t, "session", "configure", "--send-rate", "0")
	long := strings.Repeat("n", 120)
	register(t, "lead/lead", "builder-1/builder")
	for i := range 30 {
		register(t, long+strconv.Itoa(i)+"/"+long)
		sent(t, "--agent", "lead", long+strconv.Itoa(i), "work")
	}
	sent(t, "--agent", "lead", "role:painter", "work")
	must0(t, "--agent", "builder-1", "lock", "acquire", "src/", "--holder", "1")
	ctl(t, "--agent", "builder-1", "lock", "acquire", "src/", "--holder", "2", "--keep")
	out := t.invokeOn(t.Context(), 80, "", nil, "status").out
	lines := strings.Split(strings.TrimRight(out, "\n"), "\n")
	if len(lines) > 23 {
		t.Errorf("%d lines:\n%s", len(lines), out)
	}
	for _, l := range lines {
		if n := utf8.RuneCountInString(l); n > 80 {
			t.Errorf("%d columns: %s", n, l)
		}
	}
	for i, begins := range []string{"stuck      1 error; see brokerctl explain", "worst      mailbox role:painter: 1 message waits in it, and no agent has the ro",
		"session    default: 32 agents", "messages   31 waiting, 0 claimed, 0 dead", "shared     1 lock, 0 tokens held, 1 waiting for them; 0 keys", "broker     brokerd "} {
		if !strings.HasPrefix(lines[i], begins) {
			t.Errorf("%q does not begin with %q", lines[i], begins)
		}
	}
	prompt := withoutFrames(must0(t, "-o", "prompt", "status"))
	if !strings.HasPrefix(prompt, "stuck: 1 error; see brokerctl explain\n") || strings.Count(prompt, "\nmailbox ") != 20 {
		t.Error(prompt)
	}
	got := fields(t, "status")
	for field, want := range map[string]string{"locks": "1", "tokens_held": "0", "tickets": "1", "state_keys": "0", "late_agents": "0", "failed_agents": "0"} {
		if n := number(at(t, got, field)); n != want {
			t.Errorf("%s is %s, want %s", field, n, want)
		}
	}
	must0(t, "session", "create", "empty")
	if out := must0(t, "--session", "empty", "status"); !strings.HasPrefix(out, "stuck      nothing\nsession    empty: 0 agents\n") {
		t.Error(out)
	}
}

func TestStatus_ShowsDamageOfTheDatabaseFirst(tt *testing.T) {
	t := newShell(tt)
	dir := isolate(t)
	start := func() *app.App {
		a, err := app.Start(t.Context(), app.Config{Dir: dir})
		apptest.NoError(t, err)
		return a
	}
	stop := func(a *app.App) {
		apptest.NoError(t, a.Stop(t.Context()))
	}
	stop(start())
	testkit.Ruin(t, filepath.Join(dir, "brokerd.db"), "mailboxes")
	a := start()
	defer stop(a)
	if got := ctl(t, "admin", "check"); got.code != 1 { // after this the broker knows, however far its own check is
		t.Errorf("admin check: %+v", got)
	}
	out := must0(t, "status")
	if !strings.HasPrefix(out, "damaged  ") || !strings.Contains(out, "brokerd check") {
		t.Error(out)
	}
	if got := at(t, fields(t, "status"), "damage"); got == "" {
		t.Error("the JSON does not tell")
	}
}

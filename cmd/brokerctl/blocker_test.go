package main

import (
	"strings"
	"testing"
	"time"

	"brokerd/cmd/brokerctl/internal/problem"
)

func TestBlocker_IsRaisedAcknowledgedAndResolved(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "builder-1/builder", "boss/lead")
	must0(t, "--agent", "builder-1", "task", "create", "The API", "--id", "t1")
	must0(t, "--agent", "builder-1", "task", "claim", "t1")
	raised := fields(t, "--agent", "builder-1", "blocker", "raise", "No access to the test database", "--severity", "high", "--task", "t1", "--on", "role:dba")
	id := at(t, raised, "id").(string)
	if at(t, raised, "severity") != "high" || at(t, raised, "awaited", "role") != "dba" || at(t, raised, "recipients", 0, "role") != "lead" {
		t.Errorf("raised %v", raised)
	}
	if out := must0(t, "blocker", "list"); !strings.Contains(out, "open") || !strings.Contains(out, "No access") || !strings.Contains(out, "role:lead") {
		t.Errorf("list:\n%s", out)
	}
	if out := must0(t, "blocker", "get", id); !strings.Contains(out, "t1, blocked by it") {
		t.Errorf("get:\n%s", out)
	}
	if out := must0(t, "--agent", "boss", "next", "-o", "prompt"); !strings.Contains(out, "No access") {
		t.Errorf("next:\n%s", out)
	}
	if got := ctl(t, "--agent", "builder-1", "blocker", "ack", id); got.code != problem.ExitConflict {
		t.Errorf("its own agent: %+v", got)
	}
	if out := must0(t, "--agent", "boss", "-o", "prompt", "blocker", "ack", id, "on it"); !strings.Contains(out, "blocker resolve "+id) {
		t.Errorf("ack:\n%s", out)
	}
	if got := ctl(t, "--agent", "builder-1", "blocker", "get", id, "--wait", "10ms"); got.code != problem.ExitNothing || !strings.Contains(got.out, "on it") {
		t.Errorf("a wait that ended: %+v", got)
	}
	if out := must0(t, "--agent", "boss", "blocker", "resolve", id, "account created"); !strings.HasPrefix(out, "resolved "+id+" after ") {
		t.Errorf("resolve: %s", out)
	}
	out := must0(t, "blocker", "get", id, "--wait", "1m")
	for _, want := range []string{"resolved", "raised", "notified", "acknowledged", "account created", "blocked for", "t1, was blocked by it"} {
		if !strings.Contains(out, want) {
			t.Errorf("get says nothing of %s:\n%s", want, out)
		}
	}
	if got := ctl(t, "blocker", "list"); got.out != "" || !strings.Contains(got.err, "no blockers") {
		t.Errorf("list: %+v", got)
	}
	if out := must0(t, "blocker", "list", "--all", "--from", "builder-1"); !strings.Contains(out, "by boss") {
		t.Errorf("list --all:\n%s", out)
	}
	if got := ctl(t, "blocker", "get", "b-99999"); got.code != problem.ExitNotFound {
		t.Errorf("an unknown one: %+v", got)
	}
}

func TestBlocker_RaiseWaitsUntilTheAwaitedAgentHasCompleted(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "builder-1/builder", "dba-1/dba")
	done := make(chan result, 1)
	go func() {
		done <- ctl(t, "--agent", "builder-1", "blocker", "raise", "Need the schema", "--on", "dba-1", "--to", "dba-1", "--auto-resolve", "--wait", "1m", "-o", "json")
	}()
	must0(t, "--agent", "dba-1", "claim", "--wait", "25s")
	must0(t, "--agent", "dba-1", "agent", "heartbeat", "--status", "completed")
	select {
	case got := <-done:
		if x := decode(t, got.out); got.code != 0 || at(t, x, "state") != "resolved" || at(t, x, "resolution") != "dba-1 has completed" {
			t.Errorf("raise --wait: %+v", got)
		}
	case <-time.After(patience):
		t.Fatal("raise --wait does not end")
	}
}

func TestBlocker_MistakesAreNamed(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "builder-1/builder")
	for name, c := range map[string]struct {
		args []string
		code int
		says string
	}{
		"everyone":  {[]string{"blocker", "raise", "x", "--to", "everyone"}, problem.ExitUsage, "NAME or role:NAME"},
		"severity":  {[]string{"blocker", "raise", "x", "--severity", "huge"}, problem.ExitUsage, "none of low, medium"},
		"no role":   {[]string{"blocker", "raise", "x", "--to", "role:dba"}, problem.ExitNotFound, `the role "dba"`},
		"no object": {[]string{"blocker", "raise", "x", "--auto-resolve"}, problem.ExitUsage, "neither an agent nor a task"},
	} {
		if got := ctl(t, append([]string{"--agent", "builder-1"}, c.args...)...); got.code != c.code || !strings.Contains(got.err, c.says) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

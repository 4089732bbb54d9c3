package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"

	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/internal/app"
)

func TestAsleep_TheSenderSeesHowLongTheRecipientHasBeenAsleep(tt *testing.T) {
	t := newShell(tt)
	now := time.Now()
	t.now = func() time.Time { return now } // however long the test takes
	clock := clockwork.NewFakeClockAt(now.Add(-20 * time.Minute))
	startBrokerWith(t, func(c *app.Config) { c.Clock = clock })
	register(t, "lead/lead", "builder-1/builder")
	t.Setenv("BROKERD_AGENT", "lead")
	if got := must0(t, "send", "builder-1", "Add login"); strings.Contains(got, "asleep") {
		t.Errorf("at once: %q", got)
	}
	clock.Advance(8 * time.Minute)
	const asleep = "builder-1 has been asleep for 20m"
	for _, output := range []string{"table", "prompt"} {
		got := must0(t, "send", "builder-1", "Add login", "-o", output)
		if !strings.HasSuffix(got, "\n"+asleep+"; it reads this when it runs again\n") {
			t.Errorf("%s: %q", output, got)
		}
	}
	if got := fields(t, "send", "builder-1", "Add login"); at(t, got, "asleep", "agent") != "builder-1" {
		t.Errorf("%v", got)
	}
	if got := fields(t, "send", "role:builder", "Add login"); at(t, got, "asleep") != nil {
		t.Errorf("%v", got)
	}
	list := must0(t, "agent", "list")
	if !strings.Contains(list, "initializing, asleep") && !strings.Contains(list, "idle, asleep") {
		t.Errorf("%q", list)
	}
	one := must0(t, "agent", "get", "builder-1")
	if !strings.Contains(one, "asleep") || !strings.Contains(one, "for 20m") {
		t.Errorf("%q", one)
	}
	done := make(chan result, 1)
	go func() { done <- ctl(t, "ask", "builder-1", "Which branch?", "--wait", "30s") }()
	for {
		select {
		case got := <-done:
			if got.code != problem.ExitNothing || !strings.Contains(got.err, "no answer to ") ||
				!strings.Contains(got.err, "; "+asleep+"; one that") {
				t.Errorf("%+v", got)
			}
			return
		default:
			clock.Advance(time.Second)
			must0(t, "ping") // a pace that leaves the broker time
		}
	}
}

// The server sends heartbeats for an agent that ends its turn, so its lease does not show that it idles.
func TestAsleep_AnIdleMCPAgentIsAsleepAlthoughItsServerSendsHeartbeats(tt *testing.T) {
	t := newShell(tt)
	clock := clockwork.NewFakeClockAt(time.Now().Add(-20 * time.Minute))
	startBrokerWith(t, func(c *app.Config) { c.Clock = clock })
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	register(t, "lead/lead")
	m := startModel(t, "--agent", "builder-1", "--lease", "1s")
	m.call("turn", "", "You are the agent builder-1")
	idle := clock.Now()
	clock.Advance(2 * time.Minute)
	is := func(agent any, field string, want time.Time) bool {
		got, err := time.Parse(time.RFC3339Nano, fmt.Sprint(at(t, agent, "agent", field)))
		return err == nil && got.Equal(want)
	}
	for begin := time.Now(); ; {
		a := fields(t, "--agent", "lead", "agent", "get", "builder-1")
		if is(a, "last_seen", clock.Now()) && is(a, "asleep_since", idle) {
			break
		}
		if time.Since(begin) > patience {
			t.Fatalf("no heartbeat of the server, or asleep otherwise than since %v: %v", idle, a)
		}
	}
	m.call("turn", "")
	clock.Advance(50 * time.Second)
	if got := must0(t, "--agent", "lead", "send", "builder-1", "Add login"); strings.Contains(got, "asleep") {
		t.Errorf("after a turn: %q", got)
	}
}

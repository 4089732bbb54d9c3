package main

import (
	"strings"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"

	"brokerd/internal/app"
)

func TestAsleep_TheSenderSeesHowLongTheRecipientHasBeenAsleep(t *testing.T) {
	clock := clockwork.NewFakeClockAt(time.Now().Add(-20 * time.Minute))
	startBrokerWith(t, func(c *app.Config) { c.Clock = clock })
	register(t, "lead/lead", "builder-1/builder")
	t.Setenv("BROKERD_AGENT", "lead")
	if got := must0(t, "send", "builder-1", "Add login"); strings.Contains(got, "asleep") {
		t.Errorf("at once: %q", got)
	}
	clock.Advance(8 * time.Minute)
	const asleep = "builder-1 has been asleep for 20m"
	for _, output := range []string{"table", "prompt"} {
		if got := must0(t, "send", "builder-1", "Add login", "-o", output); !strings.HasSuffix(got, "\n"+asleep+"; it reads this when it runs again\n") {
			t.Errorf("%s: %q", output, got)
		}
	}
	if got := fields(t, "send", "builder-1", "Add login"); at(t, got, "asleep", "agent") != "builder-1" {
		t.Errorf("%v", got)
	}
	if got := fields(t, "send", "role:builder", "Add login"); at(t, got, "asleep") != nil {
		t.Errorf("%v", got)
	}
	if got := must0(t, "agent", "list"); !strings.Contains(got, "initializing, asleep") && !strings.Contains(got, "idle, asleep") {
		t.Errorf("%q", got)
	}
	if got := must0(t, "agent", "get", "builder-1"); !strings.Contains(got, "asleep") || !strings.Contains(got, "for 20m") {
		t.Errorf("%q", got)
	}
	done := make(chan result, 1)
	go func() { done <- ctl(t, "ask", "builder-1", "Which branch?", "--wait", "30s") }()
	for {
		select {
		case got := <-done:
			if got.code != exitNothing || !strings.Contains(got.err, "no answer to ") || !strings.Contains(got.err, "; "+asleep+"; one that") {
				t.Errorf("%+v", got)
			}
			return
		default:
			clock.Advance(time.Second)
			must0(t, "ping") // a pace that leaves the broker time
		}
	}
}

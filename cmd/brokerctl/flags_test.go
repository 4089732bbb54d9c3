package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"brokerd/cmd/brokerctl/internal/command"
)

func TestDuration_KnowsDaysAndExplainsWhatIsWrong(t *testing.T) {
	const day = 24 * time.Hour
	for text, want := range map[string]time.Duration{
		"0": 0, "0s": 0, "0d": 0, "90s": 90 * time.Second, "1h30m": 90 * time.Minute,
		"1d": day, "2d": 2 * day, "1d12h": 36 * time.Hour,
		"1.5d": 36 * time.Hour, "365d": 365 * day, "-1d": -day,
	} {
		if got, err := command.ParseDuration(text); err != nil || got != want {
			t.Errorf("%q: %v, %v, want %v", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"5": `"5" has no unit; write 5s, 5m, 5h or 5d`, "": "not a duration", "d": "not a duration", "1w": "not a duration",
		"1d1d": "not a duration", "200000d": "not a duration", "soon": "not a duration", "12h1d": "not a duration",
	} {
		if got, err := command.ParseDuration(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v, want %q", text, got, err, want)
		}
	}
}

func TestDuration_IsTheSameForEveryOption(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead")
	id := sent(t, "--agent", "lead", "lead", "x", "--ttl", "1d12h")
	if got := at(t, fields(t, "message", "get", id), "message", "ttl"); got != "36h" {
		t.Errorf("the message's time to live is %v", got)
	}
	if got := fields(t, "message", "list", "--since", "1d"); at(t, got, "message", "subject") != "x" {
		t.Errorf("%v", got)
	}
	for _, args := range []string{
		"send lead x --delay 5", "send lead x --ttl 5", "claim --wait 5", "lock acquire a --for 5", "state put k v --ttl 5",
	} {
		got := ctl(t, append([]string{"--agent", "lead"}, strings.Fields(args)...)...)
		if got.code != 2 || !strings.Contains(got.err, `: "5" has no unit; write 5s, 5m, 5h or 5d`) {
			t.Errorf("%s: %+v", args, got)
		}
	}
}

func TestFlags_TheLastOfARepeatedOneCounts(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead")
	for range 3 {
		sent(t, "--agent", "lead", "lead", "x", "--ttl", "5m", "--ttl", "2h", "--priority", "low", "--priority", "high")
	}
	args := []string{"message", "list", "--newest", "--newest", "--limit", "3", "--limit", "1", "-o", "json"}
	got := fields(t, append([]string{"--agent", "lead"}, args...)...) // one object
	for field, want := range map[string]string{"ttl": "2h", "priority": "7"} {
		if text := fmt.Sprint(at(t, got, "message", field)); text != want {
			t.Errorf("%s: %s, want %s", field, text, want)
		}
	}
}

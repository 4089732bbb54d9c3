package main

import (
	"strings"
	"testing"
)

func TestAdminMove_MovesWhatWaits(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	first, second := sent(t, "role:bulider", "one"), sent(t, "role:bulider", "two")
	if out := must0(t, "admin", "move", "role:bulider", "role:builder", "--id", second, "--reason", "a typing error"); out != "moved 1 message to role:builder; 1 still in role:bulider\n" {
		t.Error(out)
	}
	if out := must0(t, "admin", "move", "role:bulider", "builder-1"); out != "moved 1 message to builder-1\n" {
		t.Error(out)
	}
	for _, id := range []string{first, second} {
		must0(t, "--agent", "builder-1", "claim", id)
	}
	for _, c := range []struct {
		args string
		code int
		text string
	}{
		{"admin move role:bulider", 2, "the mailbox that they go to"},
		{"admin move role:bulider role:bilder", 3, "did you mean builder"},
		{"admin move role:bulider builder-1 --id " + first, 5, "does not wait in role:bulider"},
		{"admin move role:bulider builder-1 --request-id 0197f3a0-5c4e-7b1d-8f21-9a0b1c2d3e4f", 2, "--request-id needs --id"},
		{"--agent builder-1 admin move role:bulider builder-1", 7, ""},
	} {
		got := ctl(t, strings.Fields(c.args)...)
		if got.code != c.code || !strings.Contains(got.err, c.text) {
			t.Errorf("%s: %+v, want %d and %q", c.args, got, c.code, c.text)
		}
	}
}

package main

import (
	"strings"
	"testing"
)

func TestAdminPrune_CountsAndRefuses(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	must0(t, "message", "cancel", sent(t, "role:builder", "one"))
	for _, c := range []struct {
		args string
		code int
		text string
	}{
		{"admin prune --older-than 24h", 0, "removed 0 messages, 0 dead letters, 0 events and 0 pieces of work"},
		{"admin prune --older-than 1h --kind dead-letters --kind events --session default --dry-run", 0, "would remove 0 messages, "},
		{"admin prune", 2, "older-than"},
		{"admin prune --older-than 24h --kind locks", 2, "none of messages, dead_letters, events, work"},
		{"admin prune --older-than 24h --session defaul", 3, "did you mean default"},
		{"--agent builder-1 admin prune --older-than 24h", 7, ""},
	} {
		got := ctl(t, strings.Fields(c.args)...)
		if got.code != c.code || !strings.Contains(got.out+got.err, c.text) {
			t.Errorf("%s: %+v, want %d and %q", c.args, got, c.code, c.text)
		}
	}
}

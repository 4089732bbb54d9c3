package main

import (
	"context"
	"os"
	"strings"
	"syscall"
	"testing"
)

func TestInbox_FollowsWaitsForATypeAndFinishes(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead", "builder-1")
	t.Setenv("BROKERD_AGENT", "builder-1")
	one := sent(t, "--agent", "lead", "builder-1", "one")
	if out := must0(t, "inbox", "--follow", "--cursor", "main", "--limit", "1", "-o", "prompt"); !strings.Contains(out, "Subject: one\n") {
		t.Errorf("%s", out)
	}
	if got := ctl(t, "inbox", "--cursor", "main"); got.code != 4 {
		t.Errorf("%+v", got)
	}
	if got := ctl(t, "inbox", "--type", "review", "--wait", "1ms"); got.code != 4 || !strings.Contains(got.err, "nothing came within 1ms") {
		t.Errorf("%+v", got)
	}
	two := sent(t, "--agent", "lead", "builder-1", "two", "--type", "review")
	if got := fields(t, "inbox", "--type", "review", "--wait", "10s"); at(t, got, "message", "subject") != "two" {
		t.Errorf("%v", got)
	}
	if out := must0(t, "inbox", "--auto-ack", "-o", "json"); strings.Count(out, "\n") != 2 {
		t.Errorf("%s", out)
	}
	for _, id := range []string{one, two} {
		if got := delivery(t, id); at(t, got, "state") != "acked" {
			t.Errorf("%v", got)
		}
	}
	three := sent(t, "--agent", "lead", "builder-1", "three")
	must0(t, "receive", "--follow", "--auto-ack", "--limit", "1")
	if got := delivery(t, three); at(t, got, "state") != "acked" {
		t.Errorf("%v", got)
	}
	signals := make(chan os.Signal, 1)
	signals <- syscall.SIGTERM
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if got := t.invoke(ctx, "", signals, "inbox", "--follow"); got.code != 143 {
		t.Errorf("%+v", got)
	}
	if got := ctl(t, "inbox", "--follow", "--mark-read"); got.code != 2 || !strings.Contains(got.err, "exclude each other") {
		t.Errorf("%+v", got)
	}
}

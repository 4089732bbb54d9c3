package main

import (
	"strings"
	"testing"
)

func TestReview_VerdictIsTheExitCode(t *testing.T) {
	startBroker(t)
	register(t, "builder-1/builder", "critic-1/critic")
	submit := func(more ...string) result {
		t.Helper()
		return ctl(t, append([]string{"--agent", "builder-1", "review", "submit", "login", "critic-1", "The login page"}, more...)...)
	}
	if got := submit("--wait", "0"); got.code != 0 || !strings.Contains(got.out, "submitted by builder-1") {
		t.Fatalf("submitted without waiting: %+v", got)
	}
	if got := submit("--wait", "1s"); got.code != 4 || !strings.Contains(got.err, "no verdict on login within 1s; run the same command again") {
		t.Fatalf("not decided: %+v", got)
	}
	if got := ctl(t, "--agent", "builder-1", "review", "submit", "own", "builder-1"); got.code != 2 || !strings.Contains(got.err, "cannot review it") {
		t.Errorf("submitted to itself: %+v", got)
	}
	if out := must0(t, "review", "list"); !strings.Contains(out, "login  1 of 3  submitted  builder-1  critic-1") {
		t.Errorf("%s", out)
	}
	if out := must0(t, "--agent", "critic-1", "review", "revise", "login", "The error", "of Close"); !strings.Contains(out, "to be revised, says critic-1: The error of Close") {
		t.Errorf("%s", out)
	}
	if got := submit("-o", "json"); got.code != 10 || at(t, decode(t, got.out), "text") != "The error of Close" {
		t.Errorf("to be revised: %+v", got)
	}
	submit("--wait", "1s")
	must0(t, "--agent", "critic-1", "review", "reject", "login")
	if got := submit(); got.code != 11 || !strings.Contains(got.out, "round 2 of 3 of review login: rejected by critic-1") {
		t.Errorf("rejected: %+v", got)
	}
	submit("--wait", "1s")
	must0(t, "--agent", "critic-1", "review", "approve", "login", "-o", "prompt")
	if got := submit(); got.code != 0 || !strings.Contains(got.out, "round 1 of 3 of review login: approved") {
		t.Errorf("approved: %+v", got)
	}
	if got := ctl(t, "--agent", "critic-1", "review", "approve", "login"); got.code != 0 {
		t.Errorf("approved again: %+v", got)
	}
	if got := ctl(t, "--agent", "critic-1", "review", "reject", "login"); got.code != 3 || !strings.Contains(got.err, "critic-1 has decided round 1: approved") {
		t.Errorf("decided otherwise: %+v", got)
	}
	if got := ctl(t, "review", "list"); got.out != "" || !strings.Contains(got.err, "nothing waits for a review") {
		t.Errorf("%+v", got)
	}
	if out := must0(t, "review", "list", "--all", "-o", "json"); at(t, decode(t, out), "state") != "approved" {
		t.Errorf("%s", out)
	}
	if out := must0(t, "review", "get", "login"); !strings.Contains(out, "The login page") || !strings.Contains(out, "approved by critic-1") {
		t.Errorf("%s", out)
	}
	if got := ctl(t, "review", "get", "nothing"); got.code != 3 {
		t.Errorf("%+v", got)
	}
	if got := submit("--wait", "1s"); got.code != 4 {
		t.Errorf("a new review is decided at once: %+v", got)
	}
}

func TestReview_BadCommandLines(t *testing.T) {
	isolate(t)
	for _, args := range [][]string{
		{"review", "submit", "login"},
		{"review", "submit", "login", "channel:general"},
		{"review", "approve"},
		{"review", "revise", "login", "text", "--body", "text"},
	} {
		if got := ctl(t, append([]string{"--agent", "a"}, args...)...); got.code != exitUsage {
			t.Errorf("%v: %+v", args, got)
		}
	}
}

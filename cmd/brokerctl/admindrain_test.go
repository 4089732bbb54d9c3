package main

import (
	"strings"
	"testing"
)

func TestAdminDrain_WaitsForClaimsAndResumes(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	first, second := sent(t, "builder-1", "one"), sent(t, "builder-1", "two")
	must0(t, "--agent", "lead", "task", "create", "build it", "--id", "t1")
	must0(t, "--agent", "builder-1", "claim", first)
	got := ctl(t, "admin", "drain", "--wait", "10ms")
	if got.code != 4 || !strings.Contains(got.out, "claimed: 1 message and 0 tasks; the broker delivers no new work") ||
		!strings.Contains(got.out, "builder-1 in session default: 1 message and 0 tasks, the oldest claimed") ||
		!strings.Contains(got.err, "1 claim has not ended within 10ms; the drain stays: brokerctl admin drain --resume ends it") {
		t.Errorf("with a claim: %+v", got)
	}
	const why = "an operator drains the broker, which delivers no new work"
	if got := ctl(t, "--agent", "builder-1", "claim", second); got.code != 5 || !strings.Contains(got.err, why) {
		t.Errorf("claim of a message: %+v", got)
	}
	if got := ctl(t, "--agent", "lead", "claim"); got.code != 4 || !strings.Contains(got.err, "nothing to claim: "+why) {
		t.Errorf("claim: %+v", got)
	}
	if got := ctl(t, "--agent", "builder-1", "task", "claim"); got.code != 4 || !strings.Contains(got.err, "no task to claim: "+why) {
		t.Errorf("claim of a task: %+v", got)
	}
	if got := must0(t, "status"); !strings.Contains(got, "the broker delivers no new work") {
		t.Errorf("status: %s", got)
	}
	if got := must0(t, "explain"); !strings.Contains(got, "brokerctl admin drain --resume") {
		t.Errorf("explain: %s", got)
	}
	must0(t, "--agent", "builder-1", "ack", first)
	if got := must0(t, "admin", "drain"); !strings.HasPrefix(got, "nothing is claimed; the broker delivers no new work (since ") {
		t.Errorf("without a claim: %s", got)
	}
	if got := ctl(t, "--agent", "builder-1", "admin", "drain"); got.code != 7 {
		t.Errorf("by an agent: %+v", got)
	}
	if got := ctl(t, "admin", "drain", "--resume", "--wait", "1s"); got.code != 2 {
		t.Errorf("both options: %+v", got)
	}
	if got := must0(t, "admin", "drain", "--resume"); got != "the broker delivers work\n" {
		t.Errorf("resume: %q", got)
	}
	must0(t, "--agent", "builder-1", "claim", second)
	must0(t, "--agent", "builder-1", "task", "claim")
}

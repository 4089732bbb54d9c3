package main

import (
	"encoding/json"
	"strings"
	"testing"

	"brokerd/cmd/brokerctl/internal/problem"
)

func TestReview_VerdictIsTheExitCode(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "builder-1/builder", "critic-1/critic")
	submit := func(more ...string) result {
		t.Helper()
		return ctl(t, append([]string{"--agent", "builder-1", "review", "submit", "login", "critic-1", "The login page"}, more...)...)
	}
	if got := submit("--wait", "0"); got.code != 0 || !strings.Contains(got.out, "round 1 of 3: submitted by builder-1, waits for critic-1") {
		t.Fatalf("submitted without waiting: %+v", got)
	}
	if got := submit("--wait", "10ms"); got.code != 4 || !strings.Contains(got.err, "within 10ms; to wait on: brokerctl --agent builder-1 decision get d-") {
		t.Fatalf("not decided: %+v", got)
	}
	if got := ctl(t, "--agent", "builder-1", "review", "submit", "own", "builder-1"); got.code != 2 || !strings.Contains(got.err, "cannot decide it") {
		t.Errorf("submitted to itself: %+v", got)
	}
	if out := must0(t, "review", "list"); !strings.Contains(out, "login") || !strings.Contains(out, "1 of 3  open") {
		t.Errorf("%s", out)
	}
	out := must0(t, "--agent", "critic-1", "review", "revise", "login", "The error", "of Close", "--feedback", "blocker: src/a.go:42: It is dropped", "--feedback", "Good names")
	if !strings.Contains(out, "to be revised, says critic-1: The error of Close") {
		t.Errorf("%s", out)
	}
	got := ctl(t, "--agent", "builder-1", "review", "get", "login", "--wait", "90s", "-o", "json")
	if got.code != 10 || at(t, decode(t, got.out), "rounds", 0, "feedback", 0, "line") != json.Number("42") || at(t, decode(t, got.out), "rounds", 0, "feedback", 0, "severity") != "blocker" ||
		at(t, decode(t, got.out), "rounds", 0, "feedback", 1, "severity") != "major" {
		t.Errorf("to be revised: %+v", got)
	}
	id, _ := at(t, decode(t, got.out), "id").(string)
	if got := ctl(t, "--agent", "builder-1", "decision", "resubmit", id, "--body", "-"); got.code != 2 || !strings.Contains(got.err, "standard input is empty") {
		t.Errorf("resubmitted without content: %+v", got)
	}
	if got := submit("--wait", "0"); !strings.Contains(got.out, "round 2 of 3: submitted") {
		t.Errorf("resubmitted: %+v", got)
	}
	must0(t, "--agent", "critic-1", "review", "reject", "login")
	if got := ctl(t, "--agent", "builder-1", "review", "get", "login", "--wait", "90s"); got.code != 11 || !strings.Contains(got.out, "review login, round 2 of 3: rejected by critic-1") {
		t.Errorf("rejected: %+v", got)
	}
	submit("--wait", "0")
	must0(t, "--agent", "critic-1", "review", "approve", "login", "-o", "prompt")
	if got := ctl(t, "--agent", "builder-1", "review", "get", "login", "--wait", "90s"); got.code != 0 || !strings.Contains(got.out, "round 1 of 3: approved by critic-1") {
		t.Errorf("approved: %+v", got)
	}
	if got := ctl(t, "--agent", "critic-1", "review", "reject", "login"); got.code != 5 || !strings.Contains(got.err, "is already decided: the verdict of critic-1 on round 1 is approve") {
		t.Errorf("decided otherwise: %+v", got)
	}
	if got := ctl(t, "review", "list"); got.out != "" || !strings.Contains(got.err, "no reviews") {
		t.Errorf("%+v", got)
	}
	if out := must0(t, "review", "list", "--all", "-o", "json"); at(t, decode(t, strings.SplitN(out, "\n", 2)[0]), "verdict") != "approve" {
		t.Errorf("%s", out)
	}
	if out := must0(t, "review", "get", "login"); !strings.Contains(out, "The login page") || !strings.Contains(out, "round 1: approve by critic-1") {
		t.Errorf("%s", out)
	}
	if got := ctl(t, "review", "get", "nothing"); got.code != 3 {
		t.Errorf("%+v", got)
	}
}

func TestReview_PassesTheTokenThatTheProducerHolds(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "builder-1/builder", "critic-1/critic")
	submit := []string{"--agent", "builder-1", "review", "submit", "login", "critic-1", "--pass-token", "--wait", "0"}
	if got := ctl(t, submit...); got.code != 5 || !strings.Contains(got.err, "brokerctl token acquire producer_critic login") {
		t.Errorf("without the token: %+v", got)
	}
	must0(t, "--agent", "builder-1", "token", "acquire", "producer_critic", "login")
	must0(t, submit...)
	if k := fields(t, "token", "get", "producer_critic", "login"); at(t, k, "token", "agent") != "critic-1" {
		t.Errorf("the token after the submission: %v", k)
	}
}

func TestReview_LaterRoundBeginsToPassTheToken(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "builder-1/builder", "critic-1/critic")
	submit := []string{"--agent", "builder-1", "review", "submit", "login", "critic-1", "--wait", "0"}
	must0(t, submit...)
	must0(t, "--agent", "builder-1", "token", "acquire", "producer_critic", "login")
	submit = append(submit, "--pass-token")
	if got := ctl(t, submit...); got.code != 5 || !strings.Contains(got.err, "round 1 of d-") || !strings.Contains(got.err, "it passes no token: wait for the verdict") {
		t.Errorf("while a round without the token is open: %+v", got)
	}
	must0(t, "--agent", "critic-1", "review", "revise", "login", "again")
	must0(t, submit...)
	if k := fields(t, "token", "get", "producer_critic", "login"); at(t, k, "token", "agent") != "critic-1" {
		t.Errorf("the token in round 2: %v", k)
	}
	must0(t, "--agent", "critic-1", "review", "revise", "login", "again")
	id := at(t, fields(t, "review", "get", "login"), "id").(string)
	must0(t, "--agent", "builder-1", "decision", "resubmit", id, "--pass-token")
	if k := fields(t, "token", "get", "producer_critic", "login"); at(t, k, "token", "agent") != "critic-1" {
		t.Errorf("the token in round 3: %v", k)
	}
}

func TestPlan_IsSubmittedRevisedAndApproved(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "builder-1/builder", "lead/lead")
	must0(t, "--agent", "builder-1", "plan", "submit", "schema", "lead", "Split the table", "--body", "Step 1", "--wait", "0")
	must0(t, "--agent", "lead", "plan", "revise", "schema", "--reason", "Which index?")
	if out := must0(t, "--agent", "builder-1", "next", "-o", "prompt"); !strings.Contains(out, "owes the next round of decision d-") ||
		!strings.Contains(out, " (revising) to lead → brokerctl --agent builder-1 decision resubmit d-4 --body BODY") ||
		!strings.Contains(out, ": plan: Split the table\n") {
		t.Errorf("next of the member: %s", out)
	}
	must0(t, "--agent", "builder-1", "plan", "submit", "schema", "--body", "Step 1, index (a, b)", "--wait", "0")
	must0(t, "--agent", "lead", "plan", "approve", "schema")
	if out := must0(t, "plan", "get", "schema", "-o", "prompt"); !strings.Contains(out, "index (a, b)") || !strings.Contains(out, "round 2: approve by lead") {
		t.Errorf("%s", out)
	}
}

func TestAgentShutdown_PromptOffersTheVerdictsNotAck(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	id := at(t, fields(t, "--agent", "lead", "agent", "shutdown", "builder-1", "The work", "is done"), "id").(string)
	if out := must0(t, "--agent", "builder-1", "inbox", "--summary"); !strings.Contains(out, "To answer it: brokerctl --agent builder-1 decision accept "+id) {
		t.Errorf("the summary of the inbox: %s", out)
	}
	out := must0(t, "--agent", "builder-1", "next", "-o", "prompt")
	for _, command := range []string{"decision accept " + id, "decision defer " + id + " 30m", "decision reject " + id} {
		if !strings.Contains(out, command) {
			t.Errorf("next does not offer %s:\n%s", command, out)
		}
	}
	if strings.Contains(out, " ack ") {
		t.Errorf("next offers ack:\n%s", out)
	}
	if out := must0(t, "--agent", "builder-1", "decision", "defer", id, "10m", "The tests", "still run"); !strings.Contains(out, "deferred by builder-1: The tests still run") {
		t.Errorf("%s", out)
	}
	if got := ctl(t, "--agent", "lead", "decision", "get", id, "--wait", "90s"); got.code != 10 {
		t.Errorf("deferred: %+v", got)
	}
	must0(t, "--agent", "lead", "agent", "shutdown", "builder-1")
	must0(t, "--agent", "builder-1", "decision", "reject", "builder-1")
	if got := ctl(t, "--agent", "lead", "decision", "get", "builder-1", "--wait", "90s"); got.code != 11 {
		t.Errorf("rejected: %+v", got)
	}
	must0(t, "--agent", "lead", "agent", "shutdown", "builder-1")
	must0(t, "--agent", "builder-1", "decision", "accept", "builder-1")
	if got := ctl(t, "--agent", "lead", "decision", "get", "builder-1", "--wait", "90s"); got.code != 0 {
		t.Errorf("accepted: %+v", got)
	}
	if got := ctl(t, "--agent", "builder-1", "agent", "shutdown", "lead"); got.code != 7 {
		t.Errorf("asked by an agent that does not direct: %+v", got)
	}
}

func TestDecision_OpensDecidesAndCancels(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "builder-1/builder", "lead/lead")
	open := func(title string) string {
		t.Helper()
		return at(t, fields(t, "--agent", "builder-1", "decision", "open", "role:lead", title, "--verdict", "yes", "--verdict", "no"), "id").(string)
	}
	id := open("Ship it?")
	if got := ctl(t, "--agent", "lead", "decision", "decide", id, "maybe"); got.code != 2 || !strings.Contains(got.err, "the verdicts of "+id+" are yes, no") {
		t.Errorf("another verdict: %+v", got)
	}
	if got := ctl(t, "--agent", "lead", "decision", "decide", id, "yess"); !strings.Contains(got.err, "are yes, no; did you mean yes?") {
		t.Errorf("a misspelled verdict: %+v", got)
	}
	if out := must0(t, "--agent", "lead", "decision", "decide", id, "no", "Friday"); !strings.Contains(out, ": no by lead: Friday") {
		t.Errorf("%s", out)
	}
	id = open("And now?")
	if out := must0(t, "decision", "list", "--owed-by", "lead"); !strings.Contains(out, id) || !strings.Contains(out, "And now?") {
		t.Errorf("%s", out)
	}
	if out := must0(t, "--agent", "builder-1", "decision", "cancel", id, "too late"); !strings.Contains(out, "cancelled: too late") {
		t.Errorf("%s", out)
	}
	if got := ctl(t, "--agent", "builder-1", "decision", "get", id, "--wait", "90s"); got.code != 5 {
		t.Errorf("a wait for a cancelled decision: %+v", got)
	}
}

func TestReview_BadCommandLines(tt *testing.T) {
	t := newShell(tt)
	isolate(t)
	for _, args := range [][]string{
		{"review", "submit"},
		{"review", "submit", "login", "channel:general"},
		{"review", "approve"},
		{"review", "revise", "login", "text", "--reason", "text"},
		{"decision", "decide", "d-1"},
		{"decision", "defer", "d-1", "soon"},
		{"decision", "open"},
		{"agent", "shutdown"},
	} {
		if got := ctl(t, append([]string{"--agent", "a"}, args...)...); got.code != problem.ExitUsage {
			t.Errorf("%v: %+v", args, got)
		}
	}
}

func TestReviewSubmit_WhileTheRoundIsOpenKeepsItsContent(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "builder-1/builder", "critic-1/critic", "critic-2/critic")
	submit := func(words ...string) result {
		return ctl(t, append([]string{"--agent", "builder-1", "review", "submit", "--wait", "0", "login"}, words...)...)
	}
	if got := submit("critic-1", "y", "--body", "first"); got.code != 0 || got.err != "" {
		t.Fatalf("%+v", got)
	}
	for _, same := range [][]string{{}, {"critic-1"}, {"critic-1", "y"}, {"critic-1", "y", "--body", "first"}} {
		if got := submit(same...); got.code != 0 || !strings.Contains(got.err, "is open, and its receiver and content are unchanged") {
			t.Errorf("the same content again, as %q: %+v", same, got)
		}
	}
	for _, other := range [][]string{{"critic-1", "z"}, {"critic-1", "y", "--body", "second"}, {"critic-2", "y"}} {
		if got := submit(other...); got.code != 5 || !strings.Contains(got.err, "decision cancel") || got.out != "" {
			t.Errorf("other content, as %q: %+v", other, got)
		}
	}
}

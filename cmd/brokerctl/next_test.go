package main

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestNext_ShowsWhatIsHeldAndElseTakesOne(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	as := func(args ...string) []string { return append([]string{"--agent", "builder-1"}, args...) }
	if got := ctl(t, as("next")...); got.code != 4 || !strings.Contains(got.err, "nothing to claim") || got.out != "" {
		t.Errorf("%+v", got)
	}
	first, second := sent(t, "--agent", "lead", "builder-1", "one"), sent(t, "--agent", "lead", "role:builder", "two")
	out := must0(t, as("next", "-o", "prompt")...)
	if !strings.Contains(out, "claim "+first+".1, attempt 1 of 3, yours for 29m ===") && !strings.Contains(out, "claim "+first+".1, attempt 1 of 3, yours for 30m ===") {
		t.Errorf("%s", out)
	}
	if !strings.Contains(out, "Subject: one\n") || !strings.HasSuffix(out, "Next: brokerctl --agent builder-1 reply "+first+
		".1 ANSWER --ack when done; nack "+first+".1 --error ERROR if it failed; release "+first+".1 to return it\n") {
		t.Errorf("%s", out)
	}
	if n := tokens(out); n > 200 {
		t.Errorf("%d tokens:\n%s", n, out)
	}
	got := fields(t, as("next")...)
	if claims := at(t, got, "claims").([]any); len(claims) != 1 || at(t, got, "claims", 0, "claim_id") != first+".1" || at(t, got, "claims", 0, "resumed") != true {
		t.Errorf("again: %v", got)
	}
	must0(t, as("ack")...)
	got = fields(t, as("next", "--wait", "10s")...)
	if at(t, got, "claims", 0, "claim_id") != second+".1" || at(t, got, "claims", 0, "resumed") != false || at(t, got, "halted") != false {
		t.Errorf("then: %v", got)
	}
	if out := must0(t, as("next", "-o", "table")...); !strings.HasSuffix(out, "\nnext: brokerctl --agent builder-1 reply "+second+
		".1 ANSWER --ack when done; nack "+second+".1 --error ERROR if it failed; release "+second+".1 to return it\n") {
		t.Errorf("%s", out)
	}
}

func TestNext_DirectivesComeFirstWithWhatToDo(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder", "builder-2/builder")
	t.Setenv("BROKERD_AGENT", "builder-1")
	work := sent(t, "--agent", "lead", "builder-1", "work", "--priority", "10")
	must0(t, "--agent", "lead", "agent", "halt", "role:builder", "until", "the build is green")
	out := must0(t, "next", "-o", "prompt")
	if strings.Contains(out, "Subject: work") || strings.Count(out, "halt from lead") != 1 || !strings.Contains(out, "Subject: until the build is green\n") ||
		!strings.Contains(out, "Next: stop working now; nothing but directives comes until a resume. To say that you have seen it: brokerctl ack ") {
		t.Errorf("%s", out)
	}
	must0(t, "ack")
	if got := ctl(t, "next"); got.code != 4 || !strings.Contains(got.err, "halted until a resume") {
		t.Errorf("%+v", got)
	}
	must0(t, "--agent", "", "agent", "resume", "everyone")
	got := fields(t, "next")
	if at(t, got, "directives", 0, "message", "type") != "resume" || at(t, got, "directives", 0, "todo") != "go on working" {
		t.Errorf("%v", got)
	}
	must0(t, "ack")
	if got := fields(t, "next"); at(t, got, "claims", 0, "claim_id") != work+".1" {
		t.Errorf("%v", got)
	}
	if got := fields(t, "--agent", "builder-2", "next"); at(t, got, "directives", 0, "message", "type") != "resume" {
		t.Errorf("the other agent of the role got %v, want the resume without the halt before it", got)
	}
	if got := ctl(t, "agent", "halt", "lead"); got.code != 7 {
		t.Errorf("a builder halts the lead: %+v", got)
	}
	if got := ctl(t, "agent", "nudge"); got.code != 2 || !strings.Contains(got.err, "receiver") {
		t.Errorf("%+v", got)
	}
}

func TestNext_ShowsOpenWorkWhenThereIsNothingToDo(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	planned(t, "tasks: [{id: deploy, title: Deploy}]")
	t.Setenv("BROKERD_AGENT", "builder-1")
	must0(t, "task", "claim", "deploy")
	must0(t, "task", "block", "deploy", "--reason", "no key")
	for _, format := range []string{"table", "prompt"} {
		got := ctl(t, "next", "-o", format)
		want := map[string]string{
			"table":  "Open: holds task deploy (blocked): Deploy → brokerctl task unblock deploy",
			"prompt": "deploy: Deploy\nOpen: holds task deploy (blocked) → brokerctl task unblock deploy",
		}[format]
		if got.code != 4 || !strings.Contains(got.err, "nothing to claim") || !strings.HasPrefix(withoutFrames(got.out), want) {
			t.Errorf("%s: %+v", format, got)
		}
	}
	got := ctl(t, "next", "-o", "json")
	if got.code != 4 {
		t.Errorf("%+v", got)
	}
	turn := decode(t, got.out)
	if at(t, turn, "work", 0, "id") != "deploy" || at(t, turn, "work", 0, "state") != "blocked" || at(t, turn, "task") != nil {
		t.Errorf("%v", turn)
	}
}

func TestNext_AHaltHidesTheTaskUntilTheResume(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	planned(t, "tasks: [{id: schema, title: Write the schema}]")
	t.Setenv("BROKERD_AGENT", "builder-1")
	must0(t, "task", "claim", "schema")
	must0(t, "--agent", "lead", "agent", "halt", "builder-1", "stop")
	out := must0(t, "next", "-o", "prompt")
	if !strings.Contains(out, "Next: stop working now") || strings.Contains(out, "task complete") ||
		!strings.HasSuffix(out, "Halted: 1 task must wait for a resume\n") {
		t.Errorf("%s", out)
	}
	if got := ctl(t, "task", "claim"); got.code != 4 || got.out != "" || !strings.Contains(got.err, "halted until a resume; it still holds task schema") {
		t.Errorf("%+v", got)
	}
	must0(t, "--agent", "lead", "agent", "resume", "builder-1")
	out = must0(t, "next", "-o", "prompt")
	if strings.Contains(out, "stop working now") || !strings.Contains(out, "Next: go on working") || !strings.Contains(out, "task complete schema") {
		t.Errorf("%s", out)
	}
	must0(t, "ack")
	must0(t, "--agent", "lead", "agent", "halt", "builder-1")
	must0(t, "ack", at(t, fields(t, "next"), "directives", 0, "claim_id").(string))
	got := ctl(t, "next", "-o", "table")
	if got.code != 4 || got.out != "Halted: 1 task must wait for a resume\n" || !strings.Contains(got.err, "halted until a resume") {
		t.Errorf("%+v", got)
	}
}

func TestNext_RemindsOfAnswersOwed(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead", "builder-1")
	t.Setenv("BROKERD_AGENT", "builder-1")
	question := sent(t, "--agent", "lead", "builder-1", "How far?", "--respond-within", "10m")
	if out := must0(t, "next", "-o", "prompt"); !strings.Contains(out, "an answer is due in 10m") || !strings.Contains(out, "reply "+question+".1 ANSWER --ack when done") || strings.Contains(out, "owed") {
		t.Errorf("%s", out)
	}
	must0(t, "ack")
	if got := ctl(t, "next"); got.code != 4 || !strings.Contains(got.err, "an answer is owed: brokerctl inbox --summary") {
		t.Errorf("%+v", got)
	}
	if out := must0(t, "inbox", "--summary"); !strings.Contains(out, "owed: an answer to "+question+" from lead, How far?, due in 10m: brokerctl reply "+question+" ANSWER\n") {
		t.Errorf("%s", out)
	}
	sent(t, "--agent", "lead", "builder-1", "more")
	if out := must0(t, "next", "-o", "prompt"); !strings.Contains(out, "An answer is owed to "+question+" from lead") {
		t.Errorf("%s", out)
	}
	must0(t, "reply", question, "Half way")
	if got := fields(t, "next"); len(at(t, got, "owed").([]any)) != 0 {
		t.Errorf("%v", got)
	}
}

func TestInbox_SummaryCounts(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1")
	t.Setenv("BROKERD_AGENT", "builder-1")
	sent(t, "--agent", "lead", "builder-1", "one", "--type", "survey", "--priority", "high")
	sent(t, "--agent", "lead", "builder-1", "two")
	must0(t, "claim")
	want := "2 unfinished, 2 of them unread; 1 to claim, 1 claimed; the oldest was sent now\n1 of priority 7, 1 of priority 5, 1 message, 1 survey\n"
	for _, format := range []string{"table", "prompt"} {
		if out := recently(must0(t, "inbox", "--summary", "-o", format)); out != want {
			t.Errorf("got\n%swant\n%s", out, want)
		}
	}
	if got := fields(t, "inbox", "--summary"); at(t, got, "total") != json.Number("2") {
		t.Errorf("%v", got)
	}
	must0(t, "--agent", "lead", "agent", "nudge", "builder-1", "look at the review")
	if out := must0(t, "inbox", "--summary"); !strings.Contains(out, " from lead: nudge, look at the review. To say that you have seen it: brokerctl ack ") {
		t.Errorf("%s", out)
	}
}

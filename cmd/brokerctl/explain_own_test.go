package main

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestExplain_AgentGetsItsOwnView(tt *testing.T) {
	t := newShell(tt)
	s := newStage(t)
	register(t, "lead/lead", "builder-1/builder", "builder-2/builder")
	s.fine("agent", "builder-1")
	sent(t, "role:painter", "no agent has this role")
	sent(t, "lead", "the lead's own problem")
	sent(t, "--agent", "lead", "builder-1", "which branch?", "--requires-response")
	sent(t, "--agent", "lead", "role:builder", "work")
	must0(t, "--agent", "builder-2", "lock", "acquire", "src/", "--for", "2h")
	ctl(t, "--agent", "builder-1", "lock", "acquire", "src/a.go", "--keep")
	if got := ctl(t, "--agent", "builder-1", "explain"); got.code != 0 || got.out != "" ||
		got.err != "nothing that concerns builder-1 is stuck\n" {
		t.Errorf("%+v", got)
	}
	s.disk = 0.9
	s.Advance(20 * time.Minute)
	s.await("message.overdue")
	own := s.explain("--agent", "builder-1")
	for _, f := range own {
		for _, command := range f.commands {
			if strings.Contains(command, "lock revoke") ||
				strings.Contains(command, "nudge") {
				t.Errorf("an agent may not run %s", command)
			}
			if strings.HasPrefix(command, "brokerctl --agent ") && !strings.HasPrefix(command, "brokerctl --agent builder-1 ") {
				t.Errorf("this is in the name of another agent: %s", command)
			}
		}
	}
	got := subjectsOf(own)
	for _, want := range []string{"mailbox builder-1", "mailbox role:builder", "lock src/a.go"} {
		if !strings.Contains(got, "WARNING "+want) {
			t.Errorf("no warning about %s: %s", want, got)
		}
	}
	for _, other := range []string{"painter", "mailbox lead", "disk", "INFO"} {
		if strings.Contains(got, other) {
			t.Errorf("builder-1 is not concerned by %s: %s", other, got)
		}
	}
	operator := subjectsOf(s.explain())
	for _, want := range []string{"role:painter", "mailbox lead", "disk", "mailbox builder-1"} {
		if !strings.Contains(operator, want) {
			t.Errorf("the operator does not see %s: %s", want, operator)
		}
	}
	must0(t, "--agent", "builder-1", "claim")
	must0(t, "--agent", "builder-1", "nack", "--fatal", "--error", "no compiler")
	dead := s.finds([]string{"--agent", "builder-1"}, "ERROR", "mailbox builder-1", "1 dead letter", "no compiler")
	if want := []string{
		"brokerctl --agent builder-1 dlq redrive --mailbox builder-1",
		"brokerctl --agent builder-1 dlq list --mailbox builder-1",
	}; !slices.Equal(dead.commands, want) {
		t.Errorf("%q, want %q", dead.commands, want)
	}
	misdirected := sent(t, "--agent", "lead", "role:bulider", "work")
	f := s.finds([]string{"--agent", "lead", "message", misdirected}, "ERROR", "message "+misdirected,
		"no agent has the role bulider")
	if want := []string{"brokerctl --agent lead message cancel " + misdirected}; !slices.Equal(f.commands, want) {
		t.Errorf("%q, want %q", f.commands, want)
	}
	if f := s.explain("--agent", "builder-1", "message", misdirected)[0]; len(f.commands) != 0 {
		t.Errorf("builder-1 did not send it and cannot free it: %v", f)
	}
	out := must0(t, "--agent", "builder-1", "explain", "agent", "builder-1")
	if !strings.Contains(out, "  $ brokerctl --agent builder-1 agent get builder-1\n") {
		t.Errorf("a command lacks the agent:\n%s", out)
	}
}

func TestExplain_OverdueAnswerByAsker(tt *testing.T) {
	t := newShell(tt)
	s := newStage(t)
	register(t, "lead/lead", "builder-1/builder")
	id := sent(t, "--agent", "lead", "builder-1", "which branch?", "--requires-response")
	must0(t, "--agent", "builder-1", "claim")
	s.Advance(11 * time.Minute)
	s.await("message.overdue")
	holds := "builder-1 holds it as claim " + id + ".1 since "
	answer := "brokerctl --agent builder-1 reply " + id + " ANSWER"
	for _, about := range [][]string{{"--agent", "builder-1"}, {"--agent", "builder-1", "message", id}} {
		f := s.finds(about, "WARNING", "message "+id, "lead waits for its answer", holds)
		if f.commands[0] != answer || f.commands[1] != "brokerctl --agent builder-1 message get "+id ||
			strings.Contains(f.String(), "resolve") {
			t.Errorf("explain %q tells the agent that owes the answer %v", about, f)
		}
	}
	for _, about := range [][]string{nil, {"--agent", "lead"}, {"--agent", "lead", "message", id}} {
		f := s.finds(about, "WARNING", "message "+id, "lead waits for its answer", holds)
		if last := f.commands[len(f.commands)-1]; !strings.Contains(last, "thread resolve ") || f.commands[0] == answer {
			t.Errorf("explain %q tells those that wait %v", about, f)
		}
	}
	must0(t, "--agent", "builder-1", "reply", id, "main")
	s.fine("--agent", "builder-1")
}

func TestExplain_AgentSeesItsUndeliverableMessages(tt *testing.T) {
	t := newShell(tt)
	s := newStage(t)
	register(t, "lead/lead", "critic-1/critic")
	must0(t, "agent", "register", "builder-1", "--role", "builder", "--lease", "5s")
	lost := sent(t, "--agent", "lead", "role:bulider", "work")
	sent(t, "--agent", "lead", "role:bulider", "more work")
	waits := sent(t, "--agent", "lead", "role:builder", "work")
	s.fails("builder-1")
	if out := must0(t, "--agent", "lead", "status"); !strings.Contains(out, "2 errors") {
		t.Error(out)
	}
	s.finds([]string{"--agent", "lead"}, "ERROR", "message "+waits, "builder-1 has failed")
	f := s.finds([]string{"--agent", "lead"}, "ERROR", "message "+lost, "no agent has the role bulider",
		"2 messages of lead wait there")
	if got := ctl(t, "--agent", "critic-1", "explain"); got.code != 0 || got.out != "" {
		t.Errorf("critic-1 sent none of them: %+v", got)
	}
	s.run(f.commands[0])
	if got := subjectsOf(s.explain("--agent", "lead")); strings.Contains(got, "message "+lost) {
		t.Errorf("%q leaves %s", f.commands[0], got)
	}
}

// subjectsOf lists findings by severity and subject.
func subjectsOf(all []told) string {
	var subjects []string
	for _, f := range all {
		subjects = append(subjects, f.severity+" "+f.subject)
	}
	return strings.Join(subjects, ", ")
}

func TestStatus_AgentGetsItsOwnView(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder", "critic-1/critic")
	sent(t, "--agent", "lead", "builder-1", "which branch?", "--requires-response")
	sent(t, "--agent", "lead", "builder-1", "work")
	sent(t, "--agent", "lead", "role:builder", "work")
	sent(t, "--agent", "lead", "critic-1", "a review")
	must0(t, "--agent", "builder-1", "claim")
	must0(t, "--agent", "critic-1", "claim")
	must0(t, "--agent", "builder-1", "lock", "acquire", "src/")
	must0(t, "--agent", "critic-1", "lock", "acquire", "docs/")
	must0(t, "--agent", "critic-1", "token", "acquire", "review", "login")
	ctl(t, "--agent", "builder-1", "lock", "acquire", "docs/", "--keep")
	want := `stuck      nothing that concerns builder-1
agent      builder-1, role builder, in session default
messages   2 waiting, 1 claimed by this agent, 0 dead
holds      1 lock and 0 tokens; waits for 1 more
questions  1 to answer, 0 without an answer yet

MAILBOX       WAITING  CLAIMED  DEAD
builder-1     1        1        0
role:builder  1        0        0
`
	if out := must0(t, "--agent", "builder-1", "status"); out != want {
		t.Errorf("%s\nwant\n%s", out, want)
	}
	got := fields(t, "--agent", "lead", "status")
	for field, want := range map[string]string{"asked": "1", "to_answer": "0", "waiting": "0", "claimed": "0",
		"locks": "0", "sessions": "0", "database_bytes": "0", "commits": "0"} {
		if n := number(at(t, got, field)); n != want {
			t.Errorf("%s is %s, want %s", field, n, want)
		}
	}
	if at(t, got, "agent") != "lead" || at(t, got, "data_dir") != "" {
		t.Errorf("%v", got)
	}
	if got := ctl(t, "--agent", "nobody-1", "status"); got.code != 3 || !strings.Contains(got.err, "not registered") {
		t.Errorf("%+v", got)
	}
}

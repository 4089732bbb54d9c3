package main

import (
	"strings"
	"testing"
)

func TestSend_PutsAShortLineIntoTheSubjectAndTheRestIntoTheBody(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	for _, test := range []struct {
		text, option string
		subject      string
		body         string
	}{
		{"Add login", "", "Add login", ""},
		{strings.Repeat("x", 200), "", strings.Repeat("x", 200), ""},
		{strings.Repeat("x", 201), "", "", strings.Repeat("x", 201)},
		{"one\ntwo", "", "", "one\ntwo"},
		{"one\ttwo", "", "", "one\ttwo"},
		{"Add login", "--body=a form", "Add login", "a form"},
		{strings.Repeat("x", 201), "--body=a form", strings.Repeat("x", 201), "a form"},
	} {
		args := []string{"--agent", "lead", "builder-1", test.text}
		if test.option != "" {
			args = append(args, test.option)
		}
		m := at(t, fields(t, "message", "get", sent(t, args...)), "message")
		if subject, body := at(t, m, "subject"), at(t, m, "body"); subject != test.subject || body != test.body {
			t.Errorf("%q %s: subject %q, body %q", test.text, test.option, subject, body)
		}
	}
}

func TestReply_ShowsWhatItSaysAndKeepsTaskAndSubject(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	asked := sent(t, "--agent", "lead", "builder-1", "Add login", "--task", "t1", "--requires-response")
	for _, command := range []string{"inbox", "message get " + asked, "claim", "next"} {
		out := must0(t, append([]string{"--agent", "builder-1", "-o", "prompt"}, strings.Fields(command)...)...)
		if !strings.Contains(out, "an answer is due in ") || strings.Contains(out, "due now") {
			t.Errorf("%s says not when the answer is due:\n%s", command, out)
		}
	}
	must0(t, "--agent", "builder-1", "reply", "--ack", "Done, on the branch login\nSecond line")
	m := at(t, fields(t, "--agent", "lead", "inbox"), "message")
	for field, want := range map[string]string{
		"subject": "Re: Add login", "body": "Done, on the branch login\nSecond line", "task_id": "t1",
	} {
		if got := at(t, m, field); got != want {
			t.Errorf("%s is %q, not %q", field, got, want)
		}
	}
	for _, command := range [][]string{{"inbox"}, {"message", "list", "--box", "all", "--from", "builder-1"}} {
		out := must0(t, append([]string{"--agent", "lead"}, command...)...)
		if !strings.Contains(out, "Done, on the branch login") || strings.Contains(out, "Re:") || strings.Contains(out, "Second") {
			t.Errorf("%v does not show the first line of the body:\n%s", command, out)
		}
	}
	if out := must0(t, "--agent", "lead", "-o", "prompt", "inbox"); !strings.Contains(out, "Subject: Re: Add login\nDone, on the branch login\nSecond line\n") {
		t.Errorf("%s", out)
	}
	// A long question is named by its first line where only one line is shown.
	must0(t, "--agent", "lead", "send", "builder-1", "Which branch do you use?\nI cannot find it.", "--requires-response")
	if out := must0(t, "--agent", "builder-1", "inbox", "--summary"); !strings.Contains(out, "from lead, Which branch do you use?, due in ") {
		t.Errorf("%s", out)
	}
}

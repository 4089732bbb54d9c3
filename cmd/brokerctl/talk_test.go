package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
)

// asks runs ask in the background and returns where its result comes.
func asks(t *shell, args ...string) <-chan result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	results := make(chan result, 1)
	go func() { results <- t.invoke(ctx, "", nil, args...) }()
	return results
}

func TestAsk_PrintsTheReply(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	for _, format := range []string{"table", "json", "prompt"} {
		answers := asks(t, "--agent", "builder-1", "ask", "lead", "Which", "branch?", "--wait", "20s", "-o", format)
		claim := fields(t, "--agent", "lead", "claim", "--wait", "20s")
		if got := at(t, claim, "message", "subject"); got != "Which branch?" {
			t.Errorf("the question is %v", got)
		}
		if out := must0(t, "--agent", "lead", "reply", "The", "branch login", "--ack"); !strings.Contains(out, "the waiting call of the asker received it\nacked ") {
			t.Errorf("%q", out)
		}
		answer := <-answers
		if answer.code != 0 || !strings.Contains(answer.out, "The branch login") {
			t.Errorf("%s: %+v", format, answer)
		}
		if format == "json" && at(t, decode(t, answer.out), "reply", "sender") != "lead" {
			t.Errorf("%s", answer.out)
		}
	}
	if got := ctl(t, "--agent", "builder-1", "receive"); got.code != 4 {
		t.Errorf("the replies are in the inbox as well: %+v", got)
	}
	if got := ctl(t, "--agent", "lead", "claim"); got.code != 4 {
		t.Errorf("a question is left: %+v", got)
	}
}

func TestAsk_WithoutAnAnswerIsExitCode4AndALateOneIsMail(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	got := ctl(t, "--agent", "builder-1", "ask", "lead", "Well?", "--wait", "1ms")
	if got.code != 4 || !strings.Contains(got.err, "within 1ms") || got.out != "" {
		t.Fatalf("%+v", got)
	}
	_, question, _ := strings.Cut(got.err, "no answer to ")
	question, _, _ = strings.Cut(question, " ")
	must0(t, "--agent", "lead", "reply", question, "Late.")
	_, command, _ := strings.Cut(got.err, "in the inbox: brokerctl ")
	if out := must0(t, strings.Fields(command)...); !strings.Contains(out, "Late.") {
		t.Errorf("%s: %s", command, out)
	}
}

func TestReply_TellsIdFromText(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead", "builder-1")
	id := sent(t, "--agent", "lead", "builder-1", "How many?")
	must0(t, "--agent", "builder-1", "claim")
	for _, args := range [][]string{{"42"}, {id, "42"}, {id + ".1", "--body", "42"}, {"--body", "42"}} {
		answer := fields(t, append([]string{"--agent", "builder-1", "reply"}, args...)...)
		m := at(t, fields(t, "message", "get", at(t, answer, "result", "id").(string)), "message")
		if at(t, m, "body") != "42" || at(t, m, "target", "agent") != "lead" || at(t, m, "in_reply_to") == "" {
			t.Errorf("%q: %v", args, m)
		}
	}
	for _, c := range []struct{ args, want string }{
		{"reply", "the answer is missing"},
		{"reply 7 x --body y", "the text is given twice"},
	} {
		if got := ctl(t, append([]string{"--agent", "builder-1"}, strings.Fields(c.args)...)...); got.code != 2 || !strings.Contains(got.err, c.want) {
			t.Errorf("%s: %+v", c.args, got)
		}
	}
}

func TestThread_ShowsTheConversationAndItsOutcome(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead", "builder-1")
	id := sent(t, "--agent", "lead", "builder-1", "Which branch?", "--respond-within", "10m")
	for _, format := range []string{"table", "prompt"} {
		out := recently(must0(t, "thread", "get", id, "-o", format))
		if !strings.Contains(out, "1 message, builder-1, lead, begun now\nopen: "+id+" from lead, Which branch?, due in 10m\n") {
			t.Errorf("%s", out)
		}
	}
	must0(t, "--agent", "builder-1", "reply", id, "The branch login")
	if out := must0(t, "--agent", "lead", "thread", "resolve", id, "we", "use login"); !strings.Contains(out, "0 open questions settled") {
		t.Errorf("%q", out)
	}
	got := fields(t, "thread", "get", id)
	if at(t, got, "items", 0, "message", "subject") != "Which branch?" || at(t, got, "items", 1, "message", "body") != "The branch login" ||
		at(t, got, "thread", "outcome") != "we use login" || at(t, got, "thread", "resolved_by") != "lead" {
		t.Errorf("%v", got)
	}
	if out := recently(must0(t, "thread", "get", at(t, got, "thread", "thread_id").(string))); !strings.Contains(out, "resolved now by lead: we use login\n") {
		t.Errorf("%s", out)
	}
	if got := ctl(t, "thread", "get", "no-such-thread"); got.code != 3 {
		t.Errorf("%+v", got)
	}
}

func TestMessage_ReportAndResend(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead", "builder-1", "builder-2", "builder-3", "builder-4")
	id := sent(t, "--agent", "lead", "builder-*", "All hands")
	must0(t, "--agent", "builder-1", "ack", id)
	must0(t, "--agent", "builder-2", "claim")
	must0(t, "--agent", "builder-3", "inbox", "--mark-read")
	want := "message " + id + ", message from lead to builder-*, sent now: 1 of 4 recipients finished it\n" +
		"finished: builder-1 (now)\nworking on it: builder-2 (now)\nread, not finished: builder-3 (now)\nnot seen: builder-4\n" +
		"to redeliver it to them: brokerctl --agent lead message resend " + id + "\n"
	if out := recently(must0(t, "--agent", "lead", "message", "report", id)); out != want {
		t.Errorf("got\n%swant\n%s", out, want)
	}
	report := fields(t, "--agent", "lead", "message", "report", id)
	if at(t, report, "recipients") != json.Number("4") || at(t, report, "read", 0, "mailbox") != "builder-3" || at(t, report, "waiting", 0, "state") != "pending" {
		t.Errorf("%v", report)
	}
	if out := must0(t, "--agent", "lead", "message", "resend", id, "builder-3"); out != "redelivered it to 1 recipient\n" {
		t.Errorf("%q", out)
	}
	report = fields(t, "message", "report", id)
	if len(at(t, report, "read").([]any)) != 0 || at(t, report, "got", 0, "mailbox") != "builder-3" {
		t.Errorf("resending does not make it unread: %v", report)
	}
	if out := must0(t, "--agent", "lead", "message", "resend", id); out != "redelivered it to 2 recipients\n" {
		t.Errorf("%q", out)
	}
}

func TestSend_WarningsGoToStandardErrorAndIntoTheResult(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	as := func(args ...string) []string { return append([]string{"--agent", "lead"}, args...) }
	const absent = "no agent has the role bulider (did you mean builder?); the message waits until one does"
	const warning = "brokerctl: warning: "
	if got := ctl(t, as("send", "role:bulider", "Add login")...); got.code != 0 || got.err != warning+absent+"\n" {
		t.Errorf("%+v", got)
	}
	got := ctl(t, as("-o", "json", "send", "role:bulider", "Add login")...)
	warnings := at(t, decode(t, got.out), "warnings").([]any)
	if len(warnings) != 1 || warnings[0] != absent || got.err != warning+absent+"\n" {
		t.Errorf("%+v", got)
	}
	got = ctl(t, as("send", "builder-1")...)
	if got.code != 0 || !strings.HasPrefix(got.err, warning+"the message has no text") {
		t.Errorf("%+v", got)
	}
	for _, receiver := range []string{"all", "ALL", "*", "all_builders"} {
		got := ctl(t, as("send", receiver, "hello")...)
		if got.code != 0 || got.err != "" || !strings.Contains(got.out, " to builder-1\n") {
			t.Errorf("%q: %+v", receiver, got)
		}
	}
}

package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/internal/apptest"
)

func TestSend_CarriesAllThatIsGiven(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	file := filepath.Join(t.TempDir(), "payload.json")
	apptest.NoError(t, os.WriteFile(file, []byte(`{"n": 1152921504606846977, "x": 1.0}`+"\n"), 0o600))
	got := t.invoke(t.Context(), "from standard input\n", nil, "--agent", "lead", "send", "builder-1", "Subject", "--body", "-", "--payload", "@"+file,
		"--type", "clarification", "--priority", "critical", "--thread", "T", "--correlation", "C", "--task", "K", "--channel", "ops",
		"--label", "a=1=2", "--file", "x/y.go:42", "--file", "z", "--artifact", "spec", "--ttl", "90m", "--ordering-key", "O", "--max-attempts", "7", "-o", "json")
	if got.code != 0 {
		t.Fatalf("%+v", got)
	}
	m := at(t, fields(t, "message", "get", at(t, decode(t, got.out), "id").(string)), "message")
	for _, c := range []struct {
		want any
		path []any
	}{
		{"lead", []any{"sender"}}, {"lead", []any{"sender_role"}}, {"builder-1", []any{"target", "agent"}}, {"Subject", []any{"subject"}},
		{"from standard input\n", []any{"body"}}, {json.Number("1152921504606846977"), []any{"payload", "n"}},
		{json.Number("1.0"), []any{"payload", "x"}}, {"clarification", []any{"type"}}, {json.Number("10"), []any{"priority"}},
		{"T", []any{"thread_id"}}, {"C", []any{"correlation_id"}}, {"K", []any{"task_id"}}, {"ops", []any{"channel"}},
		{"1=2", []any{"labels", "a"}}, {"x/y.go", []any{"files", 0, "path"}}, {json.Number("42"), []any{"files", 0, "line"}},
		{json.Number("0"), []any{"files", 1, "line"}}, {"spec", []any{"artifacts", 0}}, {"1h30m", []any{"ttl"}},
		{"O", []any{"ordering_key"}}, {json.Number("7"), []any{"max_attempts"}},
	} {
		if got := at(t, m, c.path...); got != c.want {
			t.Errorf("%v is %v, want %v", c.path, got, c.want)
		}
	}
}

func TestSend_ReachesEveryKindOfReceiver(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder", "builder-2/builder", "tester/tester")
	must0(t, "--agent", "tester", "channel", "subscribe", "general")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"builder-1"}, "builder-1"},
		{[]string{"role:builder"}, "role:builder"},
		{[]string{"role:builder", "--all"}, "builder-1 builder-2"},
		{[]string{"channel:general"}, "tester"},
		{[]string{"channel:general", "--one"}, "channel:general"},
		{[]string{"builder-*"}, "builder-1 builder-2"},
		{[]string{"everyone"}, "builder-1 builder-2 tester"},
	} {
		var mailboxes []string
		for _, r := range at(t, fields(t, append([]string{"--agent", "lead", "send"}, c.args...)...), "recipients").([]any) {
			mailboxes = append(mailboxes, at(t, r, "mailbox").(string))
		}
		if got := strings.Join(mailboxes, " "); got != c.want {
			t.Errorf("%q went to %q, want %q", c.args, got, c.want)
		}
	}
}

func TestSend_TheSameRequestIDDoesNothingTwice(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "a", "b")
	args := []string{"--agent", "a", "send", "b", "one", "--request-id", "01890a5d-ac96-774b-bcce-b302099a8057"}
	first, again := fields(t, args...), fields(t, args...)
	if at(t, first, "id") != at(t, again, "id") || at(t, again, "duplicate") != true {
		t.Errorf("%v, then %v", first, again)
	}
	args[4] = "two"
	if got := ctl(t, args...); got.code != 5 || !strings.Contains(got.err, "new id") {
		t.Errorf("%+v", got)
	}
}

func TestClaim_LostIsExitCode6(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead", "builder-1")
	id := sent(t, "builder-1", "work")
	must0(t, "--agent", "builder-1", "claim")
	must0(t, "--agent", "builder-1", "release")
	must0(t, "--agent", "builder-1", "claim")
	for _, args := range [][]string{{"ack"}, {"nack"}, {"extend"}, {"release"}} {
		got := ctl(t, append([]string{"--agent", "builder-1"}, append(args, id+".1")...)...)
		if got.code != 6 || !strings.Contains(got.err, "lost") {
			t.Errorf("%q: %+v", args, got)
		}
	}
	if out := must0(t, "--agent", "builder-1", "extend", "--for", "2h"); out != "extended "+id+".2 by 2h\n" {
		t.Errorf("%q", out)
	}
}

func TestNack_FatalMakesADeadLetterThatCanBeRedrivenAndPurged(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "builder-1")
	id := sent(t, "builder-1", "work")
	must0(t, "--agent", "builder-1", "claim")
	if out := must0(t, "--agent", "builder-1", "nack", "--fatal", "--error", "no such repository"); out != "nacked "+id+".1: now a dead letter\n" {
		t.Errorf("%q", out)
	}
	if out := must0(t, "dlq", "list"); !strings.Contains(out, "no such repository") {
		t.Errorf("the list does not show the error:\n%s", out)
	}
	for args, want := range map[string]bool{"--since 1h": true, "--until 1h": false, "--since 1d --until 1h": false, "--since 1h --until 0s": true} {
		if got := ctl(t, append([]string{"dlq", "list"}, strings.Fields(args)...)...); got.code != 0 || strings.Contains(got.out, "no such repository") != want {
			t.Errorf("dlq list %s: %+v", args, got)
		}
	}
	if out := must0(t, "dlq", "redrive", "--mailbox", "builder-1"); out != "redrove 1 dead letter\n" {
		t.Errorf("%q", out)
	}
	must0(t, "--agent", "builder-1", "claim")
	must0(t, "--agent", "builder-1", "nack", id, "--fatal")
	if out := must0(t, "dlq", "delete", id); out != "deleted 1 dead letter\n" {
		t.Errorf("%q", out)
	}
	if got := delivery(t, id); at(t, got, "state") != "cancelled" {
		t.Errorf("the delivery is %v", got)
	}
}

func TestReceive_ACursorShowsOnlyWhatIsNew(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead", "builder-1")
	args := []string{"--agent", "builder-1", "receive", "--cursor", "main", "-o", "json"}
	sent(t, "builder-1", "one")
	sent(t, "builder-1", "two")
	if out := must0(t, args...); strings.Count(out, "\n") != 2 {
		t.Errorf("first:\n%s", out)
	}
	if got := ctl(t, args...); got.code != 4 || got.out != "" {
		t.Errorf("again: %+v", got)
	}
	sent(t, "builder-1", "three")
	if got := at(t, decode(t, must0(t, args...)), "message", "subject"); got != "three" {
		t.Errorf("then: %v", got)
	}
}

func TestReceive_FollowEndsAfterTheLimitAndOnASignal(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead", "builder-1")
	sent(t, "builder-1", "one")
	if out := must0(t, "--agent", "builder-1", "receive", "--follow", "--limit", "1", "-o", "prompt"); !strings.Contains(out, "Subject: one") {
		t.Errorf("%q", out)
	}
	signals := make(chan os.Signal, 1)
	signals <- syscall.SIGTERM
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if got := t.invoke(ctx, "", signals, "--agent", "builder-1", "receive", "--follow", "--after", "1000000"); got.code != 143 {
		t.Errorf("%+v", got)
	}
}

func TestInbox_MarksWhatIsReadClaimedAndFailed(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead", "builder-1")
	id := sent(t, "builder-1", "one")
	has := func(mark string, more ...string) {
		t.Helper()
		if out := must0(t, append([]string{"--agent", "builder-1", "inbox"}, more...)...); !strings.Contains(out, "  "+mark+"  ") {
			t.Errorf("no %q in\n%s", mark, out)
		}
	}
	has("new")
	has("read", "--mark-read")
	must0(t, "--agent", "builder-1", "claim")
	has("claimed " + id + ".1")
	must0(t, "--agent", "builder-1", "nack", "--delay", "1h")
	has("delayed, failed 1 of 3")
	if got := ctl(t, "--agent", "builder-1", "claim"); got.code != 4 || !strings.Contains(got.err, "the next is due in 1h") {
		t.Errorf("%+v", got)
	}
}

func TestMessage_ListAndCancel(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead", "builder-1", "builder-2")
	id := sent(t, "--agent", "lead", "builder-*", "one")
	must0(t, "--agent", "builder-1", "claim")
	if out := must0(t, "--agent", "lead", "message", "cancel", id, "--reason", "changed"); out != "withdrew 1 copy; 1 claimed or finished and left alone\n" {
		t.Errorf("%q", out)
	}
	sent(t, "--agent", "builder-1", "lead", "two")
	for args, want := range map[string]bool{
		"message list": false, "--agent lead message list --box sent": false, "--agent builder-1 message list": true,
	} {
		if out := must0(t, append(strings.Fields(args), "--wide")...); strings.Contains(out, "STATE") != want {
			t.Errorf("%s: %q, want the column STATE: %t", args, out, want)
		}
	}
	for _, c := range []struct {
		args []string
		want int
	}{
		{[]string{"message", "list"}, 2},
		{[]string{"message", "list", "--from", "lead"}, 1},
		{[]string{"message", "list", "--since", "1h", "--limit", "1"}, 1},
		{[]string{"message", "list", "--until", "1h"}, 0},
		{[]string{"message", "list", "--mailbox", "builder-1"}, 1},
		{[]string{"message", "list", "--mailbox", "builder-2"}, 0},
		{[]string{"--agent", "lead", "message", "list", "--box", "sent"}, 1},
	} {
		if out := must0(t, append([]string{"-o", "json"}, c.args...)...); strings.Count(out, "\n") != c.want {
			t.Errorf("%q, want %d:\n%s", c.args, c.want, out)
		}
	}
}

func TestEventPublish_RaisesAndResolvesABlocker(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "builder-1/builder", "builder-2/builder")
	publish := []string{"--agent", "builder-1", "event", "publish", "--blocker"}
	got := fields(t, append(publish, "BlockerEncountered", "No schema", "--task", "t1", "--details", `{"awaited": "builder-2"}`)...)
	id := at(t, got, "blocker").(string)
	x := fields(t, "blocker", "get", id)
	if at(t, x, "reason") != "No schema" || at(t, x, "task_id") != "t1" || at(t, x, "awaited", "agent") != "builder-2" {
		t.Errorf("raised %v", x)
	}
	if out := must0(t, append(publish, "BlockerResolved")...); !strings.HasSuffix(out, "; blocker "+id+"\n") {
		t.Errorf("%q", out)
	}
	if x := fields(t, "blocker", "get", id); at(t, x, "state") != "resolved" {
		t.Errorf("resolved %v", x)
	}
	if got := ctl(t, append(publish, "TaskCompleted")...); got.code != 2 || !strings.Contains(got.err, "--blocker") {
		t.Errorf("of another type: %+v", got)
	}
}

func TestMessageList_OfATaskOrThreadShowsTheConversation(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead", "builder-1")
	question := sent(t, "--agent", "lead", "builder-1", "Which index?", "--task", "sc-1")
	must0(t, "--agent", "builder-1", "claim")
	must0(t, "--agent", "builder-1", "reply", question, "The second", "--ack")
	for _, which := range [][]string{{"--task", "sc-1"}, {"--thread", question}} {
		for args, want := range map[string]int{"": 2, "--box inbox": 0, "--box sent": 1} {
			list := append(append([]string{"--agent", "builder-1", "-o", "json", "message", "list"}, which...), strings.Fields(args)...)
			if out := must0(t, list...); strings.Count(out, "\n") != want {
				t.Errorf("%q, want %d:\n%s", list, want, out)
			}
		}
		got := ctl(t, append([]string{"--agent", "builder-1", "message", "list", "--box", "inbox"}, which...)...)
		if got.err != "no messages in the inbox; --box all shows others that match\n" {
			t.Errorf("%q: %+v", which, got)
		}
	}
	if got := ctl(t, "--agent", "builder-1", "message", "list"); got.err != "no messages in the inbox; --box all shows others that match\n" {
		t.Errorf("%+v", got)
	}
	if got := ctl(t, "--agent", "builder-1", "message", "list", "--task", "sc-2"); got.err != "no messages\n" {
		t.Errorf("of another task: %+v", got)
	}
	if got := ctl(t, "--agent", "builder-1", "message", "list", "--type", "review"); got.err != "no messages\n" {
		t.Errorf("of another type: %+v", got)
	}
}

func TestEventPublish_ReachesSubscribers(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	must0(t, "--agent", "lead", "channel", "subscribe", "event/*")
	got := fields(t, "--agent", "builder-1", "event", "publish", "build.finished", "All green", "--details", `{"commit": "4f2a"}`,
		"--severity", "warning", "--related", "4711", "--task", "t1")
	m := at(t, fields(t, "--agent", "lead", "claim"), "message")
	for _, c := range []struct {
		want any
		path []any
	}{
		{"event", []any{"type"}}, {"All green", []any{"subject"}}, {"t1", []any{"task_id"}}, {"warning", []any{"payload", "severity"}},
		{"4f2a", []any{"payload", "details", "commit"}}, {"4711", []any{"payload", "related", 0}}, {at(t, got, "revision"), []any{"payload", "revision"}},
	} {
		if got := at(t, m, c.path...); got != c.want {
			t.Errorf("%v is %v, want %v", c.path, got, c.want)
		}
	}
	if got := ctl(t, "--agent", "lead", "event", "publish", "message.sent"); got.code == 0 || !strings.Contains(got.err, "broker's own") {
		t.Errorf("%+v", got)
	}
	if got := ctl(t, "--agent", "lead", "event", "publish", "x", "--severity", "loud"); got.code != 2 {
		t.Errorf("%+v", got)
	}
}

func TestChannel_SubscribeWarnsOfAnUnknownTypeAndExplainShowsIt(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	got := ctl(t, "--agent", "lead", "channel", "subscribe", "event/TaskComplet")
	if got.code != 0 || !strings.HasPrefix(got.err, "brokerctl: warning: no event of the type task_complet is known") ||
		!strings.Contains(got.err, "did you mean event/task_complete?") {
		t.Errorf("%+v", got)
	}
	if got := ctl(t, "--agent", "lead", "channel", "subscribe", "event/TaskCompleted"); got.code != 0 || got.err != "" {
		t.Errorf("a known type: %+v", got)
	}
	must0(t, "--agent", "builder-1", "event", "publish", "TaskCompleted", "t1")
	out := must0(t, "explain", "channel", "event/TaskCompleted")
	for _, want := range []string{"channel event/task_complete", "lead subscribes to it", "1 delivery of its newest messages waits"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing:\n%s", want, out)
		}
	}
	_, command, found := strings.Cut(out, "  $ brokerctl ")
	if !found || !strings.Contains(must0(t, strings.Fields(command)...), "t1") {
		t.Errorf("the command of the finding shows no message: %s", out)
	}
	if got := ctl(t, "explain", "channel", "none"); got.code != problem.ExitNotFound {
		t.Errorf("%+v", got)
	}
}

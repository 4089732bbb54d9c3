package main

import (
	"strings"
	"testing"
)

func TestInbox_ShowsTheQueuesAndReadsByPriority(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	t.Setenv("BROKERD_AGENT", "builder-1")
	must0(t, "--agent", "lead", "send", "builder-1", "own")
	urgent := sent(t, "--agent", "lead", "role:builder", "urgent", "--priority", "high")
	for _, test := range []struct{ args, want string }{
		{"inbox", "own"},
		{"inbox --order priority", "own"},
		{"inbox --queues", "own urgent"},
		{"inbox --queues --order priority", "urgent own"},
		{"inbox --queues --order priority --wait 10s", "urgent own"},
		{"inbox --queues --newest", "urgent own"},
		{"receive", "own"},
		{"receive --queues --order priority", "urgent own"},
		{"receive --queues --order arrival --limit 1", "own"},
	} {
		var subjects []string
		for line := range strings.Lines(must0(t, append(strings.Fields(test.args), "-o", "json")...)) {
			subjects = append(subjects, at(t, decode(t, line), "message", "subject").(string))
		}
		if got := strings.Join(subjects, " "); got != test.want {
			t.Errorf("%s shows %s, not %s", test.args, got, test.want)
		}
	}
	if out := must0(t, "inbox", "--queues"); !strings.Contains(out, "waiting, in role:builder  ") {
		t.Errorf("%s", out)
	}
	out := must0(t, "receive", "--queues", "--order", "priority", "--limit", "1", "-o", "prompt")
	if !strings.Contains(out, "Next: brokerctl claim "+urgent+" to take it\n") {
		t.Errorf("%s", out)
	}
	for _, args := range []string{"receive --queues --follow", "receive --order priority --cursor main", "inbox --queues --summary"} {
		if got := ctl(t, strings.Fields(args)...); got.code != 2 || !strings.Contains(got.err, "exclude each other") {
			t.Errorf("%s: %+v", args, got)
		}
	}
}

func TestInbox_MarksSingleMessagesAsRead(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	t.Setenv("BROKERD_AGENT", "builder-1")
	first, second := sent(t, "--agent", "lead", "builder-1", "one"), sent(t, "--agent", "lead", "builder-1", "two")
	if out := must0(t, "inbox", "--mark-read", second); !strings.Contains(out, "two") || strings.Contains(out, "one") {
		t.Errorf("%s", out)
	}
	if at(t, delivery(t, first), "read_at") != nil || at(t, delivery(t, second), "read_at") == nil {
		t.Errorf("%v, %v", delivery(t, first), delivery(t, second))
	}
	if got := ctl(t, "inbox", "4711"); got.code != 3 {
		t.Errorf("%+v", got)
	}
	if got := ctl(t, "inbox", first, "--newest"); got.code != 2 || !strings.Contains(got.err, "not go together with --newest") {
		t.Errorf("%+v", got)
	}
}

func TestClaim_TakesGivenMessagesOrThoseOfATask(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder", "builder-2/builder")
	must0(t, "--agent", "lead", "send", "role:builder", "first", "--priority", "high")
	tasked := sent(t, "--agent", "lead", "role:builder", "of the task", "--task", "t1")
	given := sent(t, "--agent", "lead", "role:builder", "given")
	t.Setenv("BROKERD_AGENT", "builder-1")
	for _, test := range []struct{ args, want string }{
		{"claim " + given, "given"}, {"claim --task t1", "of the task"}, {"claim --from lead --limit 3", "first"}, {"claim " + tasked, "of the task"},
	} {
		out := must0(t, append(strings.Fields(test.args), "-o", "prompt")...)
		if !strings.Contains(out, "Subject: "+test.want+"\n") {
			t.Errorf("%s does not take %q:\n%s", test.args, test.want, out)
		}
	}
	for _, test := range []struct {
		args string
		code int
		want string
	}{
		{"--agent builder-2 claim " + given, 5, `agent "builder-1" holds it`},
		{"--agent lead claim " + given, 3, "is in no mailbox that agent \"lead\" takes from"},
		{"claim --thread none", 4, "nothing to claim"},
		{"claim --correlation none", 4, "nothing to claim"},
		{"claim " + given + " --limit 2", 2, "not go together with --limit"},
		{"claim " + given + " --task t1", 2, "not go together with --task"},
	} {
		if got := ctl(t, strings.Fields(test.args)...); got.code != test.code || !strings.Contains(got.err, test.want) {
			t.Errorf("%s: %+v", test.args, got)
		}
	}
}

package main

import (
	"strings"
	"testing"
)

func TestThreadList_ShowsEachConversationOnce(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	asked := sent(t, "--agent", "lead", "builder-1", "Which branch?")
	must0(t, "--agent", "builder-1", "reply", asked, "login")
	sent(t, "--agent", "lead", "role:builder", "Add login", "--thread", "login-design", "--requires-response")
	lines := strings.Split(strings.TrimSpace(must0(t, "thread", "list")), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[1], "login-design ") ||
		!strings.Contains(lines[1], "lead, role:builder") ||
		!strings.Contains(lines[1], "from lead, Add login, due") {
		t.Fatalf("%q", lines)
	}
	revision := strings.Fields(lines[2])[0]
	if !strings.Contains(lines[2], "Which branch?") || !strings.Contains(lines[2], "builder-1: login") ||
		!strings.Contains(must0(t, "thread", "get", revision), "login") {
		t.Errorf("%q is not the conversation of the question", lines[2])
	}
	out := must0(t, "thread", "list", "--open")
	if !strings.Contains(out, "login-design") || strings.Contains(out, "Which branch?") {
		t.Errorf("%s", out)
	}
	if got := at(t, fields(t, "thread", "list", "--limit", "1"), "thread_id"); got != "login-design" {
		t.Errorf("the newest is %v", got)
	}
	if got := ctl(t, "thread", "list", "--until", "1h"); got.code != 0 || got.out != "" {
		t.Errorf("before these messages: %+v", got)
	}
	if got := ctl(t, "--agent", "builder-1", "inbox", "--until", "1h"); got.code != 0 || got.out != "" {
		t.Errorf("an inbox before these messages: %+v", got)
	}
	if out := must0(t, "--agent", "builder-1", "inbox", "--since", "1h"); !strings.Contains(out, "Which branch?") {
		t.Errorf("%s", out)
	}
}

func TestChannelGet_ShowsSettingsAndSubscribers(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead")
	must0(t, "--agent", "lead", "channel", "subscribe", "builds")
	must0(t, "channel", "configure", "builds", "--default-ttl", "1d")
	if out := must0(t, "channel", "get", "builds"); !strings.Contains(out, "lead") || !strings.Contains(out, "messages expire after 24h") {
		t.Errorf("%s", out)
	}
	if got := at(t, fields(t, "channel", "get", "builds"), "subscribers", 0); got != "lead" {
		t.Errorf("%v", got)
	}
	if got := ctl(t, "channel", "get", "bilds"); got.code != 3 || !strings.Contains(got.err, "did you mean builds?") {
		t.Errorf("%+v", got)
	}
}

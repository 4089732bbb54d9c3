package main

import (
	"context"
	"os"
	"strings"
	"testing"

	"brokerd/cmd/brokerctl/internal/problem"
)

func TestOverview_ShowsASessionAtAGlance(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	must0(t, "--agent", "builder-1", "agent", "heartbeat", "--activity", "building the page")
	sent(t, "--agent", "lead", "builder-1", "work")
	sent(t, "--agent", "lead", "role:painter", "work")
	must0(t, "--agent", "builder-1", "claim")
	out := must0(t, "overview")
	for _, want := range []string{
		"default: 2 agents\n", "1 waiting, 1 claimed, 0 dead", "1 error; see brokerctl explain",
		"mailbox role:painter: 1 message waits",
		"MAILBOX", "role:painter", "AGENT", "building the page", "SUMMARY", "message.claimed",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	frame := fields(t, "overview")
	if at(t, frame, "session") != "default" || at(t, frame, "agents", 0, "status") != "active" ||
		at(t, frame, "findings", 0, "calls", 0, "request", "id") == "" {
		t.Errorf("frame: %v", frame)
	}
	must0(t, "session", "create", "web")
	if all := must0(t, "-o", "json", "overview", "--all-sessions"); strings.Count(all, "\n") != 2 ||
		!strings.Contains(all, `"session":"web"`) {
		t.Errorf("frames of all sessions: %s", all)
	}
	prompt := must0(t, "-o", "prompt", "overview")
	if !strings.Contains(prompt, "agent builder-1, role builder, state busy") {
		t.Error(prompt)
	}
	for args, code := range map[string]int{"--agent lead overview": problem.ExitDenied,
		"--session nowhere overview": problem.ExitNotFound} {
		if got := ctl(t, strings.Fields(args)...); got.code != code {
			t.Errorf("%s: %+v, want exit code %d", args, got, code)
		}
	}
}

func TestOverview_FollowEndsWithItsSession(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	must0(t, "session", "create", "web")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ended := make(chan result, 1)
	go func() {
		ended <- t.invoke(ctx, "", make(chan os.Signal), "--session", "web", "-o", "json", "overview", "--follow")
	}()
	must0(t, "session", "close", "web")
	got := <-ended
	lines := strings.Split(strings.TrimSpace(got.out), "\n")
	if last := decode(t, lines[len(lines)-1]); got.code != 0 || at(t, last, "closed") != true {
		t.Errorf("%+v", got)
	}
}

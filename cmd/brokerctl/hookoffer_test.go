package main

import (
	"io"
	"strings"
	"testing"
)

// eventOf returns an event of a session of Claude Code.
func eventOf(session, event string) string {
	return `{"session_id":"` + session + `","cwd":"DIR","hook_event_name":"` + event + `","tool_name":"Read","prompt":"go on"}`
}

// A receipt says that a message was read only if the session's next event shows that the model had it.
func TestHook_MailIsReadOnlyIfTheTurnGoesOn(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	t.Setenv("BROKERD_AGENT", "builder-1")
	for _, c := range []struct {
		name, event string
		read        bool
		why         string // the offer was returned; empty = it was accepted or is open
	}{
		{"the turn goes on", eventOf("s1", "PreToolUse"), true, ""},
		{"a tool has run", eventOf("s1", "PostToolUse"), true, ""},
		{"the next turn ends", eventOf("s1", "Stop"), true, ""},
		{"the user has pressed Esc", eventOf("s1", "UserPromptSubmit"), false, "the user's next prompt came before another event"},
		{"the session has ended", eventOf("s1", "SessionEnd"), false, "the session has ended"},
		{"only another session goes on", eventOf("s2", "PreToolUse"), false, ""},
	} {
		t.Run(c.name, func(t *shell) {
			id := sent(t, "--agent", "lead", "builder-1", "Add login")
			if reason := reasonOf(t, hooked(t, eventOf("s1", "Stop"))); strings.Count(reason, "Subject: Add login") != 1 {
				t.Fatalf("%q", reason)
			}
			d := delivery(t, id)
			if at(t, d, "read_at") != nil || at(t, d, "offers", 0, "way") != "turn_end" || at(t, d, "offers", 0, "harness") != "s1" {
				t.Errorf("after the hook: %v", d)
			}
			if got := must0(t, "message", "report", id); !strings.Contains(got, "offered, not accepted yet: builder-1 by the hook at the end of a turn") {
				t.Errorf("%s", got)
			}
			if got := must0(t, "inbox"); !strings.Contains(got, "offered") {
				t.Errorf("%s", got)
			}
			if got := hooked(t, c.event); got.code != 0 || got.out != "" {
				t.Errorf("%+v", got)
			}
			d = delivery(t, id)
			if read := at(t, d, "read_at") != nil; read != c.read || at(t, d, "offers", 0, "why") != c.why {
				t.Errorf("after the next event: %v", d)
			}
			got := must0(t, "message", "get", id)
			switch {
			case c.read && !strings.Contains(got, "builder-1, offer 1 by the hook at the end of a turn to session s1, ") ||
				c.read && !strings.Contains(got, ": accepted after "),
				c.why != "" && !strings.Contains(got, ", "+c.why+"\n"):
				t.Errorf("%s", got)
			case c.why != "": // it is offered again
				if reason := reasonOf(t, hooked(t, eventOf("s3", "Stop"))); !strings.Contains(reason, "Add login") {
					t.Errorf("%q", reason)
				}
			}
			must0(t, "ack", id)
		})
	}
}

func TestHook_GivesBackWhatItCouldNotPassOn(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	t.Setenv("BROKERD_AGENT", "builder-1")
	id := sent(t, "--agent", "lead", "builder-1", "Add login")
	run(t.Context(), t.environment(stopInput, failingWriter{}, io.Discard), []string{"hook", "claude-code"})
	if why := at(t, delivery(t, id), "offers", 0, "why"); why != "the hook failed before the coding agent had it" {
		t.Errorf("%v", why)
	}
}

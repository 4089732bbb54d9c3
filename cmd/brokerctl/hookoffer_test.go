package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"brokerd/cmd/brokerctl/hook"
	"brokerd/internal/apptest"
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
		{"a prompt quotes it", eventOf("s1", "UserPromptSubmit"), true, ""},
		{"the session has ended", eventOf("s1", "SessionEnd"), false, "the session has ended"},
		{"only another session goes on", eventOf("s2", "PreToolUse"), false, ""},
	} {
		t.Run(c.name, func(t *shell) {
			id := sent(t, "--agent", "lead", "builder-1", "Add login")
			reason := reasonOf(t, hooked(t, eventOf("s1", "Stop")))
			if strings.Count(reason, "Subject: Add login") != 1 {
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
			event := c.event
			if c.name == "a prompt quotes it" { // as Gemini CLI begins the turn that a hook continues
				event = strings.Replace(event, `"go on"`, jsonText(reason), 1)
			}
			if got := hooked(t, event); got.code != 0 || got.out != "" {
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
	run(t.Context(), t.environment(stopInput, failingWriter{}, io.Discard), []string{"hook", "claude-code", "--within", "5m"})
	if why := at(t, delivery(t, id), "offers", 0, "why"); why != "the hook failed before the coding agent had it" {
		t.Errorf("%v", why)
	}
}

// contextOf returns what a hook after a tool call adds to the conversation; "" if it adds nothing.
func contextOf(t testing.TB, got result, event string) string {
	t.Helper()
	if got.code != 0 || got.err != "" {
		t.Fatalf("%+v", got)
	}
	if got.out == "" {
		return ""
	}
	answer := decode(t, got.out)
	if at(t, answer, "hookSpecificOutput", "hookEventName") != event {
		t.Errorf("%+v", got)
	}
	return at(t, answer, "hookSpecificOutput", "additionalContext").(string)
}

func TestHook_MailReachesTheModelInTheMiddleOfATurn(tt *testing.T) {
	t := newShell(tt)
	for vendor, events := range map[string]struct{ before, after, end string }{
		"claude-code": {"PreToolUse", "PostToolUse", "Stop"},
		"codex":       {"PreToolUse", "PostToolUse", "Stop"},
		"gemini":      {"BeforeTool", "AfterTool", "AfterAgent"},
	} {
		t.Run(vendor, func(t *shell) {
			t.Parallel()
			startBroker(t)
			register(t, "lead/lead", "builder-1/builder")
			t.Setenv("BROKERD_AGENT", "builder-1")
			hook := func(event string) result {
				return hookedBy(t, vendor, eventOf(vendor, event), "")
			}
			if text := contextOf(t, hook(events.after), events.after); text != "" {
				t.Errorf("without mail: %q", text)
			}
			id := sent(t, "--agent", "lead", "builder-1", "Add login")
			if got := hookedBy(t, vendor, strings.Replace(eventOf(vendor, events.after), `"cwd"`, `"agent_id":"sub","cwd"`, 1), ""); got.out != "" {
				t.Errorf("a subagent got it: %+v", got)
			}
			text := contextOf(t, hook(events.after), events.after)
			if !strings.HasPrefix(text, "1 message came for you") || strings.Count(text, "Subject: Add login") != 1 {
				t.Errorf("%q", text)
			}
			for _, event := range []string{events.before, events.after} { // of the same answer of the model
				if got := hook(event); got.code != 0 || got.out != "" {
					t.Errorf("%s: %+v", event, got)
				}
				if d := delivery(t, id); at(t, d, "read_at") != nil || at(t, d, "offers", 0, "way") != "tool_call" {
					t.Errorf("after %s: %v", event, d)
				}
			}
			if got := hook(events.end); got.code != 0 || got.out != "" {
				t.Errorf("%+v", got)
			}
			if d := delivery(t, id); at(t, d, "offers", 0, "accepted_at") == nil {
				t.Errorf("after the turn: %v", d)
			}
			must0(t, "ack", id)
		})
	}
}

// The plugin of opencode sees the requests to the model: only its word counts, not the end of a turn, which may be Esc.
func TestHook_APluginSaysWhatTheModelHas(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	t.Setenv("BROKERD_AGENT", "builder-1")
	plugin := func(event, prompt string, args ...string) result {
		return hookedBy(t, "opencode", strings.Replace(eventOf("s1", event), `"go on"`, jsonText(prompt), 1), "", args...)
	}
	for _, c := range []struct{ event, way string }{
		{"PostToolUse", "tool_call"}, {"UserPromptSubmit", "prompt"}, {"Stop", "turn_end"}, {"--wake", "plugin"},
	} {
		t.Run(c.event, func(t *shell) {
			id := sent(t, "--agent", "lead", "builder-1", "Add login")
			offer := func() (text string) {
				switch c.event {
				case "Stop":
					return reasonOf(t, plugin(c.event, "go on"))
				case "--wake":
					got := plugin("Stop", "go on", c.event)
					if got.code != hook.ExitBlock {
						t.Errorf("%+v", got)
					}
					return got.err
				}
				return contextOf(t, plugin(c.event, "go on"), c.event)
			}
			text := offer()
			for _, event := range []string{"PreToolUse", "PostToolUse", "UserPromptSubmit", "Stop"} {
				if got := plugin(event, text); got.code != 0 || got.out+got.err != "" {
					t.Errorf("%s: %+v", event, got)
				}
			}
			if d := delivery(t, id); at(t, d, "read_at") != nil || at(t, d, "offers", 0, "returned_at") != nil || at(t, d, "offers", 0, "way") != c.way {
				t.Errorf("%v", d)
			}
			plugin(hook.Returned, "without a mark")
			plugin(hook.Returned, text)
			if d := delivery(t, id); at(t, d, "offers", 0, "why") != "the plugin could not pass it on" {
				t.Errorf("%v", d)
			}
			if again := offer(); !strings.Contains(again, "Subject: Add login") {
				t.Errorf("%q", again)
			} else {
				plugin(hook.Accepted, again)
			}
			if d := delivery(t, id); at(t, d, "offers", 1, "accepted_at") == nil {
				t.Errorf("%v", d)
			}
			must0(t, "ack", id)
		})
	}
}

// A session whose program was started again has lost what was on its way.
func TestHook_ASessionThatIsResumedGetsItsMailAgain(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	t.Setenv("BROKERD_AGENT", "builder-1")
	for source, returned := range map[string]bool{"resume": true, "startup": true, "compact": false, "clear": false} {
		id := sent(t, "--agent", "lead", "builder-1", "Add login")
		reasonOf(t, hooked(t, eventOf("s1", "Stop")))
		hooked(t, strings.Replace(eventOf("s1", "SessionStart"), `"cwd"`, `"source":"`+source+`","cwd"`, 1))
		if d := delivery(t, id); (at(t, d, "offers", 0, "why") == "the program of the session was started again") != returned {
			t.Errorf("%s: %v", source, d)
		}
		must0(t, "ack", id)
	}
}

// A further call of a tool shows that the model has a message if the conversation has the message before the call.
func TestHook_AToolCallIsEvidenceIfItFollowsTheMessage(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	t.Setenv("BROKERD_AGENT", "builder-1")
	file := filepath.Join(t.TempDir(), "s.jsonl")
	call := func(id string) result {
		return hooked(t, strings.Replace(eventOf("s1", "PostToolUse"), `"cwd"`, `"transcript_path":"`+file+`","tool_use_id":"`+id+`","cwd"`, 1))
	}
	write := func(lines ...string) {
		t.Helper()
		apptest.NoError(t, os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600))
	}
	id := sent(t, "--agent", "lead", "builder-1", "Add login")
	mark := strings.Fields(strings.SplitN(contextOf(t, call("toolu_1"), "PostToolUse"), "\n", 2)[1])[1]
	for _, c := range []struct {
		name  string
		lines []string
		read  bool
	}{
		{"a parallel call", []string{"toolu_1 toolu_2", mark, "result of toolu_2"}, false},
		{"without the message", []string{"toolu_1", "toolu_2"}, false},
		{"a later call", []string{"toolu_1", mark, "toolu_2"}, true},
	} {
		write(c.lines...)
		if got := call("toolu_2"); got.code != 0 || got.out != "" {
			t.Errorf("%s: %+v", c.name, got)
		}
		if read := at(t, delivery(t, id), "read_at") != nil; read != c.read {
			t.Errorf("%s: read: %v", c.name, read)
		}
	}
}

func TestHook_OffersFewMessagesAtOnceAndCountsTheRest(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder", "builder-2/builder")
	t.Setenv("BROKERD_AGENT", "builder-1")
	for range 12 {
		sent(t, "--agent", "lead", "builder-1", "small")
	}
	text := contextOf(t, hooked(t, eventOf("s1", "PostToolUse")), "PostToolUse")
	if strings.Count(text, "Subject: small") != 10 || !strings.HasSuffix(text, "2 more wait: brokerctl inbox\n") {
		t.Errorf("%s", text)
	}
	t.Setenv("BROKERD_AGENT", "builder-2")
	for range 2 {
		sent(t, "--agent", "lead", "builder-2", "large", "--body", strings.Repeat("x", 6000))
	}
	text = contextOf(t, hooked(t, eventOf("s1", "PostToolUse")), "PostToolUse")
	if strings.Count(text, "Subject: large") != 1 || !strings.HasSuffix(text, "1 more wait: brokerctl inbox\n") {
		t.Errorf("%d bytes", len(text))
	}
}

// What an agent does not want to hear of unasked waits, and does not continue its turn.
func TestHook_PassesOnWhatTheAgentWants(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	configure(t, "agents: {builder-1: {role: builder, attention: directives}}\n")
	register(t, "lead/lead")
	if got := hooked(t, eventOf("s1", "SessionStart")); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	sent(t, "--agent", "lead", "builder-1", "News")
	must0(t, "--agent", "lead", "task", "create", "Build", "--assignee", "builder-1")
	for _, event := range []string{"PostToolUse", "Stop"} {
		if got := hooked(t, eventOf("s1", event)); got.code != 0 || got.out != "" {
			t.Errorf("%s passes on news: %+v", event, got)
		}
	}
	sent(t, "--agent", "lead", "role:builder", "For one of you")
	if got := hooked(t, eventOf("s1", "Stop"), "--listen", "1s"); got.code != 0 || got.out != "" {
		t.Errorf("a queue wakes it: %+v", got)
	}
	must0(t, "--agent", "lead", "agent", "nudge", "builder-1", "Look at a.go")
	got := hooked(t, eventOf("s1", "Stop"))
	if !strings.Contains(got.out, "Look at a.go") || strings.Contains(got.out, "News") || strings.Contains(got.out, "Build") ||
		!strings.Contains(got.out, "more wait: brokerctl") {
		t.Errorf("%+v", got)
	}
	must0(t, "agent", "heartbeat", "builder-1", "--attention", "open")
	if got := hooked(t, eventOf("s1", "PostToolUse")); !strings.Contains(got.out, "News") {
		t.Errorf("%+v", got)
	}
}

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"brokerd/cmd/brokerctl/mcp"
	"brokerd/internal/apptest"
	"brokerd/internal/processtest"
)

// mailReceipt returns the state of the newest offer of a message to builder-1: "offered", "accepted",
// "returned", or "" without one, with its way; and whether the message was read.
func mailReceipt(t *shell, id string) (state, way string, read bool) {
	t.Helper()
	d, _ := at(t, fields(t, "message", "get", id), "deliveries", 0).(map[string]any)
	offers, _ := d["offers"].([]any)
	if len(offers) == 0 {
		return "", "", d["read_at"] != nil
	}
	o := offers[len(offers)-1].(map[string]any)
	state = "offered"
	for _, later := range []string{"accepted", "returned"} {
		if o[later+"_at"] != nil {
			state = later
		}
	}
	return state, fmt.Sprint(o["way"]), d["read_at"] != nil
}

// wantReceipt wants the receipt of a message.
func wantReceipt(t *shell, id, state, way string, read bool) {
	t.Helper()
	if gotState, gotWay, gotRead := mailReceipt(t, id); gotState != state || gotWay != way || gotRead != read {
		t.Errorf("message %s is %s by %s, read %t; want %s by %s, read %t", id, gotState, gotWay, gotRead, state, way, read)
	}
}

func TestMCP_MailThatAToolShowsIsReadWhenTheModelContinues(tt *testing.T) {
	t := newShell(tt)
	startTeam(t)
	register(t, "lead/lead")
	m := startModel(t, "--agent", "builder-1")
	m.call("turn", `{}`)
	id := sent(t, "--agent", "lead", "builder-1", "Look", "--body", "At the page")
	m.call("turn", `{"read":"inbox"}`, "At the page", ", new ===")
	wantReceipt(t, id, "offered", "mcp", false)
	m.call("mail", `{"event":"PostToolUse"}`) // a hook is no evidence: the model may not have the result yet
	wantReceipt(t, id, "offered", "mcp", false)
	m.call("team", `{}`)
	wantReceipt(t, id, "accepted", "mcp", true)
}

func TestMCP_ANoticeThatATurnShowsIsReadWhenTheModelContinues(tt *testing.T) {
	t := newShell(tt)
	startTeam(t)
	register(t, "lead/lead")
	m := startModel(t, "--agent", "builder-1", "--role", "builder")
	m.call("turn", `{}`)
	must0(t, "--agent", "builder-1", "task", "create", "Look", "--id", "a", "--assignee", "lead")
	must0(t, "--agent", "lead", "task", "release", "a", "--decline", "--reason", "no time")
	m.call("turn", `{"wait":30}`, "Notice: task a was declined by lead: no time")
	notices := func() any {
		t.Helper()
		return at(t, fields(t, "--agent", "builder-1", "inbox", "--summary"), "notices")
	}
	if n := notices(); fmt.Sprint(n) != "1" {
		t.Errorf("%v notices are unread while nothing shows that the model has this one", n)
	}
	if text := m.call("turn", `{}`); strings.Contains(text, "declined") {
		t.Errorf("a notice is shown twice: %s", text)
	}
	if n := notices(); fmt.Sprint(n) != "0" {
		t.Errorf("%v notices are unread", n)
	}
}

func TestMCP_ANewServerShowsMailThatNoModelContinuedWith(tt *testing.T) {
	t := newShell(tt)
	startTeam(t)
	register(t, "lead/lead")
	m := startModel(t, "--agent", "builder-1")
	m.call("turn", `{}`)
	id := sent(t, "--agent", "lead", "builder-1", "Look")
	m.call("turn", `{"read":"inbox"}`, "Look")
	m.end()
	next := startModel(t, "--agent", "builder-1")
	next.call("team", `{}`)
	if state, _, read := mailReceipt(t, id); state == "accepted" || read {
		t.Errorf("the call of another model is taken for evidence: %s, read %t", state, read)
	}
}

func TestMCP_TheToolMailAnswersHooks(tt *testing.T) {
	t := newShell(tt)
	startTeam(t)
	register(t, "lead/lead")
	m := startModel(t, "--agent", "builder-1")
	m.call("turn", `{}`)
	transcript := filepath.Join(t.TempDir(), "conversation.jsonl")
	hook := func(call string) string {
		t.Helper()
		text, failed := m.try("mail", `{"event":"PostToolUse","session":"5b1c","transcript":"`+transcript+`","call":"`+call+`","agent":"${agent_id}"}`)
		if failed {
			t.Errorf("%s", text)
		}
		return text
	}
	says := func(lines ...string) {
		t.Helper()
		apptest.NoError(t, os.WriteFile(transcript, []byte(strings.Join(lines, "\n")), 0o600))
	}
	if got := hook("call-1"); got != "{}" {
		t.Errorf("without mail: %s", got)
	}
	id := sent(t, "--agent", "lead", "builder-1", "Look", "--body", "At the page")
	out := decode(t, hook("call-2"))
	text := fmt.Sprint(at(t, out, "hookSpecificOutput", "additionalContext"))
	if at(t, out, "hookSpecificOutput", "hookEventName") != "PostToolUse" ||
		!strings.Contains(text, "1 message came for you from other agents.") ||
		!strings.Contains(text, "At the page") || !strings.Contains(text, `settle {"id":"`+id+`"} when dealt with`) {
		t.Errorf("%s", text)
	}
	mark := regexp.MustCompile(`=== ([0-9a-f]{16}) message`).FindStringSubmatch(text)[1]
	// A call of the same answer as the one before: the conversation has it before the mark.
	says(`{"tool_use":["call-2","call-3"]}`, `{"result":"`+mark+`"}`)
	hook("call-3")
	wantReceipt(t, id, "offered", "tool_call", false)
	m.call("team", `{}`) // in the same answer too
	wantReceipt(t, id, "offered", "tool_call", false)
	says(`{"tool_use":["call-2","call-3"]}`, `{"result":"`+mark+`"}`, `{"tool_use":["call-4"]}`)
	hook("call-4")
	wantReceipt(t, id, "accepted", "tool_call", true)

	for _, event := range []string{`{"event":"Stop","session":"5b1c"}`, `{"event":"PostToolUse","session":"5b1c","agent":"sub-1"}`, `{}`, ``} {
		sent(t, "--agent", "lead", "builder-1", "More")
		if got, failed := m.try("mail", event); got != "{}" || failed {
			t.Errorf("%s: %s", event, got)
		}
	}
	if got, failed := m.try("mail", `{"event":7}`); !strings.Contains(got, "systemMessage") || failed {
		t.Errorf("%s", got)
	}
}

func TestMCP_AHookGetsTenMessagesAndACount(tt *testing.T) {
	t := newShell(tt)
	startTeam(t)
	register(t, "lead/lead")
	m := startModel(t, "--agent", "builder-1")
	m.call("turn", `{}`)
	for i := range 12 {
		sent(t, "--agent", "lead", "builder-1", fmt.Sprint("Message ", i))
	}
	text := m.call("mail", `{"event":"PostToolUse"}`, "10 messages came", `2 more wait: turn {\"read\":\"inbox\"}`)
	if n := strings.Count(text, "Subject: Message"); n != 10 {
		t.Errorf("%d messages", n)
	}
}

// The coding agent waits for the tool mail after each call of a tool, also when the broker is away or frozen.
func TestMCP_TheToolMailDoesNotWaitForABrokerThatIsAway(tt *testing.T) {
	t := newShell(tt)
	d := processtest.New(t, processtest.Build(t))
	isolate(t)
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("BROKERD_DATA", d.Dir())
	apptest.NoError(t, d.Start(t.Context()))
	m := startModel(t, "--agent", "builder-1")
	m.call("turn", `{}`)
	answers := func(when string) {
		t.Helper()
		began := time.Now()
		text, _ := m.try("mail", `{"event":"PostToolUse","session":"5b1c"}`)
		took := time.Since(began)
		t.Logf("%s: %v", when, took)
		if took > mcp.Patience/2 || !strings.Contains(text, "systemMessage") {
			t.Errorf("%s: after %v: %s", when, took, text)
		}
	}
	apptest.NoError(t, d.Signal(syscall.SIGSTOP))
	answers("frozen")
	apptest.NoError(t, d.Signal(syscall.SIGCONT))
	d.Kill()
	answers("down")
}

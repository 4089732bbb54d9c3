package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"brokerd/cmd/brokerctl/hook"
	"brokerd/internal/apptest"
	"brokerd/internal/prompt"
)

// hooked calls the hook as Claude Code does.
func hooked(t *shell, input string, args ...string) result {
	t.Helper()
	return t.invoke(t.Context(), strings.ReplaceAll(input, "DIR", t.dir), nil, append([]string{"hook", "claude-code", "--within", "5m"}, args...)...)
}

// Inputs as Claude Code writes them.
const (
	editInput = `{"session_id":"5b1c","transcript_path":"/home/dev/.claude/projects/p/5b1c.jsonl","cwd":"DIR","permission_mode":"default",
		"hook_event_name":"PreToolUse","tool_name":"Edit","tool_use_id":"toolu_01",
		"tool_input":{"file_path":"DIR/src/a.go","old_string":"x","new_string":"y","replace_all":false}}`
	stopInput = `{"session_id":"5b1c","transcript_path":"/home/dev/.claude/projects/p/5b1c.jsonl","cwd":"DIR","permission_mode":"default",
		"hook_event_name":"Stop","stop_hook_active":false,"last_assistant_message":"Done."}`
	endInput = `{"session_id":"5b1c","transcript_path":"/home/dev/.claude/projects/p/5b1c.jsonl","cwd":"DIR","hook_event_name":"SessionEnd","reason":"logout"}`
)

func TestHook_AFileIsTheSessionsThatWritesIt(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	configure(t, "agents: {builder-1: {}}\n")
	for range 2 { // the first registers the agent, the second extends
		if got := hooked(t, editInput, "--role", "builder"); got.code != 0 || got.out != "" || got.err != "" {
			t.Fatalf("%+v", got)
		}
	}
	if a := fields(t, "agent", "get", "builder-1"); at(t, a, "agent", "lease") != "24h" || at(t, a, "agent", "role") != "builder" {
		t.Errorf("%v", a)
	}
	lock := fields(t, "lock", "list")
	if at(t, lock, "paths", 0) != "src/a.go" || at(t, lock, "holder") != "5b1c" || at(t, lock, "max_hold") != "15m" {
		t.Errorf("%v", lock)
	}
	if n := strings.Count(must0(t, "event", "list", "--type", "lock.extended", "-o", "json"), "\n"); n != 1 {
		t.Errorf("extended %d times", n)
	}
	other := strings.ReplaceAll(editInput, "5b1c", "77aa")
	for _, who := range []string{"", "builder-2"} { // another session of the same agent, and another agent
		t.Setenv("BROKERD_AGENT", who)
		got := hooked(t, other)
		if got.code != 2 || !strings.Contains(got.err, "src/a.go is held by builder-1, ends in ") ||
			!strings.Contains(got.err, "brokerctl lock acquire src/a.go --holder 77aa --for 15m --wait 90s, or ask: brokerctl send builder-1 TEXT") {
			t.Errorf("%q: %+v", who, got)
		}
	}
	t.Setenv("BROKERD_AGENT", "")
	for _, harmless := range []string{
		strings.ReplaceAll(other, `"Edit"`, `"Read"`),
		strings.ReplaceAll(other, "DIR/src/a.go", "/etc/passwd"),
		strings.ReplaceAll(other, "DIR/src/a.go", ""),
		strings.ReplaceAll(other, "PreToolUse", "Notification"),
	} {
		if got := hooked(t, harmless); got.code != 0 || got.out != "" || got.err != "" {
			t.Errorf("%s: %+v", harmless, got)
		}
	}
	for _, tool := range []string{"Write", "MultiEdit", "mcp__files__write_file"} {
		if got := hooked(t, strings.ReplaceAll(other, `"Edit"`, `"`+tool+`"`)); got.code != 2 {
			t.Errorf("%s: %+v", tool, got)
		}
	}
	if got := hooked(t, strings.ReplaceAll(strings.ReplaceAll(other, `"Edit"`, `"NotebookEdit"`), "file_path", "notebook_path")); got.code != 2 {
		t.Errorf("%+v", got)
	}
	if got := hooked(t, strings.ReplaceAll(editInput, "PreToolUse", "PostToolUse")); got.code != 0 {
		t.Errorf("%+v", got)
	}
	if a := fields(t, "agent", "get", "builder-1"); at(t, a, "agent", "last_tool") != "Edit" || at(t, a, "agent", "last_file") != "src/a.go" || at(t, a, "agent", "status") != "active" {
		t.Errorf("%v", a)
	}
	if got := hooked(t, endInput); got.code != 0 || got.out != "" {
		t.Errorf("%+v", got)
	}
	if got := hooked(t, other); got.code != 0 {
		t.Errorf("after the session's end: %+v", got)
	}
}

// An agent can lock what it is about to write, as the tool lock of brokerctl mcp does.
func TestHook_AFileThatTheAgentHasLockedNeedsNoOtherLock(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "builder-1/builder", "builder-2/builder")
	t.Setenv("BROKERD_AGENT", "builder-1")
	must0(t, "lock", "acquire", "src/", "--for", "1h")
	for _, session := range []string{"5b1c", "77aa"} {
		if got := hooked(t, strings.ReplaceAll(editInput, "5b1c", session)); got.code != 0 || got.out != "" || got.err != "" {
			t.Fatalf("session %s: %+v", session, got)
		}
	}
	if lock := fields(t, "lock", "list"); at(t, lock, "paths", 0) != "src/" {
		t.Errorf("another lock than the agent's: %v", lock)
	}
	if n := strings.Count(must0(t, "event", "list", "--type", "lock.extended", "-o", "json"), "\n"); n != 2 {
		t.Errorf("extended %d times", n)
	}
	t.Setenv("BROKERD_AGENT", "builder-2")
	other := hooked(t, editInput)
	if other.code != hook.ExitBlock || !strings.Contains(other.err, "is held by builder-1") {
		t.Errorf("another agent: %+v", other)
	}
	t.Setenv("BROKERD_AGENT", "builder-1")
	must0(t, "lock", "release", "src/")
	must0(t, "lock", "acquire", "src/a.go", "--shared")
	if got := hooked(t, editInput); got.code != hook.ExitBlock {
		t.Errorf("a shared lock permits no writing: %+v", got)
	}
	must0(t, "lock", "release", "src/a.go")
	must0(t, "lock", "acquire", "src/a.go", "--holder", "77aa")
	if got := hooked(t, editInput); got.code != hook.ExitBlock || !strings.Contains(got.err, "is held by builder-1, ends in ") {
		t.Errorf("a lock of another session: %+v", got)
	}
	must0(t, "lock", "release", "src/a.go", "--holder", "77aa")
	must0(t, "lock", "acquire", "src/b.go")
	if got := hookedBy(t, "codex", vendorInputs["codex"].write, "5b1c"); got.code != 0 || got.err != "" {
		t.Errorf("a patch of a.go and b.go: %+v", got)
	}
	for file, holder := range map[string]any{"src/a.go": "5b1c", "src/b.go": ""} {
		lock := fields(t, "lock", "list", file)
		if at(t, lock, "holder") != holder || len(at(t, lock, "paths").([]any)) != 1 {
			t.Errorf("after the patch: %v", lock)
		}
	}
}

func TestHook_TheTurnsEndDeliversOnce(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	t.Setenv("BROKERD_AGENT", "builder-1")
	if got := hooked(t, stopInput); got.code != 0 || got.out != "" {
		t.Errorf("nothing is there: %+v", got)
	}
	if a := fields(t, "agent", "get"); at(t, a, "agent", "status") != "idle" {
		t.Errorf("%v", a)
	}
	task := sent(t, "--agent", "lead", "builder-1", "Add login", "--body", "Name and password.")
	known := sent(t, "--agent", "lead", "builder-1", "claimed by itself")
	must0(t, "message", "get", known)
	must0(t, "--agent", "lead", "agent", "nudge", "builder-1", "look")
	if got := hooked(t, strings.ReplaceAll(stopInput, "false", "true")); got.code != 0 || got.out != "" {
		t.Errorf("a turn that a hook began goes on for ever: %+v", got)
	}
	got := hooked(t, stopInput)
	answer := decode(t, got.out)
	reason := at(t, answer, "reason").(string)
	if got.code != 0 || at(t, answer, "decision") != "block" || strings.Index(reason, "nudge from lead") > strings.Index(reason, "Subject: Add login") ||
		!strings.Contains(reason, "Name and password.\n") || !strings.Contains(reason, "Next: brokerctl ack "+task+" when dealt with") {
		t.Errorf("%+v", got)
	}
	if got := hooked(t, stopInput, "--keep-going"); got.code != 0 || got.out != "" {
		t.Errorf("told twice: %+v", got)
	}
	sent(t, "--agent", "lead", "builder-1", "one more")
	if got := hooked(t, strings.ReplaceAll(stopInput, "false", "true"), "--keep-going"); !strings.Contains(got.out, "one more") {
		t.Errorf("%+v", got)
	}
}

func TestHook_TheTurnsEndShowsOpenWorkOncePerTurn(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	t.Setenv("BROKERD_AGENT", "builder-1")
	planned(t, smallPlan)
	if got := hooked(t, stopInput); got.code != 0 || got.out != "" {
		t.Errorf("without open work: %+v", got)
	}
	must0(t, "task", "claim")
	reason := at(t, decode(t, hooked(t, stopInput).out), "reason").(string)
	mark := strings.Fields(reason)[1]
	if !strings.Contains(reason, "schema: Write the schema\n=== "+mark+" end ===\nOpen: holds task schema (claimed, due in 2h) → brokerctl task complete schema\n") {
		t.Errorf("%q", reason)
	}
	if got := hooked(t, strings.ReplaceAll(stopInput, "false", "true"), "--keep-going"); got.code != 0 || got.out != "" {
		t.Errorf("the same work begins a further turn: %+v", got)
	}
	must0(t, "task", "block", "--reason", "no access")
	if got := hooked(t, stopInput); got.out != "" {
		t.Errorf("with a blocked task: %+v", got)
	}
}

func TestHook_WithoutABrokerItFailsAsAsked(tt *testing.T) {
	t := newShell(tt)
	isolate(t)
	t.Setenv("BROKERD_AGENT", "builder-1")
	away := []string{"--addr", "127.0.0.1:1"}
	got := hooked(t, editInput, away...)
	if warning := at(t, decode(t, got.out), "systemMessage"); got.code != 0 || !strings.Contains(got.err, "no broker is running") || !strings.HasSuffix(warning.(string), "the file is not locked") {
		t.Errorf("open: %+v", got)
	}
	if got := hooked(t, editInput, append(away, "--fail", "closed")...); got.code != 2 || !strings.Contains(got.err, "no broker is running") {
		t.Errorf("closed: %+v", got)
	}
	for _, input := range []string{stopInput, endInput, strings.ReplaceAll(editInput, `"Edit"`, `"Read"`)} {
		if got := hooked(t, input, append(away, "--fail", "closed")...); got.code != 0 {
			t.Errorf("nothing is written: %+v", got)
		}
	}
	configure(t, "nonsense: 1\n")
	if got := hooked(t, editInput, away...); got.code != 0 || !strings.Contains(got.err, "unknown key") {
		t.Errorf("a wrong file: %+v", got)
	}
	if got := hooked(t, "{"); got.code != 0 || got.err == "" {
		t.Errorf("no input: %+v", got)
	}
	if got := hooked(t, editInput, "--fail", "maybe"); got.code != 2 {
		t.Errorf("%+v", got)
	}
}

func TestHook_WithoutANameItSaysHowToGetOne(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	if got := hooked(t, editInput); got.code != 0 || !strings.Contains(got.err, "brokerctl init --agent NAME") {
		t.Errorf("%+v", got)
	}
}

// The page's settings are JSON, and name events and a command that are there.
func TestHook_ThePagesSettingsWork(tt *testing.T) {
	t := newShell(tt)
	text, err := os.ReadFile("../../docs/hooks.md")
	apptest.NoError(t, err)
	_, block, _ := strings.Cut(string(text), "```json\n")
	block, _, _ = strings.Cut(block, "```")
	var settings struct {
		Hooks map[string][]struct {
			Matcher string
			Hooks   []struct {
				Type, Command string
				Timeout       int
			}
		}
	}
	d := json.NewDecoder(strings.NewReader(block))
	d.DisallowUnknownFields()
	apptest.NoError(t, d.Decode(&settings))
	startBroker(t)
	t.Setenv("BROKERD_AGENT", "builder-1")
	for _, event := range []string{"SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "Stop", "SessionEnd"} {
		for _, m := range settings.Hooks[event] {
			for _, h := range m.Hooks {
				if h.Type != "command" || h.Command != "brokerctl hook claude-code" {
					t.Errorf("%s: %+v", event, h)
				}
				if got := hooked(t, strings.ReplaceAll(editInput, "PreToolUse", event)); got.code != 0 || got.err != "" {
					t.Errorf("%s: %+v", event, got)
				}
			}
			if tools := m.Matcher; tools != prompt.Either(event == "PreToolUse", "Edit|Write|MultiEdit|NotebookEdit", "") {
				t.Errorf("%s is for %q", event, tools)
			}
		}
		if len(settings.Hooks[event]) == 0 {
			t.Errorf("no %s", event)
		}
	}
}

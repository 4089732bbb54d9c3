package main

import (
	"io"
	"maps"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"brokerd/cmd/brokerctl/harness"
	"brokerd/cmd/brokerctl/hook"
	"brokerd/internal/apptest"
)

// open returns the shell with a coding agent of its own, which is a process.
func (t *shell) open() *shell {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "cat")
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	apptest.NoError(t, err)
	own := *t
	own.agent = cmd
	t.Cleanup(func() { _ = in.Close(); own.quit() })
	return &own
}

// quit kills the coding agent.
func (t *shell) quit() {
	_ = t.agent.Process.Kill()
	_ = t.agent.Wait() // it was killed
}

// event calls the hook of Claude Code that setup writes, in a session.
func (t *shell) event(session, name string, more ...string) result {
	t.Helper()
	fields := `"session_id":"` + session + `","hook_event_name":"` + name + `","cwd":"` + t.dir + `"`
	for _, f := range more {
		fields += "," + f
	}
	got := t.invoke(t.Context(), "{"+fields+"}", nil, "--agent", "builder-1", "hook", "claude-code", "--within", "5m")
	if got.code != 0 {
		t.Errorf("%s: %+v", name, got)
	}
	return got
}

// environWith returns the shell with another variable.
func (t *shell) environWith(name, value string) *shell {
	other := *t
	other.variables = maps.Clone(t.variables)
	other.variables[name] = value
	return &other
}

// acts returns the agent as which a command of the model acts.
func (t *shell) acts() any {
	t.Helper()
	return at(t, fields(t, "whoami"), "agent")
}

func TestSession_EachHasAnAgentOfItsOwn(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	configure(t, "agents: {builder-1: {role: builder, attention: directives}}\n")
	register(t, "lead/lead")
	a, b := t.open(), t.open()
	a.event("a", "SessionStart")
	b.event("b", "SessionStart")
	edit := []string{`"tool_name":"Edit"`, `"tool_input":{"file_path":"` + t.dir + `/src/a.go"}`}
	a.event("a", "PreToolUse", edit...)
	if got := b.invoke(t.Context(), `{"session_id":"b","hook_event_name":"PreToolUse","cwd":"`+t.dir+`",`+strings.Join(edit, ",")+"}", nil,
		"--agent", "builder-1", "hook", "claude-code"); got.code != hook.ExitBlock || !strings.Contains(got.err, "builder-1") {
		t.Errorf("the file of another session: %+v", got)
	}
	if a.acts() != "builder-1" || b.acts() != "builder-1-2" || t.acts() != "builder-1" {
		t.Errorf("commands of their models act as %v and %v, of a person as %v", a.acts(), b.acts(), t.acts())
	}
	if named := t.environWith("CLAUDE_CODE_SESSION_ID", "b"); named.acts() != "builder-1-2" {
		t.Errorf("with the session in its environment, a command acts as %v", named.acts())
	}
	if got := fields(b, "--agent", "lead", "whoami"); at(t, got, "agent") != "lead" {
		t.Errorf("a name on the command line: %v", got)
	}
	second := at(t, fields(t, "agent", "get", "builder-1-2"), "agent")
	if at(t, second, "role") != "builder" || at(t, second, "attention") != "directives" {
		t.Errorf("the second one is %v", second)
	}
}

func TestSession_AResumedOneHasItsNameAndItsMailAgain(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead")
	a, b := t.open(), t.open()
	a.event("a", "SessionStart")
	b.event("b", "SessionStart")
	b.quit()
	id := sent(t, "--agent", "lead", "builder-1-2", "Your mail")
	other := t.open()
	other.event("c", "SessionStart")
	if other.acts() != "builder-1-2" {
		t.Errorf("a new session acts as %v", other.acts())
	}
	other.event("c", "SessionEnd")
	again := t.open()
	again.event("b", "SessionStart", `"source":"resume"`)
	if got := again.event("b", "Stop"); !strings.Contains(got.out, "Your mail") {
		t.Errorf("the resumed session gets %+v", got)
	}
	again.event("b", "PostToolUse", `"tool_name":"Bash"`)
	if d := delivery(t, id); at(t, d, "read_at") == nil {
		t.Errorf("the receipt: %v", d)
	}
}

func TestSession_HooksReportWhatItDoes(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	presence := func() string {
		t.Helper()
		agent := at(t, fields(t, "agent", "get", "builder-1"), "agent")
		text := at(t, agent, "harness", "state").(string) + " " + at(t, agent, "harness", "tool").(string)
		if at(t, agent, "harness", "session") != "s" || at(t, agent, "harness", "program") != "claude-code" {
			t.Errorf("%v", agent)
		}
		return text
	}
	for _, c := range []struct {
		event string
		more  []string
		want  string
	}{
		{"SessionStart", nil, "idle "},
		{"UserPromptSubmit", []string{`"prompt":"hello"`}, "busy "},
		{"PostToolUse", []string{`"tool_name":"Bash"`}, "busy Bash"},
		{"PostToolUse", []string{`"tool_name":"Read"`, `"agent_id":"sub"`}, "busy Bash"},
		{"SessionStart", []string{`"source":"compact"`}, "busy "},
		{"PreToolUse", []string{`"tool_name":"Edit"`, `"tool_input":{"file_path":"` + t.dir + `/a.go"}`}, "busy Edit"},
		{"Stop", nil, "idle "},
		{"SessionEnd", nil, "ended "},
	} {
		t.event("s", c.event, c.more...)
		if got := presence(); got != c.want {
			t.Errorf("after %s: %q, want %q", c.event, got, c.want)
		}
	}
	t.event("s", "UserPromptSubmit", `"prompt":"again"`)
	shown := t.invoke(t.Context(), "", nil, "agent", "get", "builder-1")
	if !strings.Contains(shown.out, "busy for ") || !strings.Contains(shown.out, ", claude-code") {
		t.Errorf("%s", shown.out)
	}
	if list := t.invoke(t.Context(), "", nil, "agent", "list"); !strings.Contains(list.out, "busy for ") {
		t.Errorf("%s", list.out)
	}
}

// A server that starts before the hooks, and is not told its session, acts as that session as soon as it is known.
func TestSession_TheMCPServerFollowsIt(tt *testing.T) {
	t := newShell(tt)
	startTeam(t)
	register(t, "lead/lead")
	a, b := t.open(), t.open()
	a.event("a", "SessionStart")
	b.event("b", "SessionStart")
	b.quit()
	a.event("a", "SessionEnd")

	m := startModel(t, "--agent", "builder-1")
	m.call("turn", `{}`, "You are the agent builder-1 in")
	t.event("b", "SessionStart", `"source":"resume"`)
	sent(t, "--agent", "lead", "builder-1-2", "Your mail")
	m.call("turn", `{}`, "You are the agent builder-1-2 in", "Your mail")
	if got := at(t, fields(t, "agent", "get", "builder-1"), "agent", "state"); got != "stopped" {
		t.Errorf("the name that it had is %v", got)
	}
}

// Codex has one process for many sessions, and names the session in each call.
func TestMCP_TheServerOfCodexActsAsTheSessionOfTheCall(tt *testing.T) {
	t := newShell(tt)
	startTeam(t)
	t.open().event("a", "SessionStart")
	t.open().event("b", "SessionStart")
	must0(t, "--agent", "", "agent", "deregister", "builder-1")

	in, toServer := io.Pipe()
	fromServer, out := io.Pipe()
	env := t.environment("", out, t.Output())
	env.In = in
	env.Ancestors = func() []harness.Known { return []harness.Known{{Process: harness.At(os.Getpid()), Name: "codex"}} }
	var serving sync.WaitGroup
	serving.Go(func() {
		run(t.Context(), env, []string{"mcp", "--agent", "builder-1"})
		_ = out.Close()
	})
	defer serving.Wait()
	codex := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	session, err := codex.Connect(t.Context(), &mcp.IOTransport{Reader: fromServer, Writer: toServer}, nil)
	apptest.NoError(t, err)
	defer func() { _ = session.Close() }()
	if got := ctl(t, "agent", "get", "builder-1"); got.code != 3 {
		t.Errorf("before the first call: %+v", got)
	}
	for _, one := range []struct{ session, agent string }{{"b", "builder-1-2"}, {"a", "builder-1"}, {"b", "builder-1-2"}} {
		params := &mcp.CallToolParams{Name: "turn", Meta: mcp.Meta{"sessionId": one.session}, Arguments: map[string]any{}}
		result, err := session.CallTool(t.Context(), params)
		apptest.NoError(t, err)
		text := result.Content[0].(*mcp.TextContent).Text
		if want := "You are the agent " + one.agent + " in"; result.IsError || !strings.Contains(text, want) {
			t.Errorf("%s: got\n%s\nwithout %q", one.session, text, want)
		}
	}
}

package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"brokerd/internal/apptest"
)

// A model is an MCP client: it has one coding agent's session with `brokerctl mcp`.
type model struct {
	t       *shell
	session *mcp.ClientSession
	server  *exec.Cmd
}

// startModel runs brokerctl mcp as a separate process.
func startModel(t *shell, args ...string) *model {
	t.Helper()
	return startModelIn(t, "", args...)
}

// startModelIn is startModel in a folder.
func startModelIn(t *shell, folder string, args ...string) *model {
	t.Helper()
	server := exec.Command(os.Args[0], append([]string{"mcp"}, args...)...)
	server.Env = t.environ(asProgram + "=1")
	server.Dir = t.path(folder)
	server.Stderr = t.Output()
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	session, err := client.Connect(t.Context(), &mcp.CommandTransport{Command: server}, nil)
	apptest.NoError(t, err)
	m := &model{t, session, server}
	t.Cleanup(m.end)
	return m
}

// end closes the server's standard input and waits until the process has ended.
func (m *model) end() { _ = m.session.Close() }

// try calls a tool and returns the text of the result, and whether it is an error.
func (m *model) try(tool, args string) (string, bool) {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	defer cancel()
	return m.tryIn(ctx, tool, args)
}

func (m *model) tryIn(ctx context.Context, tool, args string) (string, bool) {
	m.t.Helper()
	params := &mcp.CallToolParams{Name: tool}
	if args != "" {
		params.Arguments = json.RawMessage(args)
	}
	result, err := m.session.CallTool(ctx, params)
	if err != nil {
		m.t.Errorf("%s %s: a protocol error: %v", tool, args, err)
		return "", true
	}
	return result.Content[0].(*mcp.TextContent).Text, result.IsError
}

// call calls a tool and wants success and the given texts in the result.
func (m *model) call(tool, args string, wants ...string) string {
	m.t.Helper()
	text, failed := m.try(tool, args)
	if failed {
		m.t.Fatalf("%s %s: an error: %s", tool, args, text)
	}
	m.wants(tool, args, text, wants)
	return text
}

// refused calls a tool and wants an error with the given texts.
func (m *model) refused(tool, args string, wants ...string) {
	m.t.Helper()
	text, failed := m.try(tool, args)
	if !failed {
		m.t.Errorf("%s %s: no error: %s", tool, args, text)
	}
	m.wants(tool, args, text, wants)
}

func (m *model) wants(tool, args, text string, wants []string) {
	m.t.Helper()
	for _, want := range wants {
		if !strings.Contains(text, want) {
			m.t.Errorf("%s %s: got\n%s\nwithout %q", tool, args, text, want)
		}
	}
}

// awaitRegistered returns when a server has registered its agent, which may take longer than it waits for that.
func awaitRegistered(t *shell, name string) {
	t.Helper()
	until(t, "the server registers "+name, func() bool { return ctl(t, "--agent", "", "agent", "get", name).code == 0 })
}

// startTeam runs a broker, and keeps the names that servers take in a folder of the test.
func startTeam(t *shell) {
	t.Helper()
	startBroker(t)
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
}

// The estimate of tokens is that of the help pages: a quarter of the bytes.
func TestMCP_TheToolListIsShort(tt *testing.T) {
	t := newShell(tt)
	startTeam(t)
	m := startModel(t)
	list, err := m.session.ListTools(t.Context(), nil)
	apptest.NoError(t, err)
	text, err := json.Marshal(list)
	apptest.NoError(t, err)
	t.Logf("%d tools, %d tokens", len(list.Tools), len(text)/4)
	if n := len(text) / 4; n >= 1600 {
		t.Errorf("%d tokens", n)
	}
	if len(list.Tools) > 9 {
		t.Errorf("%d tools", len(list.Tools))
	}
	for _, tool := range list.Tools {
		if n := len(strings.Fields(tool.Description)); n >= 80 {
			t.Errorf("%s: the description has %d words", tool.Name, n)
		}
	}
	if n := len(m.session.InitializeResult().Instructions) / 4; n > 120 {
		t.Errorf("the instructions have %d tokens", n)
	}
}

func TestMCP_ATurnTakesTwoCalls(tt *testing.T) {
	t := newShell(tt)
	startTeam(t)
	register(t, "lead/lead")
	m := startModel(t, "--agent", "builder-1", "--role", "builder")
	m.call("turn", `{}`, "You are the agent builder-1 (builder) in the session default.", "nothing to claim",
		`turn {"wait":50}`)
	sent(t, "--agent", "lead", "role:builder", "Which branch?")
	body := strings.Repeat("0123456789", 20)
	question := sent(t, "--agent", "lead", "builder-1", "Look", "--body", body, "--priority", "high", "--task", "t1",
		"--requires-response")
	text := m.call("turn", `{"wait":50}`, "Subject: Look\n"+body,
		`Next: settle {"id":"`+question+`.1","text":"TEXT"} when done`,
		`settle {"id":"`+question+`.1","as":"fail","text":"ERROR"} if it failed`,
		`settle {"id":"`+question+`.1","as":"release"} to return it`)
	if n := (len(text) - len(body)) / 4; n >= 200 {
		t.Errorf("a message costs %d tokens over its content:\n%s", n, text)
	}
	m.call("settle", `{"id":"`+question+`","text":"On main","next":0}`, "acked the message that was answered",
		"Subject: Which branch?")
	if got := fields(t, "--agent", "lead", "claim"); at(t, got, "message", "body") != "On main" {
		t.Errorf("%v", got)
	}
}

func TestMCP_AMistakeIsAResultThatSaysWhatToDo(tt *testing.T) {
	t := newShell(tt)
	startTeam(t)
	m := startModel(t, "--agent", "builder-1")
	m.refused("settle", `{"txt":"x"}`, `settle has no argument "txt"; it has id, as, text`)
	m.refused("send", `{"to":"nobody-here","text":"Hi"}`, "nobody-here")
	m.refused("send", `{"to":"builder-1","text":"Hi","priority":"soon"}`, `priority "soon" is neither 1 to 10`)
	m.refused("settle", `{"id":"4711","text":"Done"}`, "4711")
	m.refused("turn", `{"wait":"soon"}`, `wait must be a number of seconds, not "soon"`)
}

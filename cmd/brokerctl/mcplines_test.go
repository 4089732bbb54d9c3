package main

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"

	"brokerd/cmd/brokerctl/mcp"
	"brokerd/internal/apptest"
)

// A rawClient writes lines to brokerctl mcp and reads its answers.
type rawClient struct {
	t       *shell
	write   func(line string)
	answers *bufio.Reader
}

// startRaw runs brokerctl mcp as a separate process and initializes a session.
func startRaw(t *shell) *rawClient {
	t.Helper()
	server := exec.Command(os.Args[0], "mcp", "--agent", "builder-1")
	server.Env = t.environ(asProgram + "=1")
	server.Dir = t.dir
	server.Stderr = t.Output()
	in, err := server.StdinPipe()
	apptest.NoError(t, err)
	out, err := server.StdoutPipe()
	apptest.NoError(t, err)
	apptest.NoError(t, server.Start())
	c := &rawClient{t: t, answers: bufio.NewReader(out), write: func(line string) {
		t.Helper()
		apptest.NoError(t, apptest.Err(in.Write([]byte(line+"\n"))))
	}}
	t.Cleanup(func() {
		_ = in.Close() // ends the server
		if err := server.Wait(); err != nil {
			t.Errorf("the server ended with %v", err)
		}
	})
	c.write(`{"jsonrpc":"2.0","id":"hello","method":"initialize","params":{"protocolVersion":"2025-06-18",` +
		`"capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`)
	if got := c.answer(); at(t, got, "id") != "hello" {
		t.Fatalf("%v", got)
	}
	c.write(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return c
}

// answer returns the next line that the server writes.
func (c *rawClient) answer() map[string]any {
	c.t.Helper()
	line, err := c.answers.ReadString('\n')
	if err != nil {
		c.t.Fatalf("no answer: %v", err)
	}
	return decode(c.t, line)
}

// ping wants the answer to a ping: the server continues.
func (c *rawClient) ping() {
	c.t.Helper()
	c.write(`{"jsonrpc":"2.0","id":"ping","method":"ping"}`)
	if got := c.answer(); at(c.t, got, "id") != "ping" || got["error"] != nil {
		c.t.Fatalf("%v", got)
	}
}

func TestMCP_ALineThatIsNoRequestIsAnsweredAndTheServerContinues(tt *testing.T) {
	t := newShell(tt)
	startTeam(t)
	c := startRaw(t)
	const parse, invalid = json.Number("-32700"), json.Number("-32600")
	for _, test := range []struct {
		line  string
		codes []json.Number
	}{
		{"garbage", []json.Number{parse}},
		{`{"jsonrpc":"2.0","id":1,"method":"ping"} trailing`, []json.Number{parse}},
		{`{"jsonrpc":"2.0","id":1,`, []json.Number{parse}},
		{"\x00\xff\xfe", []json.Number{parse}},
		{strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000), []json.Number{parse}},
		{strings.Repeat(`{"a":`, 100_000) + "1" + strings.Repeat("}", 100_000), []json.Number{parse}},
		{strings.Repeat("x", mcp.MostLine+1), []json.Number{parse}},
		{`"` + strings.Repeat("x", mcp.MostLine/2) + `"`, []json.Number{invalid}},
		{"{}", []json.Number{invalid}},
		{"[]", []json.Number{invalid}},
		{"null", []json.Number{invalid}},
		{"5", []json.Number{invalid}},
		{`"ping"`, []json.Number{invalid}},
		{`[1,{}]`, []json.Number{invalid, invalid}},
		{`{"jsonrpc":"2.0","id":{"a":1},"method":"ping"}`, []json.Number{invalid}},
		{`{"jsonrpc":"2.0","id":true,"method":"ping"}`, []json.Number{invalid}},
		{`{"jsonrpc":"1.0","id":1,"method":"ping"}`, []json.Number{invalid}},
		{`{"id":1,"method":"ping"}`, []json.Number{invalid}},
		{`{"jsonrpc":"2.0","id":1,"method":{}}`, []json.Number{invalid}},
		{`{"jsonrpc":"2.0","id":1}`, []json.Number{invalid}},
		{"", nil},
		{`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"x"}}`, nil},
		{`{"jsonrpc":"2.0","id":{},"result":{}}`, nil},
		{`{"jsonrpc":"2.0","id":99,"result":{}}`, nil},
	} {
		c.write(test.line)
		for _, code := range test.codes {
			got := c.answer()
			if id, present := got["id"]; !present || id != nil || at(t, got, "error", "code") != code || got["jsonrpc"] != "2.0" {
				t.Errorf("%.80q is answered by %v", test.line, got)
			}
		}
		c.ping()
	}
	c.write(`[{"jsonrpc":"2.0","id":7,"method":"ping"},{"jsonrpc":"2.0","id":8,"method":"ping"}]`)
	seen := map[any]bool{}
	for range 2 {
		got := c.answer()
		seen[got["id"]] = got["error"] == nil
	}
	if !seen[json.Number("7")] || !seen[json.Number("8")] {
		t.Errorf("a batch is answered by %v", seen)
	}
}

package web_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"brokerd/internal/apptest"
)

// answerTime is how long the broker may take for a request that waits for nothing, on a busy machine.
const answerTime = 20 * time.Second

// FuzzMCP sends any body to /mcp as an agent. The broker answers each of them, and none with an error of its own.
func FuzzMCP(f *testing.F) {
	const versions = "2025-06-18"
	f.Add(initialize, "")
	f.Add(initialize, versions)
	f.Add("["+initialize+"]", "2025-03-26")
	f.Add(`{"jsonrpc":"2.0","id":"a","method":"tools/list"}`, "2026-07-28")
	f.Add(`{"jsonrpc":"2.0","method":"notifications/initialized"}`, versions)
	f.Add(`{"jsonrpc":"2.0","id":1,"result":{}}`, versions)
	f.Add(`{"jsonrpc":"2.0","id":{},"method":"ping","params":[1]}`, versions)
	f.Add(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"mail","arguments":{"event":"PostToolUse"}}}`, versions)
	for _, call := range []string{
		`"turn","arguments":{"read":"inbox"}`, `"turn","arguments":"{}"`, `"send","arguments":{"to":"lead","text":"x","data":[1,{"a":null}]}`,
		`"settle","arguments":{"as":"fail","final":true}`, `"lock","arguments":{"action":"acquire","paths":["a","../b",""]}`,
		`"state","arguments":{"action":"put","key":"k","value":1e400}`, `"task","arguments":{"action":"update","progress":"x"}`,
		`"decide","arguments":{"action":"vote","about":"x","options":["a","b"],"to":["role:x","y"]}`,
		`"team","arguments":{"about":["lock","x","y"]}`, `"nothing","arguments":[]`,
	} {
		f.Add(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":`+call+`}}`, versions)
	}
	b := apptest.Start(f)
	b.Registered("lead", "lead")
	socket := strings.TrimPrefix(b.Socket(), "unix://")
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	f.Cleanup(transport.CloseIdleConnections)
	f.Fuzz(func(t *testing.T, body, version string) {
		for _, waits := range []string{"wait", "ask", "next", `\`} {
			if strings.Contains(body, waits) {
				t.Skip("the request waits, or may do so")
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), answerTime)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, "POST", "http://brokerd/mcp", strings.NewReader(body))
		apptest.NoError(t, err)
		r.Header.Set("Brokerd-Agent", "lead")
		for i := 0; i < len(mcpHeaders); i += 2 {
			r.Header.Set(mcpHeaders[i], mcpHeaders[i+1])
		}
		if version != "" {
			r.Header.Set("MCP-Protocol-Version", version)
		}
		out, err := transport.RoundTrip(r)
		if ctx.Err() != nil {
			t.Fatalf("%q has no answer within %v", body, answerTime)
		}
		if err != nil {
			t.Skip("the client cannot make the request")
		}
		defer func() { _ = out.Body.Close() }()
		text, err := io.ReadAll(out.Body)
		if err != nil {
			t.Fatalf("%q: %v", body, err)
		}
		if out.StatusCode >= 500 || strings.Contains(string(text), "a defect of the broker") || strings.Contains(string(text), "internal error") {
			t.Errorf("%s: %s %s", body, out.Status, text)
		}
	})
}

package web_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"brokerd/internal/apptest"
)

// FuzzRequest makes any request as an agent. The broker answers each of them, and none with an error
// of its own.
func FuzzRequest(f *testing.F) {
	for _, s := range steps {
		path, query, _ := strings.Cut(s.path, "?")
		f.Add(s.method, path, query, s.body, "")
	}
	f.Add("GET", "/v1/artifacts/a", "", "", "bytes=5-9")
	f.Add("PUT", "/v1/state/a/b", "", `{"value":1}`, `"17"`)
	f.Add("POST", "/v1/call/MessageService/Send", "", "{\"messages\":[{}]}\n{}\n", "")
	f.Add("GET", "/v1/events", "types=a&since=2026-01-02T15:04:05Z&categories=agent&details.x=1", "", "17")
	b := apptest.Start(f)
	b.Registered("lead", "lead")
	socket := strings.TrimPrefix(b.Socket(), "unix://")
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	f.Cleanup(transport.CloseIdleConnections)
	f.Fuzz(func(t *testing.T, method, path, query, body, header string) {
		if strings.Contains(path, "follow") || strings.Contains(path, "watch") || strings.Contains(body, "wait") ||
			strings.Contains(query, "wait") {
			t.Skip("the request waits")
		}
		ctx, cancel := context.WithTimeout(t.Context(), apptest.Patience)
		defer cancel()
		target := url.URL{Scheme: "http", Host: "brokerd", Path: path, RawQuery: query}
		r, err := http.NewRequestWithContext(ctx, method, target.String(), strings.NewReader(body))
		if err != nil {
			t.Skip("the client cannot make the request")
		}
		r.Header.Set("Brokerd-Agent", "lead")
		for _, name := range []string{"Range", "If-Match", "Last-Event-ID", "Idempotency-Key"} {
			if header != "" {
				r.Header.Set(name, header)
			}
		}
		out, err := transport.RoundTrip(r)
		if err != nil {
			t.Skip("the client cannot make the request")
		}
		defer func() { _ = out.Body.Close() }()
		text, err := io.ReadAll(out.Body)
		apptest.NoError(t, err)
		if out.StatusCode >= 500 && out.StatusCode != http.StatusNotImplemented {
			t.Errorf("%s %s?%s %s: %s %s", method, path, query, body, out.Status, text)
		}
		if out.Header.Get("Content-Type") == "application/json" && len(text) > 0 && !json.Valid(text) {
			t.Errorf("%s %s?%s %s: %s", method, path, query, body, text)
		}
	})
}

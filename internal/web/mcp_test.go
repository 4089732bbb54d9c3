package web_test

import (
	"context"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// A model is an MCP client of /mcp.
type model struct {
	t       *testing.T
	session *sdk.ClientSession
}

// withHeaders adds headers to every request.
type withHeaders struct{ header http.Header }

func (h withHeaders) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for name, values := range h.header {
		r.Header[name] = values
	}
	return http.DefaultTransport.RoundTrip(r)
}

// connected returns a model with a credential and further headers. protocol "" is the newest version.
func connected(t *testing.T, b *apptest.Broker, secret, protocol string, headers ...string) *model {
	t.Helper()
	header := http.Header{"Authorization": {"Bearer " + secret}}
	for i := 0; i < len(headers); i += 2 {
		header.Set(headers[i], headers[i+1])
	}
	client := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil)
	session, err := client.Connect(t.Context(), &sdk.StreamableClientTransport{
		Endpoint: "http://" + b.TCP() + "/mcp", HTTPClient: &http.Client{Transport: withHeaders{header}}, MaxRetries: -1,
	}, &sdk.ClientSessionOptions{ProtocolVersion: protocol})
	apptest.NoError(t, err)
	t.Cleanup(func() {
		_ = session.Close() // a broker that has stopped is no error here
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	})
	return &model{t, session}
}

// try calls a tool and returns the text of its result, and whether it is an error.
func (m *model) try(tool, args string) (string, bool) {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*apptest.Patience)
	defer cancel()
	result, err := m.session.CallTool(ctx, &sdk.CallToolParams{Name: tool, Arguments: jsonText(args)})
	if err != nil {
		m.t.Errorf("%s %s: a protocol error: %v", tool, args, err)
		return "", true
	}
	return result.Content[0].(*sdk.TextContent).Text, result.IsError
}

type jsonText string

func (r jsonText) MarshalJSON() ([]byte, error) { return []byte(r), nil }

// call calls a tool and wants success and the given texts in the result.
func (m *model) call(tool, args string, wants ...string) string {
	m.t.Helper()
	text, failed := m.try(tool, args)
	if failed {
		m.t.Errorf("%s %s: an error: %s", tool, args, text)
	}
	for _, want := range wants {
		if !strings.Contains(text, want) {
			m.t.Errorf("%s %s: got\n%s\nwithout %q", tool, args, text, want)
		}
	}
	return text
}

// secretOf issues the credential of an agent.
func secretOf(b *apptest.Broker, agent string) string {
	_, secret := b.Issue(&pb.IssueCredentialRequest{
		Access: pb.CredentialAccess_CREDENTIAL_ACCESS_AGENT, Session: "default", Agent: agent,
	})
	return secret
}

func TestMCP_TwoAgentsWorkTogetherOverHTTP(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"", "2025-11-25", "2025-06-18", "2025-03-26"} {
		b := apptest.Start(t)
		lead := connected(t, b, secretOf(b, "lead"), protocol)
		builder := connected(t, b, b.Credential(), protocol, "Brokerd-Agent", "builder-1")
		if protocol != "" && lead.session.InitializeResult().ProtocolVersion != protocol {
			t.Errorf("%s: the session has the version %s", protocol, lead.session.InitializeResult().ProtocolVersion)
		}
		tools, err := lead.session.ListTools(t.Context(), nil)
		if err != nil || len(tools.Tools) < 8 {
			t.Fatalf("%s: %v, %v", protocol, tools, err)
		}
		builder.call("turn", `{}`, "You are the agent builder-1.", "nothing to claim")
		lead.call("send", `{"to":"builder-1","subject":"Look","text":"At the page"}`, "sent ", "to builder-1")
		builder.call("turn", `{"wait":30}`, "message from lead to builder-1", "At the page", "Next: settle ")
		builder.call("lock", `{"action":"acquire","paths":["src/a.go"]}`, "locked src/a.go")
		if text, failed := lead.try("lock", `{"action":"acquire","paths":["src/a.go"]}`); !failed || !strings.Contains(text, "held by builder-1") {
			t.Errorf("%s", text)
		}
		builder.call("settle", `{"text":"Done"}`, "acked the message that was answered")
		lead.call("turn", `{"wait":30}`, "Done")
		upload(t, b, "plan.md", "three steps")
		lead.call("turn", `{"artifact":"plan.md"}`, "three steps")
		lead.call("team", `{"action":"leave"}`, "deregistered lead")
		lead.call("team", `{"action":"join"}`, "You are the agent lead.")
	}
}

// upload uploads an artifact as an operator.
func upload(t *testing.T, b *apptest.Broker, name, content string) {
	t.Helper()
	overTCP(t, b, b.Credential()).must("PUT", "/v1/artifacts/"+name, content)
}

func TestMCP_ACredentialActsOnlyAsItsAgent(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	b.Registered("other", "")
	mine := connected(t, b, secretOf(b, "mine"), "")
	mine.call("send", `{"to":"other","text":"Hi"}`)
	mine.call("team", `{"action":"show"}`, "name: mine")
	refused := overTCP(t, b, secretOf(b, "mine")).do("POST", "/mcp", initialize, append(mcpHeaders, "Brokerd-Agent", "other")...)
	if refused.status != http.StatusForbidden || refused.reason() != "CREDENTIAL_BOUND" {
		t.Errorf("%d %s", refused.status, refused.text)
	}
	operator := connected(t, b, b.Credential(), "")
	if text, failed := operator.try("turn", `{}`); !failed || !strings.Contains(text, "agent") {
		t.Errorf("without an agent: %s", text)
	}
	_, observer := b.Issue(&pb.IssueCredentialRequest{Access: pb.CredentialAccess_CREDENTIAL_ACCESS_OBSERVER})
	for secret, want := range map[string]int{observer: http.StatusForbidden, "": http.StatusUnauthorized, "wrong": http.StatusUnauthorized} {
		if got := overTCP(t, b, secret).do("POST", "/mcp", initialize, mcpHeaders...); got.status != want {
			t.Errorf("%d %s, want %d", got.status, got.text, want)
		}
	}
}

const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18",` +
	`"capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`

var mcpHeaders = []string{"Content-Type", "application/json", "Accept", "application/json, text/event-stream"}

func TestMCP_AMessageThatIsWrongHasAClearError(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	c := onSocket(t, b, "builder-1")
	deep := strings.Repeat(`{"a":`, 500_000) + "1" + strings.Repeat("}", 500_000)
	many := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"turn","arguments":{"read":[` +
		strings.Repeat("1,", 200_000) + `1]}}}`
	for _, test := range []struct {
		name, body string
		status     int
		want       string
	}{
		{"garbage", "garbage", 400, "-32700"},
		{"half a message", `{"jsonrpc":"2.0","id":1,`, 400, "-32700"},
		{"two messages", initialize + initialize, 400, "-32600"},
		{"bytes", "\x00\xff\xfe", 400, "-32700"},
		{"deep nesting", deep, 400, "-32700"},
		{"deep lists", strings.Repeat("[", 1_000_000), 400, "batch"},
		{"many values", many, 400, "100000"},
		{"a batch", "[" + initialize + "]", 400, "batch"},
		{"nothing", "", 400, "-32600"},
		{"a number", "5", 400, "-32600"},
		{"no method", `{"jsonrpc":"2.0","id":1}`, 400, "no method"},
		{"another method", `{"jsonrpc":"2.0","id":1,"method":"x/y"}`, 400, ""},
		{"a stream without end", `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen"}`, 400, "-32601"},
		{"an escaped method", `{"jsonrpc":"2.0","id":1,"method":"subscriptions\u002flisten"}`, 400, "-32601"},
		{"a stream with another name", `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","Method":"ping"}`, 400, "-32601"},
		{"too large", `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"` + strings.Repeat("x", 6<<20) + `"}}`, 413, "MESSAGE_TOO_LARGE"},
	} {
		headers := mcpHeaders
		if strings.Contains(test.name, "stream") || strings.Contains(test.name, "escaped") {
			headers = append(headers, "MCP-Protocol-Version", "2026-07-28")
		}
		if test.status == 413 { // the client waits for the status before it sends the body
			headers = append(headers, "Expect", "100-continue")
		}
		got := c.do("POST", "/mcp", test.body, headers...)
		if got.status != test.status || !strings.Contains(got.text, test.want) || len(got.text) > 1000 {
			t.Errorf("%s: %d %.300s", test.name, got.status, got.text)
		}
	}
	if got := c.must("POST", "/mcp", initialize, mcpHeaders...); !strings.Contains(got.text, `"serverInfo"`) {
		t.Errorf("%s", got.text)
	}
	for _, method := range []string{"GET", "DELETE"} {
		if got := c.do(method, "/mcp", ""); got.status != http.StatusMethodNotAllowed || got.header.Get("Allow") != "POST" {
			t.Errorf("%s: %d %s", method, got.status, got.text)
		}
	}
	if got := c.do("POST", "/mcp", initialize, append(mcpHeaders, "Origin", "https://example.com", "Sec-Fetch-Site", "cross-site")...); got.status != http.StatusForbidden {
		t.Errorf("a page of another origin: %d %s", got.status, got.text)
	}
	over := overTCP(t, b, b.Credential())
	if got := over.do("POST", "/mcp", initialize, append(mcpHeaders, "Host", "example.com")...); got.status != http.StatusMisdirectedRequest {
		t.Errorf("a foreign host: %d %s", got.status, got.text)
	}
}

func TestMCP_RequestsCountForTheLimitsOfTheirAgent(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	secret := secretOf(b, "builder-1")
	connected(t, b, secret, "").call("turn", `{}`)
	const most = 16 // connections of an agent; HTTP/1.1 needs one for each request
	wait := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"turn","arguments":{"wait":50}}}`
	refused := make(chan answer, most+1)
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	for range most + 1 {
		c := overTCP(t, b, secret)
		waiting.Go(func() {
			r, err := http.NewRequestWithContext(ctx, "POST", c.base+"/mcp", strings.NewReader(wait))
			if err != nil {
				t.Error(err)
				return
			}
			r.Header = c.headers.Clone()
			for i := 0; i < len(mcpHeaders); i += 2 {
				r.Header.Set(mcpHeaders[i], mcpHeaders[i+1])
			}
			out, err := c.client.Do(r)
			if err != nil {
				return // it is cancelled
			}
			defer func() { _ = out.Body.Close() }()
			text, err := io.ReadAll(out.Body)
			if err == nil {
				refused <- answer{status: out.StatusCode, text: string(text)}
			}
		})
	}
	if got := <-refused; got.status != http.StatusTooManyRequests || !strings.Contains(got.text, "TOO_MANY_CONNECTIONS") {
		t.Errorf("%d %s", got.status, got.text)
	}
}

func TestMCP_ACallWaitsNoLongerThanItsClient(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	secret := secretOf(b, "builder-1")
	m := connected(t, b, secret, "2025-06-18")
	m.call("turn", `{}`)
	for range 5 {
		c := overTCP(t, b, secret)
		ctx, cancel := context.WithCancel(t.Context())
		written := make(chan struct{})
		r, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
			WroteRequest: func(httptrace.WroteRequestInfo) { close(written) },
		}), "POST", c.base+"/mcp", strings.NewReader(
			`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"turn","arguments":{"wait":50}}}`))
		apptest.NoError(t, err)
		r.Header = c.headers.Clone()
		for i := 0; i < len(mcpHeaders); i += 2 {
			r.Header.Set(mcpHeaders[i], mcpHeaders[i+1])
		}
		var waiting sync.WaitGroup
		waiting.Go(func() {
			if out, err := c.client.Do(r); err == nil {
				_ = out.Body.Close()
			}
		})
		<-written
		cancel()
		waiting.Wait()
	}
	connected(t, b, secretOf(b, "lead"), "").call("send", `{"to":"builder-1","text":"Look"}`)
	m.call("turn", `{"wait":30}`, "Subject: Look", "attempt 1 of 3")
}

func TestMCP_AStopOfTheBrokerEndsWaitingCalls(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t, apptest.WithFakeClock()) // on which the wait does not end by itself
	m := connected(t, b, secretOf(b, "builder-1"), "2025-06-18")
	m.call("turn", `{}`)
	var waiting sync.WaitGroup
	began := time.Now()
	waiting.Go(func() {
		result, err := m.session.CallTool(t.Context(), &sdk.CallToolParams{Name: "turn", Arguments: jsonText(`{"wait":50}`)})
		if err == nil && !result.IsError {
			t.Errorf("%v", result.Content[0].(*sdk.TextContent).Text)
		}
	})
	operator := overTCP(t, b, b.Credential())
	for operator.must("POST", "/v1/call/AdminService/GetStatus", "").number("streams") != "1" {
		if time.Since(began) > apptest.Patience {
			t.Fatal("the call does not begin")
		}
	}
	b.Restart()
	waiting.Wait()
}

func TestMCP_ALongWaitReportsProgressOverHTTP(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t, apptest.WithFakeClock())
	reports := make(chan float64, 1000)
	client := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, &sdk.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) { reports <- r.Params.Progress },
	})
	header := http.Header{"Authorization": {"Bearer " + secretOf(b, "builder-1")}}
	session, err := client.Connect(t.Context(), &sdk.StreamableClientTransport{
		Endpoint: "http://" + b.TCP() + "/mcp", HTTPClient: &http.Client{Transport: withHeaders{header}}, MaxRetries: -1,
	}, nil)
	apptest.NoError(t, err)
	t.Cleanup(func() { _ = session.Close() }) // the broker has stopped by then
	operator := overTCP(t, b, b.Credential())
	began := time.Now()
	for len(reports) == 0 { // the clock may run before the call waits
		if time.Since(began) > apptest.Patience {
			t.Fatal("a call that waits for 50 s reports no progress")
		}
		ended := make(chan error, 1)
		go func() {
			params := &sdk.CallToolParams{Name: "turn", Arguments: jsonText(`{"wait":50}`)}
			params.SetProgressToken("1")
			_, err := session.CallTool(t.Context(), params)
			ended <- err
		}()
		for waits := true; waits; {
			select {
			case err := <-ended:
				apptest.NoError(t, err)
				waits = false
			default:
				b.Clock.Advance(time.Second)
				operator.must("GET", "/v1/status", "")
			}
		}
	}
	if first := <-reports; first != 10 {
		t.Errorf("the first report is of %v s", first)
	}
}

func TestMCP_PassesTheSpanOfItsClientOn(t *testing.T) {
	t.Parallel()
	spans := apptest.NewCollector(t)
	b := apptest.Start(t, apptest.WithTraces(spans))
	b.Registered("builder-1", "")
	const trace, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	inHeader := connected(t, b, secretOf(b, "lead"), "2025-06-18", "Traceparent", "00-"+trace+"-"+span+"-01")
	inHeader.call("send", `{"to":"builder-1","text":"first"}`)
	inMeta := connected(t, b, secretOf(b, "lead"), "2025-06-18")
	result, err := inMeta.session.CallTool(t.Context(), &sdk.CallToolParams{
		Name: "send", Arguments: jsonText(`{"to":"builder-1","text":"second"}`), Meta: sdk.Meta{"traceparent": "00-" + trace + "-" + span + "-01"},
	})
	if err != nil || result.IsError {
		t.Fatal(result, err)
	}
	for _, got := range spans.Await(t, 2) {
		if hex.EncodeToString(got.TraceId) != trace || hex.EncodeToString(got.ParentSpanId) != span {
			t.Errorf("a message has the span %x of the trace %x", got.ParentSpanId, got.TraceId)
		}
	}
}

func TestMCP_MailOverHTTPIsReadWhenTheModelContinues(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	lead, builder := connected(t, b, secretOf(b, "lead"), ""), connected(t, b, secretOf(b, "builder-1"), "")
	builder.call("turn", `{}`)
	lead.call("send", `{"to":"builder-1","text":"first"}`)
	builder.call("turn", `{"read":"inbox"}`, "Subject: first", ", new ===")
	read := func() (n int) {
		t.Helper()
		out := apptest.Must(t, b.Actor("default", "builder-1").ListMessages, &pb.ListMessagesRequest{
			Box: pb.MessageBox_MESSAGE_BOX_INBOX,
		})
		for _, item := range out.GetItems() {
			if item.GetDelivery().GetReadAt() != nil {
				n++
			}
		}
		return n
	}
	if n := read(); n != 0 {
		t.Errorf("%d messages are read before the model continues", n)
	}
	lead.call("turn", `{}`) // of another agent
	if n := read(); n != 0 {
		t.Errorf("%d messages are read by the call of another agent", n)
	}
	builder.call("team", `{}`)
	if n := read(); n != 1 {
		t.Errorf("%d messages are read", n)
	}
	lead.call("send", `{"to":"builder-1","text":"second"}`)
	builder.call("mail", `{"event":"PostToolUse","session":"s","transcript":"/etc/hostname","call":"c"}`,
		`"hookEventName":"PostToolUse"`, "Subject: second")
	builder.call("mail", `{"event":"PostToolUse","session":"s","transcript":"/etc/hostname","call":"c"}`, "{}")
	if n := read(); n != 1 {
		t.Errorf("%d messages are read: a daemon has no evidence of a hook", n)
	}
}

func TestMCP_AnOfferThatHasPassedIsNotReadByTheNextCall(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t, apptest.WithFakeClock())
	lead, builder := connected(t, b, secretOf(b, "lead"), ""), connected(t, b, secretOf(b, "builder-1"), "")
	builder.call("turn", `{}`)
	lead.call("send", `{"to":"builder-1","text":"first"}`)
	builder.call("turn", `{"read":"inbox"}`, "Subject: first", ", new ===")
	ctx, cancel := context.WithTimeout(t.Context(), apptest.Patience)
	defer cancel()
	delivery := func() *pb.Delivery {
		t.Helper()
		out, err := b.Actor("default", "builder-1").ListMessages(ctx, &pb.ListMessagesRequest{
			Box: pb.MessageBox_MESSAGE_BOX_INBOX,
		})
		if err != nil || len(out.GetItems()) != 1 {
			t.Fatalf("%v, %v", out, err)
		}
		return out.GetItems()[0].GetDelivery()
	}
	b.Clock.Advance(61 * time.Second)
	for len(delivery().GetOffers()) > 0 { // until it is returned
	}
	builder.call("team", `{}`)
	if delivery().GetReadAt() != nil {
		t.Error("a message is read although its offer has passed")
	}
	builder.call("turn", `{"read":"inbox"}`, "Subject: first", ", new ===")
	builder.call("team", `{}`)
	if delivery().GetReadAt() == nil {
		t.Error("a message is unread that the model has seen")
	}
}

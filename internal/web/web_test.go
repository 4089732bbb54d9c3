package web_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestHTTP_TheSocketNeedsNoCredential(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	a := onSocket(t, b, "").must("GET", "/v1/status", "")
	if a.header.Get("Content-Type") != "application/json" || a.words("version") != "test" ||
		a.words("session") != "default" ||
		!strings.HasSuffix(a.text, "}\n") {
		t.Errorf("got %s", a.text)
	}
}

func TestHTTP_CurlReadsTheStatus(t *testing.T) {
	t.Parallel()
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("curl is not installed")
	}
	b := apptest.Start(t)
	ctx, cancel := context.WithTimeout(context.Background(), apptest.Patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, curl, "-sS", "--unix-socket", strings.TrimPrefix(b.Socket(), "unix://"),
		"http://brokerd/v1/status").CombinedOutput()
	if err != nil || !strings.Contains(string(out), `"version":"test"`) {
		t.Errorf("%v: %s", err, out)
	}
}

func TestHTTP_ServesBesideGRPCOnTheSameAddress(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	c := overTCP(t, b, b.Credential())
	ctx, cancel := context.WithTimeout(context.Background(), apptest.Patience)
	defer cancel()
	for range 3 {
		if _, err := pb.NewAdminServiceClient(b.OverTCP(b.Credential())).GetStatus(ctx, &pb.GetStatusRequest{}); err != nil {
			t.Error(err)
		}
		c.must("GET", "/v1/status", "")
	}
}

func TestHTTP_ACallReachesEveryUnaryRPC(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	b.Registered("lead", "lead")
	b.Registered("builder-1", "builder")
	c := onSocket(t, b, "lead")
	for _, service := range []string{"MessageService", "brokerd.v1.MessageService"} {
		a := c.must("POST", "/v1/call/"+service+"/SendMessages",
			`{"messages":[{"target":{"agent":"builder-1"},"subject":"Add login","payload":{"task":[1]}}]}`)
		if a.words("results.0.recipients.0.outcome") != "queued" {
			t.Errorf("got %s", a.text)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), apptest.Patience)
	defer cancel()
	list, err := b.Actor("default", "builder-1").ListMessages(ctx, &pb.ListMessagesRequest{})
	if err != nil || len(list.GetItems()) != 2 || list.GetItems()[0].GetMessage().GetPayload() != `{"task":[1]}` {
		t.Errorf("got %v, %v", list, err)
	}
	if a := c.do("POST", "/v1/call/MessageService/Sned", ""); a.status != http.StatusNotFound ||
		a.reason() != "METHOD_NOT_FOUND" {
		t.Errorf("an unknown method: %d %s", a.status, a.text)
	}
}

func TestHTTP_ErrorsAreObjectsWithTheStatusOfTheirCode(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	b.Registered("lead", "lead")
	lead, nobody, stranger := onSocket(t, b, "lead"), overTCP(t, b, ""), onSocket(t, b, "stranger")
	_, secret := b.Issue(&pb.IssueCredentialRequest{Access: pb.CredentialAccess_CREDENTIAL_ACCESS_OBSERVER})
	observer := overTCP(t, b, secret)
	for _, tt := range []struct {
		c                    *browser
		method, path, body   string
		status               int
		code, reason, fields string
	}{
		{nobody, "GET", "/v1/status", "", 401, "denied", "CREDENTIAL_REQUIRED", ""},
		{observer, "POST", "/v1/messages", "{}", 403, "denied", "READ_ONLY", ""},
		{lead, "POST", "/v1/locks/force-release", "{}", 403, "denied", "OPERATOR_ONLY", ""},
		{lead, "GET", "/v1/messages/4711", "", 404, "not_found", "MESSAGE_NOT_FOUND", ""},
		{stranger, "GET", "/v1/inbox", "", 409, "not_found", "AGENT_NOT_REGISTERED", ""},
		{lead, "POST", "/v1/messages", `{"mesages":[]}`, 400, "usage", "INVALID_ARGUMENT", "mesages"},
		{lead, "POST", "/v1/messages", `{"messages":[{"priority":99}]}`, 400, "usage", "INVALID_ARGUMENT",
			"messages[0].priority messages[0].target"},
		{lead, "POST", "/v1/messages", `{`, 400, "usage", "MALFORMED_REQUEST", ""},
		{lead, "GET", "/v1/messages?colour=red", "", 400, "usage", "INVALID_ARGUMENT", "colour"},
		{lead, "GET", "/v1/messages?page_size=1&page_size=2", "", 400, "usage", "INVALID_ARGUMENT", "page_size"},
		{lead, "GET", "/v1/messages?%zz", "", 400, "usage", "MALFORMED_REQUEST", ""},
		{lead, "POST", "/v1/messages/1/reply", `{"id":"2"}`, 400, "usage", "INVALID_ARGUMENT", "id"},
		{lead, "DELETE", "/v1/agents/other", "", 400, "usage", "INVALID_ARGUMENT", "brokerd-agent"},
		{lead, "GET", "/v2/status", "", 404, "not_found", "ROUTE_NOT_FOUND", ""},
		{lead, "DELETE", "/v1/messages", "", 405, "usage", "METHOD_NOT_ALLOWED", ""},
		{lead, "POST", "/v1/state/build/x", "", 405, "usage", "METHOD_NOT_ALLOWED", ""},
	} {
		a := tt.c.do(tt.method, tt.path, tt.body)
		var fields []string
		list, _ := at(a.object, "error.fields").([]any)
		for _, f := range list {
			fields = append(fields, at(f, "field").(string))
		}
		if a.status != tt.status || a.words("error.code") != tt.code || a.reason() != tt.reason ||
			strings.Join(fields, " ") != tt.fields ||
			a.words("error.message") == "" {
			t.Errorf("%s %s %s: %d %s; want %d %s %s %s", tt.method, tt.path, tt.body, a.status, a.text,
				tt.status, tt.code, tt.reason, tt.fields)
		}
		if a.status == 401 && a.header.Get("WWW-Authenticate") == "" || a.status == 405 && a.header.Get("Allow") == "" {
			t.Errorf("%s %s: headers %v", tt.method, tt.path, a.header)
		}
	}
}

func TestHTTP_AnErrorSaysWhenToTryAgain(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t, apptest.WithFakeClock())
	c := overTCP(t, b, "wrong")
	for range 100 { // failed attempts of one address are limited
		if a := c.do("GET", "/v1/status", ""); a.status == http.StatusTooManyRequests {
			if a.header.Get("Retry-After") == "" || a.header.Get("Retry-After") == "0" || a.words("error.retry_after") == "" {
				t.Errorf("got %v %s", a.header, a.text)
			}
			return
		}
	}
	t.Error("no attempt was limited")
}

func TestHTTP_TheHeadersNameTheCaller(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	b.Registered("lead", "lead")
	c := onSocket(t, b, "")
	c.must("POST", "/v1/sessions", `{"name":"other"}`)
	if a := c.must("GET", "/v1/status", "", "Brokerd-Session", "other"); a.words("session") != "other" {
		t.Errorf("got %s", a.text)
	}
	if a := c.must("GET", "/v1/status", "", "Brokerd-Agent", "lead"); a.words("agent") != "lead" {
		t.Errorf("got %s", a.text)
	}
	a := c.do("GET", "/v1/inbox", "", "Brokerd-Agent", "lead", "Brokerd-Incarnation", "4711")
	if a.reason() != "STALE_INCARNATION" {
		t.Errorf("got %s", a.text)
	}
	a = c.do("PUT", "/v1/state/build/x", `{"value":1}`, "Brokerd-Agent", "lead", "Brokerd-Fence", "1")
	if a.reason() != "FENCE_LOST" {
		t.Errorf("got %s", a.text)
	}
	_, secret := b.Issue(&pb.IssueCredentialRequest{Access: pb.CredentialAccess_CREDENTIAL_ACCESS_AGENT,
		Session: "default", Agent: "lead"})
	if a := overTCP(t, b, secret).do("GET", "/v1/inbox", "", "Brokerd-Agent", "other"); a.reason() != "CREDENTIAL_BOUND" {
		t.Errorf("got %s", a.text)
	}
}

func TestHTTP_AnIdempotencyKeyIsARequestID(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	b.Registered("lead", "lead")
	c := onSocket(t, b, "lead")
	const key, body = "01935f2e-7c5b-7000-8000-000000000001", `{"messages":[{"target":{"agent":"lead"},"subject":"x"}]}`
	first := c.must("POST", "/v1/messages", body, "Idempotency-Key", key)
	again := c.must("POST", "/v1/messages", body, "Idempotency-Key", key)
	if first.words("results.0.id") == "" || first.words("results.0.id") != again.words("results.0.id") {
		t.Errorf("%s and %s", first.text, again.text)
	}
	const other = `{"messages":[{"target":{"agent":"lead"},"subject":"y"}]}`
	if a := c.do("POST", "/v1/messages", other, "Idempotency-Key", key); a.status != 409 {
		t.Errorf("another body: %d %s", a.status, a.text)
	}
	if a := c.do("GET", "/v1/status", "", "Idempotency-Key", key); a.status != 400 ||
		a.words("error.fields.0.field") != "idempotency-key" {
		t.Errorf("a read: %d %s", a.status, a.text)
	}
}

func TestHTTP_ForeignHostsAndOriginsAreRefused(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	c := overTCP(t, b, b.Credential())
	for _, host := range []string{"evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.nip.io"} {
		if a := c.do("GET", "/v1/status", "", "Host", host); a.status != http.StatusMisdirectedRequest ||
			a.reason() != "FOREIGN_HOST" {
			t.Errorf("host %s: %d %s", host, a.status, a.text)
		}
	}
	_, port, _ := net.SplitHostPort(b.TCP())
	for _, host := range []string{"localhost", "localhost:" + port, "127.0.0.1:" + port, "[::1]:" + port} {
		c.must("GET", "/v1/status", "", "Host", host)
	}
	for _, from := range []string{"http://evil.example", "http://127.0.0.1:1", "null"} {
		if a := c.do("POST", "/v1/messages", "{}", "Origin", from); a.status != http.StatusForbidden ||
			a.reason() != "CROSS_ORIGIN" {
			t.Errorf("origin %s: %d %s", from, a.status, a.text)
		}
	}
	for _, site := range []string{"cross-site", "same-site"} { // same-site: another port of this host
		for _, path := range []string{"/v1/inbox/follow", "/v1/status"} {
			if a := c.do("GET", path, "", "Sec-Fetch-Site", site); a.status != http.StatusForbidden ||
				a.reason() != "CROSS_ORIGIN" {
				t.Errorf("a read of %s from %s: %d %s", path, site, a.status, a.text)
			}
		}
		c.must("GET", "/", "", "Sec-Fetch-Site", site) // a link to the dashboard
	}
	for _, site := range []string{"same-origin", "none"} { // none: the user has typed the address
		c.must("GET", "/v1/status", "", "Sec-Fetch-Site", site)
	}
}

// raw opens a connection to the broker's TCP address.
func raw(t *testing.T, b *apptest.Broker) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", b.TCP())
	apptest.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	apptest.NoError(t, conn.SetDeadline(time.Now().Add(apptest.Patience)))
	return conn
}

// The first bytes may come one at a time, and both protocols have words that begin with PR.
func TestHTTP_TheFirstBytesMayComeSlowly(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	for _, first := range []string{"GET", "PUT", "PROPFIND", "P"} {
		conn := raw(t, b)
		request := first + " /v1/nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
		for i := range 4 {
			apptest.NoError(t, apptest.Err(io.WriteString(conn, request[i:i+1])))
		}
		apptest.NoError(t, apptest.Err(io.WriteString(conn, request[4:])))
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Errorf("%s: %v", first, err)
			continue
		}
		if answer.StatusCode != 404 {
			t.Errorf("%s: %s", first, answer.Status)
		}
		_ = answer.Body.Close()
	}
}

func TestHTTP_ABodyIsBounded(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	c := onSocket(t, b, "")
	large := `{"messages":[{"body":"` + strings.Repeat("x", 5<<20) + `"}]}`
	// The client waits for the status before it sends the body.
	a := c.do("POST", "/v1/messages", large, "Expect", "100-continue")
	if a.status != http.StatusRequestEntityTooLarge || a.reason() != "MESSAGE_TOO_LARGE" {
		t.Errorf("%d %s", a.status, a.text)
	}
	conn := raw(t, b)
	// The broker may close the connection before the client has read the status.
	long := strings.Repeat("x", 32<<10)
	_, _ = io.WriteString(conn, "GET /v1/status HTTP/1.1\r\nHost: localhost\r\nX-Long: "+long+"\r\n\r\n")
	out, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err == nil && out.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a large header: %s", out.Status)
	}
}

func TestHTTP_AStopEndsConnectionsThatSendNothing(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	silent, half := raw(t, b), raw(t, b)
	apptest.NoError(t, apptest.Err(io.WriteString(half, "PR")))
	b.Restart()
	for _, conn := range []net.Conn{silent, half} {
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			t.Error("the broker answers a connection that has sent nothing")
		}
	}
}

func TestServe_DelaysRequestsThatDoNotWaitForAnAnswer(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	conn, err := net.Dial("unix", strings.TrimPrefix(b.Socket(), "unix://"))
	apptest.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	const requests = 100
	began := time.Now()
	if _, err := io.WriteString(conn, strings.Repeat("GET /nothing HTTP/1.1\r\nHost: b\r\n\r\n", requests)); err != nil {
		t.Fatal(err)
	}
	answers := bufio.NewReader(conn)
	for range requests {
		answer, err := http.ReadResponse(answers, nil)
		apptest.NoError(t, err)
		if _, err = io.Copy(io.Discard, answer.Body); err != nil || answer.StatusCode != http.StatusNotFound {
			t.Fatal(answer.Status, err)
		}
	}
	// All but two of them are in the buffer with the one before: 200 a second.
	if took := time.Since(began); took < (requests-2)*5*time.Millisecond {
		t.Errorf("%d requests take %v", requests, took)
	}
}

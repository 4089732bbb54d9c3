package web_test

import (
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

const (
	observing = pb.CredentialAccess_CREDENTIAL_ACCESS_OBSERVER
	operating = pb.CredentialAccess_CREDENTIAL_ACCESS_OPERATOR
)

// loginBody creates a login link and returns the body of the request that uses it.
func loginBody(t *testing.T, b *apptest.Broker, access pb.CredentialAccess) string {
	t.Helper()
	link := apptest.Must(t, b.Root().CreateLoginLink, &pb.CreateLoginLinkRequest{Access: access})
	return `{"secret":"` + link.GetSecret() + `"}`
}

// login returns a client with the token of a login.
func login(t *testing.T, b *apptest.Broker, access pb.CredentialAccess) *browser {
	t.Helper()
	a := overTCP(t, b, "").must("POST", "/v1/login", loginBody(t, b, access))
	return overTCP(t, b, a.words("token"))
}

func TestLogin_TakesABodyOfUnknownLength(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	c := overTCP(t, b, "")
	body := io.MultiReader(strings.NewReader(loginBody(t, b, observing)))
	out, err := c.client.Post(c.base+"/v1/login", "application/json", body)
	apptest.NoError(t, err)
	defer func() { _ = out.Body.Close() }()
	if out.StatusCode != http.StatusOK {
		t.Errorf("answered with %s", out.Status)
	}
}

func TestLogin_ExchangesALinkForAToken(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t, apptest.WithFakeClock())
	for _, tt := range []struct {
		access pb.CredentialAccess
		level  string
		status int // of a change
	}{{observing, "observer", 403}, {operating, "operator", 200}} {
		c, body := overTCP(t, b, ""), loginBody(t, b, tt.access)
		a := c.must("POST", "/v1/login", body)
		fields := slices.Sorted(maps.Keys(a.object))
		if !slices.Equal(fields, []string{"expires_at", "level", "session", "token"}) || len(a.words("token")) != 43 ||
			a.words("level") != tt.level || a.words("session") != "default" ||
			a.words("expires_at") != b.Clock.Now().Add(12*time.Hour).UTC().Format(time.RFC3339) {
			t.Errorf("got %s", a.text)
		}
		if used := c.do("POST", "/v1/login", body); used.status != 401 || used.reason() != "LOGIN_LINK_INVALID" {
			t.Errorf("again: %d %s", used.status, used.text)
		}
		own := overTCP(t, b, a.words("token"))
		own.must("GET", "/v1/agents", "")
		if change := own.do("POST", "/v1/events", `{"type":"build.finished"}`); change.status != tt.status {
			t.Errorf("a change by the %s: %d %s", tt.level, change.status, change.text)
		}
	}
}

func TestLogin_RefusesWhatABrowserMustNotSend(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	c, body := overTCP(t, b, ""), loginBody(t, b, operating)
	for _, tt := range []struct {
		method, body, header, value string
		status                      int
		reason                      string
	}{
		{"POST", body, "Host", "evil.example", 421, "FOREIGN_HOST"},
		{"POST", body, "Origin", "http://evil.example", 403, "CROSS_ORIGIN"},
		{"POST", body, "Origin", "null", 403, "CROSS_ORIGIN"},
		{"POST", body, "Sec-Fetch-Site", "cross-site", 403, "CROSS_ORIGIN"},
		{"POST", body, "Sec-Fetch-Site", "same-site", 403, "CROSS_ORIGIN"}, // another port of this host
		{"POST", `{"secret":"` + strings.Repeat("x", 4<<10) + `"}`, "X-A", "b", 413, "MESSAGE_TOO_LARGE"},
		{"POST", `{"secret":"x","agent":"lead"}`, "X-A", "b", 400, "INVALID_ARGUMENT"},
		{"POST", "{", "X-A", "b", 400, "MALFORMED_REQUEST"},
	} {
		a := c.do(tt.method, "/v1/login", tt.body, tt.header, tt.value)
		if a.status != tt.status || a.reason() != tt.reason {
			t.Errorf("%s %.50s with %s: %s: %d %s", tt.method, tt.body, tt.header, tt.value, a.status, a.text)
		}
	}
	c.must("POST", "/v1/login", body) // the refused requests have not used the link
}

func TestLogin_GuessesAreLimited(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t, apptest.WithFakeClock())
	c := overTCP(t, b, "")
	for range 20 {
		if a := c.do("POST", "/v1/login", `{"secret":"guess"}`); a.status != 401 {
			t.Fatalf("got %d %s", a.status, a.text)
		}
	}
	a := c.do("POST", "/v1/login", `{"secret":"guess"}`)
	if a.status != http.StatusTooManyRequests || a.reason() != "TOO_MANY_FAILED_ATTEMPTS" ||
		a.header.Get("Retry-After") != "3" {
		t.Errorf("got %d %v %s", a.status, a.header, a.text)
	}
	c.must("POST", "/v1/login", loginBody(t, b, operating))
}

func TestLogout_RevokesTheTokenOfTheCallAndNoOther(t *testing.T) {
	t.Parallel()
	for _, access := range []pb.CredentialAccess{observing, operating} {
		b := apptest.Start(t)
		c, other := login(t, b, access), login(t, b, access)
		f := c.follow("/v1/overview/follow")
		f.next()
		if a := c.must("POST", "/v1/logout", ""); len(a.object) != 0 {
			t.Errorf("the answer is %s", a.text)
		}
		last := f.until("its error", func(e event) bool { return e.name == "failed" })
		if !strings.Contains(last.data, "CREDENTIAL_REVOKED") {
			t.Errorf("the stream of the token ends with %+v", last)
		}
		for _, path := range []string{"/v1/agents", "/v1/logout"} {
			method := map[string]string{"/v1/agents": "GET", "/v1/logout": "POST"}[path]
			if a := c.do(method, path, ""); a.status != 401 || a.reason() != "CREDENTIAL_REVOKED" {
				t.Errorf("%s with the token: %d %s", path, a.status, a.text)
			}
		}
		other.must("GET", "/v1/agents", "")
	}
}

func TestLogout_RefusesEveryOtherIdentity(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	b.Registered("lead", "lead")
	_, agent := b.Issue(&pb.IssueCredentialRequest{
		Access: pb.CredentialAccess_CREDENTIAL_ACCESS_AGENT, Session: "default", Agent: "lead",
	})
	_, reader := b.Issue(&pb.IssueCredentialRequest{Access: observing, Description: "dashboard"})
	for name, c := range map[string]*browser{
		"an agent's credential": overTCP(t, b, agent), "an observer's": overTCP(t, b, reader),
		"the operator's file": overTCP(t, b, b.Credential()), "a client of the socket": onSocket(t, b, ""),
	} {
		if a := c.do("POST", "/v1/logout", ""); a.status != 409 || a.reason() != "NOT_A_LOGIN" {
			t.Errorf("%s: %d %s", name, a.status, a.text)
		}
		c.must("GET", "/v1/agents", "")
	}
	if a := overTCP(t, b, "").do("POST", "/v1/logout", ""); a.status != 401 {
		t.Errorf("without a credential: %d %s", a.status, a.text)
	}
	c := login(t, b, operating)
	if a := c.do("POST", "/v1/logout", "", "Origin", "http://evil.example"); a.status != 403 ||
		a.reason() != "CROSS_ORIGIN" {
		t.Errorf("another origin: %d %s", a.status, a.text)
	}
	c.must("GET", "/v1/agents", "")
}

// The page learns from the last event of its stream why the stream has ended. The overview
// reads the database again and again, and a read fails if the clock jumps meanwhile. A watch of the
// state reads only at its start.
func TestLogin_TheEndOfATokenEndsTheStreams(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		stream, reason string
		end            func(*apptest.Broker, *browser)
	}{
		{"/v1/state-watch", "CREDENTIAL_EXPIRED", func(b *apptest.Broker, _ *browser) {
			b.Clock.Advance(12 * time.Hour)
		}},
		{"/v1/overview/follow", "CREDENTIAL_REVOKED", func(b *apptest.Broker, operator *browser) {
			id := operator.must("POST", "/v1/call/CredentialService/ListCredentials", "").words("credentials.0.id")
			operator.must("POST", "/v1/call/CredentialService/RevokeCredential", `{"id":"`+id+`"}`)
		}},
	} {
		b := apptest.Start(t, apptest.WithFakeClock())
		c := login(t, b, observing)
		f := c.follow(tt.stream)
		f.next()
		tt.end(b, onSocket(t, b, ""))
		last := f.until("its error", func(e event) bool { return e.name == "failed" })
		if !strings.Contains(last.data, tt.reason) {
			t.Errorf("got %+v", last)
		}
		if _, more := f.next(); more {
			t.Error("the stream continues after its error")
		}
		if a := c.do("GET", "/v1/agents", ""); a.status != 401 || a.reason() != tt.reason {
			t.Errorf("a request with the token: %d %s", a.status, a.text)
		}
	}
}

package hostile_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// version1 is the protocol of HTTP/1.1 in TLS.
const version1 = "http/1.1"

// dripGap is the time between two bytes of a slow client.
const dripGap = 20 * time.Millisecond

// subscribeHead is a request for all events of the bystander.
const subscribeHead = "GET /v1/events/follow?after_revision=0 HTTP/1.1\r\nHost: localhost\r\n" +
	"Brokerd-Session: " + bystanders + "\r\nAccept: text/event-stream\r\n\r\n"

// head returns the first lines of a request.
func head(request string, headers ...string) string {
	return request + " HTTP/1.1\r\nHost: localhost\r\n" + strings.Join(append(headers, "\r\n"), "\r\n")
}

// halfRequests returns the beginnings of two requests.
func halfRequests() []string {
	return []string{"GET /v1/status HT", head("POST /v1/messages", "Content-Length: 100") + "{"}
}

// webAssaults returns what clients do below HTTP/1.1.
func webAssaults() []assault {
	list := []assault{
		{name: "without the end of the header", waits: true, do: sends("GET /v1/status HTTP/1.1\r\nHost: localhost\r\n")},
		{name: "with a header of 64 KiB", do: sends(head("GET /v1/status", "X-Long: "+strings.Repeat("x", 64<<10)))},
		{name: "with two lengths", do: sends(head("POST /v1/messages", "Content-Length: 1", "Content-Length: 2") + "{}")},
		{name: "without the end of the body", waits: true, do: sends(head("POST /v1/messages", "Content-Length: 100") + "{")},
		{name: "without the end of an artifact", waits: true,
			do: sends(head("PUT /v1/artifacts/a", "Content-Length: 100") + "{")},
		{name: "with a slow header", waits: true, do: drips("GET /v1/status HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")},
		{name: "with a slow body", waits: true, do: drips(head("POST /v1/messages", "Content-Length: 1000000"))},
		{name: "with a slow artifact", waits: true, do: drips(head("PUT /v1/artifacts/slow", "Content-Length: 1000000"))},
		{name: "with a body that never ends", do: func(w *wire) error {
			if _, err := io.WriteString(w, head("POST /v1/messages", "Transfer-Encoding: chunked")); err != nil {
				return err
			}
			chunk := "10000\r\n" + strings.Repeat(" ", 1<<16) + "\r\n"
			return mustClose(w.flood(patience, func() error { _, err := io.WriteString(w, chunk); return err }))
		}},
		{name: "flood of requests", do: func(w *wire) error {
			w.flood(attackTime, func() error { _, err := io.WriteString(w, head("GET /v1/status")); return err })
			return nil
		}},
		{name: "flood of requests without reading", do: func(w *wire) error {
			_ = w.SetDeadline(time.Now().Add(attackTime))
			for {
				if _, err := io.WriteString(w, head("GET /v1/openapi.json")); err != nil {
					return nil //nolint:nilerr // the time has passed
				}
			}
		}},
		{name: "subscriber that does not read", waits: true, do: func(w *wire) error {
			_, _ = io.WriteString(w, subscribeHead)
			w.hold(func() error { return nil })
			return nil
		}},
		{name: "subscriber that reads a byte at a time", waits: true, do: func(w *wire) error {
			_, _ = io.WriteString(w, subscribeHead)
			_ = w.SetDeadline(time.Now().Add(attackTime))
			w.hold(func() error { _, err := w.Read(make([]byte, 1)); return err })
			return nil
		}},
	}
	for i := range list {
		list[i].name, list[i].protocol = "HTTP/1.1 "+list[i].name, version1
	}
	return list
}

// sends writes bytes, and expects the daemon to close the connection.
func sends(text string) func(*wire) error {
	return func(w *wire) error {
		_, _ = io.WriteString(w, text) // the daemon may have closed the connection
		return w.ended()
	}
}

// drips writes the beginning of a request, and then a byte at a time.
func drips(beginning string) func(*wire) error {
	return func(w *wire) error {
		_, _ = io.WriteString(w, beginning)
		w.hold(func() error { _, err := io.WriteString(w, "x"); return err })
		return nil
	}
}

// hold calls a function at every tick for the time of an attack, or until its first error.
func (w *wire) hold(do func() error) {
	ticks := time.NewTicker(dripGap)
	defer ticks.Stop()
	for end := time.Now().Add(attackTime); time.Now().Before(end); {
		select {
		case <-w.stopped:
			return
		case <-ticks.C:
		}
		if do() != nil {
			return // the daemon may close the connection
		}
	}
}

// A browser makes HTTP requests as a party.
type browser struct {
	client http.Client
	base   string
	party  party
}

// browser returns a client of the Unix socket or of loopback, until the end of the test.
func (s *target) browser(p transport, as party) *browser {
	s.t.Helper()
	b := &browser{base: "http://localhost", party: as}
	if p.tls != nil {
		b.base = "https://localhost"
	}
	config := p.tls.Clone()
	if config != nil {
		config.NextProtos = []string{version1}
	}
	transport := &http.Transport{
		TLSClientConfig: config,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, p.network, p.address)
		},
	}
	s.t.Cleanup(transport.CloseIdleConnections)
	b.client.Transport = transport
	return b
}

// do makes a request and returns the status of its answer. headers are pairs.
func (b *browser) do(ctx context.Context, method, path, body string, headers ...string) (int, error) {
	r, err := http.NewRequestWithContext(ctx, method, b.base+path, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	all, err := b.party.GetRequestMetadata(ctx)
	if err != nil {
		return 0, err
	}
	for name, value := range all {
		r.Header.Set(name, value)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	r.Host = r.Header.Get("Host")
	answer, err := b.client.Do(r)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode, errors.Join(err, answer.Body.Close())
}

// A webAbuse is an attempt over HTTP that the daemon refuses with one of some statuses.
type webAbuse struct {
	name     string
	statuses []int
	large    bool // its requests are far apart
	try      func(context.Context) (int, error)
}

// webAbuses returns attempts over HTTP on loopback.
func (w *world) webAbuses() []webAbuse {
	p := w.transports()[1]
	_, secret := w.issue(pb.CredentialAccess_CREDENTIAL_ACCESS_AGENT, "default", "bob")
	bob, nameless := w.browser(p, party{secret: secret}), w.browser(p, party{})
	_, secret = w.issue(pb.CredentialAccess_CREDENTIAL_ACCESS_OBSERVER, "default", "")
	observer := w.browser(p, party{secret: secret})
	stranger := w.browser(p, party{secret: strings.Repeat("x", len(secret))})
	link, token := w.spentLogin()
	ended := w.browser(p, party{secret: token})
	request := func(name string, b *browser, method, path, body string, statuses []int, headers ...string) webAbuse {
		try := func(ctx context.Context) (int, error) { return b.do(ctx, method, path, body, headers...) }
		return webAbuse{name, statuses, len(body) > 1<<20, try}
	}
	const message = `{"messages":[{"target":{"agent":"alice"},"payload":"%s"}]}`
	noCredential := []int{http.StatusUnauthorized, http.StatusTooManyRequests}
	forbidden, bad := []int{http.StatusForbidden}, []int{http.StatusBadRequest}
	misdirected, notFound := []int{http.StatusMisdirectedRequest}, []int{http.StatusNotFound}
	large := []int{http.StatusRequestEntityTooLarge}
	return []webAbuse{
		request("no credential", nameless, "GET", "/v1/inbox", "", noCredential),
		request("unknown credential", stranger, "GET", "/v1/inbox", "", noCredential),
		request("used login link", nameless, "POST", "/v1/login", `{"secret":"`+link+`"}`, noCredential),
		request("unknown login link", nameless, "POST", "/v1/login", `{"secret":"guess"}`, noCredential),
		request("revoked token", ended, "GET", "/v1/inbox", "", noCredential),
		request("name of another agent", bob, "GET", "/v1/inbox", "", forbidden, "Brokerd-Agent", "alice"),
		request("observer sends", observer, "POST", "/v1/messages", "{}", forbidden),
		request("agent force-releases", bob, "POST", "/v1/locks/force-release", "{}", forbidden),
		request("foreign host", bob, "GET", "/v1/inbox", "", misdirected, "Host", "evil.example"),
		request("foreign origin", bob, "POST", "/v1/messages", "{}", forbidden, "Origin", "http://evil.example"),
		request("page of another site", bob, "POST", "/v1/messages", "{}", forbidden, "Sec-Fetch-Site", "cross-site"),
		request("no route", bob, "GET", "/v2/../etc/passwd", "", notFound),
		request("markup in a name", observer, "GET", "/v1/agents/%3Cimg%20src=x%3E", "", bad),
		request("malformed JSON", bob, "POST", "/v1/messages", `{"messages":[`, bad),
		request("JSON of 100,000 levels", bob, "POST", "/v1/messages", strings.Repeat("[", 100_000), bad),
		request("unknown field", bob, "POST", "/v1/messages", `{"colour":"red"}`, bad),
		request("payload of 1 MiB", bob, "POST", "/v1/messages", fmt.Sprintf(message, strings.Repeat("x", 1<<20)), bad),
		request("body of 5 MiB", bob, "POST", "/v1/messages", strings.Repeat(" ", 5<<20+1), large),
	}
}

// spentLogin returns the secret of a login link that was used, and its token, which is revoked.
func (w *world) spentLogin() (link, token string) {
	w.t.Helper()
	ctx, all := patient(w.t), w.root
	created, err := all.CreateLoginLink(ctx,
		&pb.CreateLoginLinkRequest{Access: pb.CredentialAccess_CREDENTIAL_ACCESS_OPERATOR})
	apptest.NoError(w.t, err)
	login, err := all.Login(ctx, &pb.LoginRequest{Secret: created.GetSecret()})
	apptest.NoError(w.t, err)
	user := w.tcpClient(party{secret: login.GetToken()})
	apptest.NoError(w.t, apptest.Err(user.Logout(ctx, &pb.LogoutRequest{})))
	return created.GetSecret(), login.GetToken()
}

// want returns how an answer differs from the expected ones.
func (a *webAbuse) want(status int, err error) error {
	switch {
	case slices.Contains(a.statuses, status):
		return nil
	case err != nil && a.large: // the client may notice the closed connection before the status
		return nil
	}
	return errors.Join(err, fmt.Errorf("answered with %d; want %v", status, a.statuses))
}

func TestAbuse_EachAttemptOverHTTPIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, a := range w.webAbuses() {
		if err := a.want(a.try(patient(t))); err != nil {
			t.Errorf("%s: %v", a.name, err)
		}
	}
}

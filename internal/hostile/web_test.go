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
)

// version1 is the protocol of HTTP/1.1 in TLS.
const version1 = "http/1.1"

// dripGap is the time between two bytes of a slow client.
const dripGap = 20 * time.Millisecond

// subscribeHead is a request for all events of the session.
const subscribeHead = "GET /v1/events/follow?after_revision=0 HTTP/1.1\r\nHost: localhost\r\n" +
	"Accept: text/event-stream\r\n\r\n"

// head returns the first lines of a request.
func head(request string, headers ...string) string {
	return request + " HTTP/1.1\r\nHost: localhost\r\n" + strings.Join(append(headers, "\r\n"), "\r\n")
}

// webAssaults returns what clients do below HTTP/1.1.
func webAssaults() []assault {
	list := []assault{
		{name: "without the end of the header", do: sends("GET /v1/status HTTP/1.1\r\nHost: localhost\r\n")},
		{name: "with a header of 64 KiB", do: sends(head("GET /v1/status", "X-Long: "+strings.Repeat("x", 64<<10)))},
		{name: "with two lengths", do: sends(head("POST /v1/messages", "Content-Length: 1", "Content-Length: 2") + "{}")},
		{name: "without the end of the body", do: sends(head("POST /v1/messages", "Content-Length: 100") + "{")},
		{name: "without the end of an artifact", do: sends(head("PUT /v1/artifacts/a", "Content-Length: 100") + "{")},
		{name: "with a slow header", do: drips("GET /v1/status HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")},
		{name: "with a slow body", do: drips(head("POST /v1/messages", "Content-Length: 1000000"))},
		{name: "with a slow artifact", do: drips(head("PUT /v1/artifacts/slow", "Content-Length: 1000000"))},
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
		{name: "subscriber that does not read", do: func(w *wire) error {
			_, _ = io.WriteString(w, subscribeHead)
			hold(func() error { return nil })
			return nil
		}},
		{name: "subscriber that reads a byte at a time", do: func(w *wire) error {
			_, _ = io.WriteString(w, subscribeHead)
			_ = w.SetDeadline(time.Now().Add(attackTime))
			hold(func() error { _, err := w.Read(make([]byte, 1)); return err })
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
		hold(func() error { _, err := io.WriteString(w, "x"); return err })
		return nil
	}
}

// hold calls a function at every tick for the time of an attack, or until its first error.
func hold(do func() error) {
	ticks := time.NewTicker(dripGap)
	defer ticks.Stop()
	for end := time.Now().Add(attackTime); time.Now().Before(end); {
		<-ticks.C
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
	request := func(name string, b *browser, method, path, body string, statuses []int, headers ...string) webAbuse {
		try := func(ctx context.Context) (int, error) { return b.do(ctx, method, path, body, headers...) }
		return webAbuse{name, statuses, try}
	}
	noCredential := []int{http.StatusUnauthorized, http.StatusTooManyRequests}
	forbidden, bad := []int{http.StatusForbidden}, []int{http.StatusBadRequest}
	misdirected, notFound := []int{http.StatusMisdirectedRequest}, []int{http.StatusNotFound}
	large := []int{http.StatusRequestEntityTooLarge}
	return []webAbuse{
		request("no credential", nameless, "GET", "/v1/inbox", "", noCredential),
		request("unknown credential", stranger, "GET", "/v1/inbox", "", noCredential),
		request("name of another agent", bob, "GET", "/v1/inbox", "", forbidden, "Brokerd-Agent", "alice"),
		request("observer sends", observer, "POST", "/v1/messages", "{}", forbidden),
		request("agent force-releases", bob, "POST", "/v1/locks/force-release", "{}", forbidden),
		request("foreign host", bob, "GET", "/v1/inbox", "", misdirected, "Host", "evil.example"),
		request("foreign origin", bob, "POST", "/v1/messages", "{}", forbidden, "Origin", "http://evil.example"),
		request("no route", bob, "GET", "/v2/../etc/passwd", "", notFound),
		request("malformed JSON", bob, "POST", "/v1/messages", `{"messages":[`, bad),
		request("JSON of 100,000 levels", bob, "POST", "/v1/messages", strings.Repeat("[", 100_000), bad),
		request("unknown field", bob, "POST", "/v1/messages", `{"colour":"red"}`, bad),
		request(tooLargeBody, bob, "POST", "/v1/messages", strings.Repeat(" ", 5<<20+1), large),
	}
}

// tooLargeBody is the attempt whose requests are far apart.
const tooLargeBody = "body of 5 MiB"

// want returns how an answer differs from the expected ones.
func (a *webAbuse) want(status int, err error) error {
	switch {
	case slices.Contains(a.statuses, status):
		return nil
	case err != nil && a.name == tooLargeBody: // the client may notice the closed connection before the status
		return nil
	}
	return errors.Join(err, fmt.Errorf("answered with %d; want %v", status, a.statuses))
}

func TestAbuse_EachAttemptOverHTTPIsRefused(t *testing.T) {
	w := newWorld(t)
	for _, a := range w.webAbuses() {
		if err := a.want(a.try(patient(t))); err != nil {
			t.Errorf("%s: %v", a.name, err)
		}
	}
}

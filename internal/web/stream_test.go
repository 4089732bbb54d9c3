package web_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// A follower reads an answer that is a stream.
type follower struct {
	t    *testing.T
	out  *http.Response
	in   *bufio.Scanner
	last string // the id of the last event
}

// An event is one server-sent event, or a comment.
type event struct {
	name, id, data string
	comment        bool
}

// follow opens a stream of server-sent events. headers are pairs.
func (c *browser) follow(path string, headers ...string) *follower {
	c.t.Helper()
	out := c.request("GET", path, "", append(headers, "Accept", "text/event-stream")...)
	if out.StatusCode != http.StatusOK || out.Header.Get("Content-Type") != "text/event-stream" {
		text, _ := io.ReadAll(out.Body)
		c.t.Fatalf("%s: %s %s", path, out.Status, text)
	}
	return newFollower(c.t, out)
}

func newFollower(t *testing.T, out *http.Response) *follower {
	f := &follower{t: t, out: out, in: bufio.NewScanner(out.Body)}
	f.in.Buffer(nil, 8<<20)
	return f
}

// next returns the next event; false at the end of the stream.
func (f *follower) next() (event, bool) {
	f.t.Helper()
	var e event
	for f.in.Scan() {
		name, value, _ := strings.Cut(f.in.Text(), ": ")
		switch {
		case f.in.Text() == ":":
			e.comment = true
		case f.in.Text() == "":
			if e.id != "" {
				f.last = e.id
			}
			return e, true
		case name == "event":
			e.name = value
		case name == "id":
			e.id = value
		case name == "data":
			e.data = value
		default:
			f.t.Fatalf("the stream has the line %q", f.in.Text())
		}
	}
	return e, false
}

// until returns the first event that fits.
func (f *follower) until(what string, fits func(event) bool) event {
	f.t.Helper()
	for {
		e, ok := f.next()
		if !ok {
			f.t.Fatalf("the stream ended before %s: %v", what, f.in.Err())
		}
		if fits(e) {
			return e
		}
	}
}

// revisions returns the revisions of the events in a frame of a subscription.
func revisions(t *testing.T, data string) (all []int64) {
	t.Helper()
	var frame struct{ Events []struct{ Revision int64 } }
	if err := json.Unmarshal([]byte(data), &frame); err != nil {
		t.Fatalf("%v: %s", err, data)
	}
	for _, e := range frame.Events {
		all = append(all, e.Revision)
	}
	return all
}

func TestStream_FollowsEvents(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	b.Registered("lead", "lead")
	lead := onSocket(t, b, "lead")
	f := lead.follow("/v1/events/follow?types=build.*")
	first, _ := f.next()
	if first.id == "" || !strings.Contains(first.data, `"events":[]`) {
		t.Errorf("the first frame: %+v", first)
	}
	published := lead.must("POST", "/v1/events", `{"type":"build.finished","summary":"ok","details":{"target":"all"}}`)
	e := f.until("the event", func(e event) bool { return strings.Contains(e.data, "build_finished") })
	if e.id != published.number("revision") || !strings.Contains(e.data, `"details":{"target":"all"}`) {
		t.Errorf("got %+v, published %s", e, published.text)
	}
}

// Events come before, during and after each cut of the connection.
func TestStream_ResumesByLastEventIDWithoutLossOrRepetition(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	publisher := pb.NewEventServiceClient(b.Registered("lead", "lead"))
	const cuts, each = 20, 5
	var seen []int64
	var publishing sync.WaitGroup
	defer publishing.Wait()
	last := ""
	for cut := 0; len(seen) < cuts*each; cut++ {
		if cut < cuts {
			publishing.Wait()
			publishing.Go(func() {
				for range each {
					if _, err := publisher.PublishEvent(t.Context(), &pb.PublishEventRequest{Type: "build.step"}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		// A browser repeats the URL of its first request.
		var headers []string
		if last != "" {
			headers = []string{"Last-Event-ID", last}
		}
		f := onSocket(t, b, "lead").follow("/v1/events/follow?after_revision=0&types=build.*", headers...)
		for before := len(seen); len(seen) == before; {
			e, ok := f.next()
			if !ok {
				t.Fatalf("the stream ended after %d events: %v", len(seen), f.in.Err())
			}
			seen = append(seen, revisions(t, e.data)...)
		}
		last = f.last
		_ = f.out.Body.Close()
	}
	var want []int64
	list := apptest.Must(t, b.Root().ListEvents,
		&pb.ListEventsRequest{PageSize: 1000, Filter: &pb.EventFilter{Types: []string{"build.*"}}})
	for _, e := range list.GetEvents() {
		want = append(want, e.GetRevision())
	}
	if !slices.Equal(seen, want) {
		t.Errorf("saw %v, want %v", seen, want)
	}
}

func TestStream_IsJSONLinesByDefault(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	b.Registered("lead", "lead")
	lead := onSocket(t, b, "lead")
	lead.must("POST", "/v1/messages", `{"messages":[{"target":{"agent":"lead"},"subject":"hello"}]}`)
	out := lead.request("GET", "/v1/inbox/follow", "")
	if out.StatusCode != http.StatusOK || out.Header.Get("Content-Type") != "application/jsonl" {
		t.Fatalf("%s %v", out.Status, out.Header)
	}
	line, err := bufio.NewReader(out.Body).ReadString('\n')
	if err != nil || !strings.Contains(line, `"subject":"hello"`) || !json.Valid([]byte(line)) {
		t.Errorf("%s, %v", line, err)
	}
}

func TestStream_WatchesState(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	b.Registered("lead", "lead")
	lead := onSocket(t, b, "lead")
	f := lead.follow("/v1/state-watch?namespace=build")
	if _, ok := f.next(); !ok {
		t.Fatal("the stream has no first frame")
	}
	lead.must("PUT", "/v1/state/build/target", `{"value":{"os":"linux"}}`)
	f.until("the change", func(e event) bool { return strings.Contains(e.data, `"value":{"os":"linux"}`) })
}

func TestStream_WatchersOfAnOverviewGetTheSameFrames(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	b.Registered("lead", "lead")
	var watchers []*follower
	for range 3 {
		watchers = append(watchers, onSocket(t, b, "").follow("/v1/overview/follow"))
	}
	onSocket(t, b, "lead").must("POST", "/v1/messages", `{"messages":[{"target":{"agent":"lead"},"subject":"hello"}]}`)
	frames := map[string]string{} // by revision and time
	for _, w := range watchers {
		e := w.until("the message", func(e event) bool { return strings.Contains(e.data, `"waiting":1`) })
		var frame struct {
			Time     string
			Revision int64
			Totals   struct{ Agents int }
		}
		if err := json.Unmarshal([]byte(e.data), &frame); err != nil || frame.Totals.Agents != 1 ||
			e.id != fmt.Sprint(frame.Revision) {
			t.Errorf("%v: %+v", err, e)
		}
		at := e.id + " " + frame.Time
		if other := frames[at]; other != "" && other != e.data {
			t.Errorf("two watchers got\n%s\n%s", other, e.data)
		}
		frames[at] = e.data
	}
	a := onSocket(t, b, "lead").do("GET", "/v1/overview", "")
	if a.status != http.StatusForbidden || a.reason() != "NOT_FOR_AGENTS" {
		t.Errorf("as an agent: %d %s", a.status, a.text)
	}
}

func TestStream_HasACommentEvery15Seconds(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t, apptest.WithFakeClock())
	f := onSocket(t, b, "").follow("/v1/events/follow")
	if _, ok := f.next(); !ok {
		t.Fatal("the stream has no first frame")
	}
	for range 2 {
		b.Clock.Advance(15 * time.Second)
		f.until("a comment", func(e event) bool { return e.comment })
	}
}

func TestStream_ARefusalBeforeTheFirstFrameHasAStatus(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	for _, tt := range []struct {
		c      *browser
		path   string
		status int
		reason string
	}{
		{overTCP(t, b, ""), "/v1/events/follow", 401, "CREDENTIAL_REQUIRED"},
		{onSocket(t, b, ""), "/v1/events/follow?after_revision=1000000", 400, "INVALID_ARGUMENT"},
		{onSocket(t, b, ""), "/v1/events/follow?type=x", 400, "INVALID_ARGUMENT"},
		{onSocket(t, b, "ghost"), "/v1/inbox/follow", 409, "AGENT_NOT_REGISTERED"},
	} {
		a := tt.c.do("GET", tt.path, "", "Accept", "text/event-stream")
		if a.status != tt.status || a.reason() != tt.reason {
			t.Errorf("%s: %d %s", tt.path, a.status, a.text)
		}
	}
}

func TestStream_SaysWhyItEnds(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	b.Registered("lead", "lead")
	credential, secret := b.Issue(&pb.IssueCredentialRequest{Access: pb.CredentialAccess_CREDENTIAL_ACCESS_OBSERVER})
	revoked := overTCP(t, b, secret).follow("/v1/events/follow")
	revoked.next()
	stopped := onSocket(t, b, "").follow("/v1/events/follow")
	stopped.next()
	lines := newFollower(t, onSocket(t, b, "").request("GET", "/v1/events/follow", ""))
	lines.in.Scan()
	onSocket(t, b, "").must("POST", "/v1/call/CredentialService/RevokeCredential", `{"id":"`+credential.GetId()+`"}`)
	ends := func(f *follower, reason string) {
		t.Helper()
		e := f.until("its error", func(e event) bool { return e.name == "failed" })
		if !strings.Contains(e.data, reason) {
			t.Errorf("got %+v, want %s", e, reason)
		}
		if e, more := f.next(); more {
			t.Errorf("after the end: %+v", e)
		}
	}
	ends(revoked, `"reason":"CREDENTIAL_REVOKED"`)
	b.Restart()
	ends(stopped, `"code":"unreachable"`)
	var last string
	for lines.in.Scan() {
		last = lines.in.Text()
	}
	if !strings.HasPrefix(last, `{"error":{"code":"unreachable"`) {
		t.Errorf("the last line is %s", last)
	}
}

func TestStream_AgentsHaveTheQuotaOfConnections(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	b.Registered("lead", "lead")
	lead := onSocket(t, b, "lead") // every open stream needs its own connection
	var open []*follower
	for range 15 { // and the registration has one
		f := lead.follow("/v1/events/follow")
		f.next()
		open = append(open, f)
	}
	a := lead.do("GET", "/v1/inbox", "")
	if a.status != http.StatusTooManyRequests || a.reason() != "TOO_MANY_CONNECTIONS" ||
		a.header.Get("Retry-After") == "" {
		t.Errorf("%d %v %s", a.status, a.header, a.text)
	}
	for _, f := range open {
		_ = f.out.Body.Close()
	}
}

func TestStream_AClientSendsFramesAsLines(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	b.Registered("lead", "lead")
	lead := onSocket(t, b, "lead")
	ctx, cancel := context.WithTimeout(context.Background(), apptest.Patience)
	defer cancel()
	send := `{"messages":[{"target":{"agent":"lead"},"subject":"a"}]}` + "\n" +
		`{"messages":[{"target":{"agent":"lead"},"subject":"b"}]}` + "\n"
	if a := lead.must("POST", "/v1/call/MessageService/Send", send); strings.Count(a.text, `"outcome":"queued"`) != 2 {
		t.Errorf("got %s", a.text)
	}

	// A consumer acknowledges a message on the stream that has delivered it.
	body, frames := io.Pipe()
	r, err := http.NewRequestWithContext(ctx, "POST", lead.base+"/v1/call/MessageService/Claim", body)
	apptest.NoError(t, err)
	r.Header = lead.headers.Clone()
	go func() { _, _ = io.WriteString(frames, `{"open":{}}`+"\n") }()
	out, err := lead.client.Do(r)
	apptest.NoError(t, err)
	defer func() { _ = out.Body.Close() }()
	f := newFollower(t, out)
	var claim string
	for claim == "" && f.in.Scan() {
		var frame map[string]any
		apptest.NoError(t, json.Unmarshal(f.in.Bytes(), &frame))
		claim, _ = at(frame, "deliver.claims.0.claim_id").(string)
	}
	go func() { _, _ = io.WriteString(frames, `{"acks":["`+claim+`"]}`+"\n") }()
	settled := false
	for !settled && f.in.Scan() {
		settled = strings.HasPrefix(f.in.Text(), `{"results":{"results":[{"claim_id":"`+claim+`","error":null`)
	}
	if !settled {
		t.Errorf("the ack has no result: %v", f.in.Err())
	}
	_ = frames.Close()
	for f.in.Scan() {
	}
}

func TestStream_AFrameOfAClientIsBounded(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	b.Registered("lead", "lead")
	large := `{"messages":[{"body":"` + strings.Repeat("x", 5<<20) + `"}]}`
	a := onSocket(t, b, "lead").do("POST", "/v1/call/MessageService/Send", large+strings.Repeat("\n", 32<<10))
	if a.status != http.StatusRequestEntityTooLarge || a.reason() != "MESSAGE_TOO_LARGE" {
		t.Errorf("%d %s", a.status, a.text)
	}
}

// A large frame counts once, however many reads it takes: four of 5 MB, which wait for their ends at the
// same time, stay within 64 MiB.
func TestStream_LargeFramesThatArriveInSmallPartsCountOnce(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	b.Registered("lead", "lead")
	c := onSocket(t, b, "lead")
	message := `{"target":{"agent":"lead"},"body":"` + strings.Repeat("x", 200<<10) + `"}`
	frame := []byte(`{"messages":[` + strings.Repeat(message+",", 23) + message + "]}")
	var ends, answers sync.WaitGroup
	ends.Add(4)
	for range 4 {
		body, parts := io.Pipe()
		go func() {
			for part := range slices.Chunk(frame[:len(frame)-1], 1<<10) {
				_, _ = parts.Write(part) // an early answer closes the pipe
			}
			ends.Done()
			ends.Wait()
			_, _ = parts.Write(frame[len(frame)-1:])
			_ = parts.Close()
		}()
		answers.Go(func() {
			r, err := http.NewRequestWithContext(t.Context(), "POST", c.base+"/v1/call/MessageService/Send", body)
			if err != nil {
				t.Error(err)
				return
			}
			r.Header = c.headers.Clone()
			out, err := c.client.Do(r)
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = out.Body.Close() }()
			text, err := io.ReadAll(out.Body)
			if n := strings.Count(string(text), `"outcome":"queued"`); n != 24 || err != nil {
				t.Errorf("%d messages are sent: %s: %.300s %v", n, out.Status, text, err)
			}
		})
	}
	answers.Wait()
}

// The call of a client that no longer reads is not an error of the broker.
func TestStream_ACallWhoseClientReadsNoAnswerIsCancelled(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t, apptest.WithMetrics())
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: strings.TrimPrefix(b.Socket(), "unix://"), Net: "unix"})
	apptest.NoError(t, err)
	defer func() { _ = conn.Close() }()
	if err := conn.CloseRead(); err != nil { // the broker's writes fail, and its reads do not
		t.Fatal(err)
	}
	const frame = `{"messages":[{"target":{"role":"builder"}}]}`
	const head = "POST /v1/call/MessageService/Send HTTP/1.1\r\nHost: brokerd\r\nContent-Length: 1000\r\n\r\n"
	apptest.NoError(t, apptest.Err(io.WriteString(conn, head+frame+"\n")))
	if codes := b.Ended("MessageService/Send", 1); codes["Canceled"] != 1 {
		t.Errorf("the call ended with %v", codes)
	}
}

// A browser sends the last id again when it reconnects, whatever the stream.
func TestStream_AnOverviewContinuesWithItsNewestFrame(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	c := onSocket(t, b, "")
	first, _ := c.follow("/v1/overview/follow").next()
	again, ok := c.follow("/v1/overview/follow", "Last-Event-ID", first.id).next()
	if !ok || first.id == "" || !strings.Contains(again.data, `"totals"`) {
		t.Errorf("got %+v after %+v", again, first)
	}
}

func TestStream_HeadTakesNoMessage(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	b.Registered("lead", "lead")
	c := onSocket(t, b, "lead")
	out := c.request("HEAD", "/v1/inbox/follow", "")
	if out.StatusCode != http.StatusMethodNotAllowed || out.Header.Get("Allow") != "GET" {
		t.Errorf("got %s, %v", out.Status, out.Header)
	}
}

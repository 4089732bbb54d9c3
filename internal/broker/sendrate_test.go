package broker_test

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
)

// A timedWorld is one whose daemon tells of every timer that it sets, with a session "team" that has the default settings.
type timedWorld struct {
	*world
	timers chan time.Duration
}

type timedClock struct {
	*clockwork.FakeClock
	timers chan time.Duration
}

// NewTimer implements clockwork.Clock.
func (c timedClock) NewTimer(d time.Duration) clockwork.Timer {
	timer := c.FakeClock.NewTimer(d)
	c.timers <- d
	return timer
}

func newTimedWorld(t *testing.T) *timedWorld {
	t.Helper()
	fake := clockwork.NewFakeClockAt(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	clock := timedClock{fake, make(chan time.Duration, 10_000)}
	broker := apptest.Start(t, apptest.With(func(c *app.Config) { c.Clock, c.StopTimeout = clock, apptest.Patience }))
	broker.Clock = fake
	w := &timedWorld{&world{Broker: broker}, clock.timers}
	o := w.operator()
	apptest.Must(t, o.CreateSession, &pb.CreateSessionRequest{Name: "team"})
	return w
}

// member returns a registered agent of the session "team".
func (w *timedWorld) member(name string) *agent {
	a := w.in("team", name)
	a.Register("")
	return a
}

// limit changes the settings of the session "team".
func (w *timedWorld) limit(s *pb.SessionSettings) {
	w.Helper()
	o := w.in("team", "")
	apptest.Must(w, o.ConfigureSession, &pb.ConfigureSessionRequest{Settings: s})
}

// awaitTimer returns once the daemon has set a timer of this length.
func (w *timedWorld) awaitTimer(d time.Duration) {
	w.Helper()
	late := time.After(apptest.Patience)
	for {
		select {
		case got := <-w.timers:
			if got == d {
				return
			}
		case <-late:
			w.Fatalf("nobody waits for %v", d)
		}
	}
}

// row is n messages for agent a.
func row(n int) []*pb.Message {
	all := make([]*pb.Message, n)
	for i := range all {
		all[i] = to("a", subject(strconv.Itoa(i)))
	}
	return all
}

// begin sends in the background.
func (a *agent) begin(ctx context.Context, m []*pb.Message) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := a.SendMessages(ctx, &pb.SendMessagesRequest{Messages: m})
		done <- err
	}()
	return done
}

func wantSendRate(t *testing.T, err error, after time.Duration) {
	t.Helper()
	apptest.Refused(t, err, codes.ResourceExhausted, "SEND_RATE")
	for _, d := range status.Convert(err).Details() {
		switch d := d.(type) {
		case *errdetails.RetryInfo:
			want(t, "to be tried again after", d.RetryDelay.AsDuration(), after)
			after = 0
		case *errdetails.ErrorInfo:
			want(t, "limit", d.Metadata["limit"], "send_rate")
			want(t, "value", d.Metadata["send_rate"], "10")
		}
	}
	if after != 0 || !strings.Contains(err.Error(), "10 messages a second") {
		t.Errorf("%v", err)
	}
}

func TestSendRate_IsTenASecondAndAHundredAtOnceByDefault(t *testing.T) {
	t.Parallel()
	w := newTimedWorld(t)
	a, b := w.member("a"), w.member("b")
	a.sendAll(row(100)...)

	short, cancel := context.WithTimeout(a.Ctx, 90*time.Second) // of the real clock, and long enough for a slow machine
	defer cancel()
	wantSendRate(t, <-a.begin(short, row(1000)), 100*time.Second)

	waits := a.begin(a.Ctx, row(20)) // the refused ones have taken nothing from these
	w.awaitTimer(2 * time.Second)
	b.sendAll(row(100)...)                // others go on,
	w.in("team", "").sendAll(row(500)...) // and operators are not limited
	w.Clock.Advance(2*time.Second - time.Millisecond)
	select {
	case err := <-waits:
		t.Fatalf("sent too early: %v", err)
	default:
	}
	w.Clock.Advance(time.Millisecond)
	apptest.NoError(t, <-waits)
}

func TestSendRate_RefusedBatchTakesNothingFromLaterSends(t *testing.T) {
	t.Parallel()
	w := newTimedWorld(t)
	a := w.member("a")
	for range 20 { // whether a limiter restores what it has reserved depends on the rounding of its times
		short, cancel := context.WithTimeout(a.Ctx, 80*time.Second) // the batch would wait for 90 s
		apptest.Refused(t, <-a.begin(short, row(1000)), codes.ResourceExhausted, "SEND_RATE")
		cancel()
		a.sendAll(row(1)...)
		w.Clock.Advance(12_345_679 * time.Nanosecond)
	}
	a.sendAll(row(80)...)
}

func TestSendRate_WithoutADeadlineTheWaitIsAtMostHalfAMinute(t *testing.T) {
	t.Parallel()
	w := newTimedWorld(t)
	a := w.member("a")
	wantSendRate(t, <-a.begin(t.Context(), row(401)), 30*time.Second+100*time.Millisecond)
	waits := a.begin(t.Context(), row(400)) // more than a burst, in one call
	w.awaitTimer(30 * time.Second)
	w.Clock.Advance(30 * time.Second)
	apptest.NoError(t, <-waits)
	want(t, "messages", len(w.allOf("a")), 400)
}

// allOf returns what lies in a team member's mailbox.
func (w *timedWorld) allOf(name string) []*pb.InboxItem {
	items, _ := w.in("team", name).receive(&pb.ReceiveRequest{})
	return items
}

func TestSendRate_OneMessageIsOneWhateverItsFanOut(t *testing.T) {
	t.Parallel()
	w := newTimedWorld(t)
	for i := range 20 {
		w.member("b" + strconv.Itoa(i))
	}
	a := w.member("a")
	all := row(100)
	for _, m := range all {
		m.Target = &pb.Target{To: &pb.Target_Everyone{Everyone: true}}
	}
	want(t, "recipients", a.sendAll(all...)[99].RecipientCount, 20)
}

func TestSendRate_AStreamIsHeldBackInOrderAndNoOther(t *testing.T) {
	t.Parallel()
	w := newTimedWorld(t)
	a, b := w.member("a"), w.member("b")
	s := a.sender()
	for _, r := range s.exchange(&pb.SendRequest{Messages: row(100)}) {
		want(t, "error", r.Error, nil)
	}
	for i := range 3 {
		s.put(&pb.SendRequest{Messages: []*pb.Message{to("b", subject(strconv.Itoa(i)))}})
	}
	other := b.sender()
	other.exchange(&pb.SendRequest{Messages: row(100)})
	last := int64(0)
	for range 3 {
		w.awaitTimer(100 * time.Millisecond)
		w.Clock.Advance(100 * time.Millisecond)
		r := s.results(1)[0]
		if r.Error != nil || r.Revision <= last {
			t.Errorf("%v after revision %d", r, last)
		}
		last = r.Revision
	}
	wantList(t, "subjects", subjectsIn(w.allOf("b")), "0", "1", "2")

	s.put(&pb.SendRequest{Messages: row(1000)}) // it ends with its stream
	w.awaitTimer(100 * time.Second)
	s.end()
	w.awaitStreams(1)
	waits := a.begin(a.Ctx, row(1)) // what was not sent was given back
	w.awaitTimer(100 * time.Millisecond)
	w.Clock.Advance(100 * time.Millisecond)
	apptest.NoError(t, <-waits)
}

func TestSendRate_AChangedSettingTakesEffectAtOnce(t *testing.T) {
	t.Parallel()
	w := newTimedWorld(t)
	a := w.member("a")
	a.sendAll(row(100)...)
	waits := a.begin(a.Ctx, row(10))
	w.awaitTimer(time.Second)
	w.limit(&pb.SessionSettings{SendRate: new(100.0)})
	w.awaitTimer(100 * time.Millisecond)
	w.limit(&pb.SessionSettings{SendRate: new(0.0)})
	apptest.NoError(t, <-waits)
	a.sendAll(row(1000)...)
	w.limit(&pb.SessionSettings{SendRate: new(10.0), SendBurst: new(int32(5))})
	a.sendAll(row(5)...)
	waits = a.begin(a.Ctx, row(1))
	w.awaitTimer(100 * time.Millisecond)
	w.Clock.Advance(100 * time.Millisecond)
	apptest.NoError(t, <-waits)
}

func TestSendRate_WhoWaitsIsToldThatTheSessionIsClosed(t *testing.T) {
	t.Parallel()
	w := newTimedWorld(t)
	a := w.member("a")
	a.sendAll(row(100)...)
	waits := a.begin(a.Ctx, row(10))
	w.awaitTimer(time.Second)
	o := w.operator()
	apptest.Must(t, o.CloseSession, &pb.CloseSessionRequest{Name: "team"})
	apptest.Refused(t, <-waits, codes.FailedPrecondition, "SESSION_CLOSED")
	apptest.Refused(t, <-a.begin(a.Ctx, row(1000)), codes.FailedPrecondition, "SESSION_CLOSED")
}

func TestSendRate_WhoWaitsIsToldThatTheBrokerStops(t *testing.T) {
	t.Parallel()
	w := newTimedWorld(t)
	a := w.member("a")
	a.sendAll(row(100)...)
	waits := a.begin(a.Ctx, row(10))
	w.awaitTimer(time.Second)
	w.Restart()
	apptest.Refused(t, <-waits, codes.Unavailable, "SHUTTING_DOWN")
}

func TestLimits_OfASessionHoldForCallsAndStreams(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	w.Root().Configure(&pb.SessionSettings{MessageLimit: new(int32(2000)), PayloadLimit: new(int32(1000))})
	payload := func(n int) func(*pb.Message) {
		return func(m *pb.Message) { m.Payload = `"` + strings.Repeat("x", n-2) + `"` }
	}
	body := func(n int) func(*pb.Message) { return func(m *pb.Message) { m.Body = strings.Repeat("x", n) } }
	a.send(to("a", payload(1000)))
	err := a.refused(to("a", payload(1001)))
	apptest.Invalid(t, err, "messages[0].payload")
	if !strings.Contains(err.Error(), "at most 1000") || !strings.Contains(err.Error(), "payload_limit") {
		t.Error(err)
	}
	a.send(to("a", body(1900)))
	err = a.refused(to("a", body(2000)))
	apptest.Refused(t, err, codes.ResourceExhausted, "MESSAGE_TOO_LARGE")
	if !strings.Contains(err.Error(), "at most 2000") || !strings.Contains(err.Error(), "message_limit") {
		t.Error(err)
	}

	got := a.sender().exchange(&pb.SendRequest{Messages: []*pb.Message{to("a"), to("a", payload(1001)), to("a", body(2000)), to("a")}})
	for i, wanted := range []struct {
		code          codes.Code
		reason, field string
	}{
		{codes.OK, "", ""}, {codes.InvalidArgument, "INVALID_ARGUMENT", "messages[1].payload"}, {codes.ResourceExhausted, "MESSAGE_TOO_LARGE", ""}, {codes.OK, "", ""},
	} {
		e := got[i].GetError()
		want(t, "code", codes.Code(e.GetCode()), wanted.code)
		want(t, "reason", e.GetReason(), wanted.reason)
		want(t, "field", e.GetField(), wanted.field)
	}
}

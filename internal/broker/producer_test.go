package broker_test

import (
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

// untilForgotten is longer than the broker remembers a producer and shorter than it keeps messages.
const untilForgotten = 49 * time.Hour

func TestProducer_ResendIsAnsweredWithItsOwnMessageAfterAnotherProducerWasForgotten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	a.exchange(numbered("friday", 1, 3))
	w.Clock.Advance(untilForgotten)
	sent := a.exchange(numbered("sunday", 1, 3))
	again := a.exchange(numbered("sunday", 1, 3))
	for i := range sent {
		wantResent(t, sent[i], again[i])
	}
}

func TestProducer_ResendIsNeverAnsweredWithAMessageOfAnotherSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	a.exchange(numbered("friday", 1, 3))
	w.Clock.Advance(untilForgotten)
	o := w.operator()
	apptest.Must(t, o.CreateSession,
		&pb.CreateSessionRequest{Name: "other", Settings: &pb.SessionSettings{SendRate: new(0.0)}})
	b := w.in("other", "a")
	b.Register("")
	sent := b.exchange(numbered("sunday", 1, 3))
	again := b.exchange(numbered("sunday", 1, 3))
	for i := range sent {
		wantResent(t, sent[i], again[i])
	}
}

func TestProducer_RefusedNumberIsNeverConfirmedWithAMessageOfAnotherProducer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	a.exchange(numbered("friday", 1, 3))
	w.Clock.Advance(untilForgotten)
	batch := numbered("sunday", 1, 3)
	batch.Messages[1].Target = to("nobody").Target
	sent := a.exchange(batch)
	want(t, "number 2", codes.Code(sent[1].GetError().GetCode()), codes.NotFound)
	again := a.exchange(batch)
	wantResent(t, sent[0], again[0])
	want(t, "number 2 again", codes.Code(again[1].GetError().GetCode()), codes.FailedPrecondition)
	want(t, "number 2 again", again[1].GetError().GetReason(), "NUMBER_TOO_LOW")
	wantResent(t, sent[2], again[2])
}

func TestProducer_ForgottenProducerSendsItsNumbersAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	sent := a.exchange(numbered("friday", 1, 1))
	w.Clock.Advance(untilForgotten)
	a.exchange(numbered("sunday", 1, 1))
	again := a.exchange(numbered("friday", 1, 1))
	want(t, "a late resend is a duplicate", again[0].Duplicate, false)
	want(t, "a late resend has the old id", again[0].Id == sent[0].Id, false)
}

func TestProducer_JumpsOfTheWallClockChangeNothing(t *testing.T) {
	t.Parallel()
	for _, jump := range []time.Duration{25 * time.Hour, 30 * 24 * time.Hour, -time.Hour, -30 * time.Hour} {
		t.Run(jump.String(), func(t *testing.T) {
			clock := testkit.NewJumpClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
			w := &world{Broker: apptest.Start(t, apptest.With(func(c *app.Config) { c.Clock = clock }))}
			a := w.agent("a", "")
			sent := a.exchange(numbered("friday", 1, 1))
			clock.Jump(jump)
			a.exchange(numbered("sunday", 1, 1)) // a new producer removes old ones
			wantResent(t, sent[0], a.exchange(numbered("friday", 1, 1))[0])
			w.Restart()
			a.exchange(numbered("monday", 1, 1))
			wantResent(t, sent[0], a.exchange(numbered("friday", 1, 1))[0])
		})
	}
}

// exchange sends a batch on a Send stream and returns its results.
func (a *agent) exchange(r *pb.SendRequest) []*pb.SendResult {
	a.Helper()
	s := a.sender()
	results := s.exchange(r)
	s.close()
	return results
}

// wantResent checks that a number sent again got the answer of the first time.
func wantResent(t testing.TB, first, again *pb.SendResult) {
	t.Helper()
	want(t, "error", again.GetError(), nil)
	want(t, "duplicate", again.Duplicate, true)
	want(t, "id", again.Id, first.Id)
	want(t, "revision", again.Revision, first.Revision)
}

// A batch of a stream fails after the next one was sent, as it does while the database cannot be reached. The next one is
// refused with it: its numbers would have the broker refuse those of the lost batch for good.
func TestProducer_ABatchBehindALostOneIsRefused(t *testing.T) {
	t.Parallel()
	var on atomic.Bool
	w := newWorld(t, dropping(1, &on))
	a := w.agent("a", "")
	s := a.sender()
	s.exchange(numbered("p", 1, 2))
	on.Store(true)
	for _, r := range s.exchange(&pb.SendRequest{FirstNumber: 3, Messages: numbered("", 3, 2).Messages}) {
		want(t, "reason", r.GetError().GetReason(), "DROPPED")
	}
	on.Store(false)
	for _, r := range s.exchange(&pb.SendRequest{FirstNumber: 5, Messages: numbered("", 5, 2).Messages}) {
		want(t, "code", codes.Code(r.GetError().GetCode()), codes.Unavailable)
		want(t, "reason", r.GetError().GetReason(), "EARLIER_FAILED")
	}
	s.close()
	for i, r := range a.sender().exchange(numbered("p", 1, 6)) {
		want(t, "error", r.GetError(), nil)
		want(t, "duplicate", r.GetDuplicate(), i < 2)
	}
	items, _ := a.receive(&pb.ReceiveRequest{})
	want(t, "messages", len(items), 6)
}

package broker_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestClaimStream_SameConsumerTakesOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "")
	lead.sendAll(to("a", subject("1")), to("a", subject("2")), to("a", subject("3")))
	old := a.taker(&pb.ClaimOpen{Consumer: "x", MaxInFlight: 2})
	held := old.take(2)
	other := a.taker(&pb.ClaimOpen{Consumer: "y"})
	next := a.taker(&pb.ClaimOpen{Consumer: "x", MaxInFlight: 2})

	revoked := old.revoked()
	want(t, "reason", revoked.Reason, pb.RevokeReason_REVOKE_REASON_TAKEN_OVER)
	want(t, "revoked", len(revoked.ClaimIds), 2)
	apptest.Refused(t, old.ended(), codes.Aborted, "TAKEN_OVER")
	wantList(t, "resumed", subjectsOf(next.opened.Resumed), "1", "2")
	for i, c := range next.opened.Resumed {
		want(t, "resumed", c.Resumed, true)
		want(t, "claim", c.ClaimId, held[i].ClaimId)
		want(t, "attempt", c.Attempt, 1)
	}
	next.idle() // they count as in flight
	wantList(t, "another consumer", subjectsOf(other.take(1)), "3")
	lead.send(to("a", subject("4")))
	next.ack(next.opened.Resumed[0])
	wantList(t, "with room", subjectsOf(next.take(1)), "4")
}

func TestClaimStream_TakesOverWhatCallsHaveClaimed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	a.sendAll(to("a", subject("1")), to("a", subject("2")))
	a.claimWith(&pb.ClaimMessagesRequest{Consumer: "x"})
	c := a.taker(&pb.ClaimOpen{Consumer: "x", MaxInFlight: 2})
	wantList(t, "resumed", subjectsOf(c.opened.Resumed), "1")
	wantList(t, "new", subjectsOf(c.take(1)), "2")
	again := a.claimWith(&pb.ClaimMessagesRequest{Consumer: "x", Max: 5}).Claims
	wantList(t, "a call sees what the stream holds", subjectsOf(again), "1", "2")
	want(t, "resumed", again[1].Resumed, true)
}

func TestClaimStream_TakesOverMoreThanOneAnswerHolds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	big := func(m *pb.Message) {
		m.Body, m.Payload = strings.Repeat("x", 256<<10), `"`+strings.Repeat("y", 256<<10-2)+`"`
	}
	for range 10 {
		a.send(to("a", big))
	}
	old := a.taker(&pb.ClaimOpen{MaxInFlight: 20, MaxBytes: 64 << 20})
	old.take(10)
	next := a.taker(&pb.ClaimOpen{MaxInFlight: 20, MaxBytes: 64 << 20})
	resumed := next.opened.Resumed
	if len(resumed) < 10 {
		resumed = append(resumed, next.take(10-len(resumed))...)
	}
	for _, c := range resumed {
		want(t, "resumed", c.Resumed, true)
	}
	next.ack(resumed...)
}

func TestClaimStream_BrokenStreamLeavesTimeToResume(t *testing.T) {
	t.Parallel()
	s := staged(t)
	c := s.worker.taker(&pb.ClaimOpen{Consumer: "x", ClaimFor: durationpb.New(10 * time.Second)})
	held := c.take(1)[0]
	want(t, "lasts", held.ExpiresIn.AsDuration(), 10*time.Second)
	s.Clock.Advance(5 * time.Minute) // the broker extends it while the stream lives
	c.idle()
	s.lead.wantState(s.id, claimed)
	c.end()
	s.awaitStreams(0)
	s.worker.claimWith(&pb.ClaimMessagesRequest{Consumer: "y"}) // by now the end has been dealt with
	s.Clock.Advance(9 * time.Second)
	again := s.worker.taker(&pb.ClaimOpen{Consumer: "x", ClaimFor: durationpb.New(10 * time.Second)})
	wantList(t, "resumed", []string{again.opened.Resumed[0].ClaimId}, held.ClaimId)
	again.end()
	s.awaitStreams(0)
	s.worker.claimWith(&pb.ClaimMessagesRequest{Consumer: "y"})
	s.Clock.Advance(10 * time.Second)
	d := s.awaitState(s.id, delayed)
	want(t, "attempts", d.Attempts, 1)
	want(t, "history", d.History[0].Consumer, "x")
}

func TestClaimStream_LongestTotalEndsAClaim(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		open *pb.ClaimOpen
		want time.Duration
	}{
		"the default":            {&pb.ClaimOpen{}, 30 * time.Minute},
		"as asked":               {&pb.ClaimOpen{MaxTotal: durationpb.New(time.Minute)}, time.Minute},
		"raised by a longer one": {&pb.ClaimOpen{MaxTotal: durationpb.New(time.Minute), ClaimFor: durationpb.New(time.Hour)}, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			s := staged(t)
			stream := s.worker.taker(c.open)
			held := stream.take(1)[0]
			s.Clock.Advance(c.want - time.Second)
			stream.idle()
			s.Clock.Advance(time.Second)
			revoked := stream.revoked()
			want(t, "reason", revoked.Reason, pb.RevokeReason_REVOKE_REASON_EXPIRED)
			wantList(t, "revoked", revoked.ClaimIds, held.ClaimId)
			want(t, "attempts", s.awaitState(s.id, delayed).Attempts, 1)
		})
	}
}

func TestClaimStream_ExtensionNeverShortensWhatTheStreamKeeps(t *testing.T) {
	t.Parallel()
	s := staged(t)
	c := s.worker.taker(&pb.ClaimOpen{MaxInFlight: 2})
	id := c.take(1)[0].ClaimId
	want(t, "error", c.settle(&pb.ClaimRequest{Extensions: []*pb.Extension{{ClaimId: id}}})[0].Error, nil)
	s.Clock.Advance(lease)
	c.idle()
	s.lead.wantState(s.id, claimed)
	want(t, "error", c.settle(&pb.ClaimRequest{Extensions: []*pb.Extension{{ClaimId: id, ClaimFor: durationpb.New(2 * time.Hour)}}})[0].Error, nil)
	s.Clock.Advance(2*time.Hour - time.Second)
	c.idle()
	s.lead.wantState(s.id, claimed)
	s.Clock.Advance(time.Second)
	want(t, "reason", c.revoked().Reason, pb.RevokeReason_REVOKE_REASON_EXPIRED)
}

func TestClaimStream_ClaimSettledByACallIsRevoked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	for name, settle := range map[string]func(id string){
		"ack":   func(id string) { a.ack(id) },
		"nack":  func(id string) { a.nack(&pb.Nack{ClaimId: id, Delay: durationpb.New(time.Hour)}) },
		"fatal": func(id string) { a.nack(&pb.Nack{ClaimId: id, Fatal: true}) },
	} {
		t.Run(name, func(t *testing.T) {
			c := a.taker(&pb.ClaimOpen{MaxInFlight: 1, Types: []string{name}})
			a.sendAll(to("a", kind(name), subject("1")), to("a", kind(name), subject("2")))
			held := c.take(1)[0]
			settle(held.ClaimId)
			revoked := c.revoked()
			want(t, "reason", revoked.Reason, pb.RevokeReason_REVOKE_REASON_SETTLED)
			wantList(t, "revoked", revoked.ClaimIds, held.ClaimId)
			next := c.take(1)
			wantList(t, "room for the next", subjectsOf(next), "2")
			c.ack(next...)
		})
	}
}

func TestClaimStream_OwnSettlementsAreNotRevoked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	c := a.taker(&pb.ClaimOpen{MaxInFlight: 1})
	for range 3 {
		a.send(to("a"))
		c.ack(c.take(1)...)
		a.send(to("a"))
		c.settle(&pb.ClaimRequest{Nacks: []*pb.Nack{{ClaimId: c.take(1)[0].ClaimId, Fatal: true}}})
	}
	c.idle()
}

// An agent whose connection breaks while messages come has failed at none that it was not given.
func TestClaimStream_ClaimsNeverWrittenGoBackUncounted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "")
	for range 25 {
		c := a.taker(&pb.ClaimOpen{Consumer: "x", MaxInFlight: 100, MaxBytes: 64 << 20})
		done := make(chan struct{})
		go func() { defer close(done); c.end() }()
		for range 4 {
			lead.sendAll(to("a"), to("a"), to("a"))
		}
		<-done
		w.awaitStreams(0)
		for _, m := range a.claimWith(&pb.ClaimMessagesRequest{Consumer: "x", Max: 1000}).Claims {
			want(t, "attempt", m.Attempt, 1)
			a.ack(m.ClaimId)
		}
	}
	for _, item := range lead.list(&pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_SENT, PageSize: 1000}).Items {
		want(t, "attempts", lead.delivery(item.Message.Id).Attempts, 0)
	}
}

func TestClaimStream_GoesAwayWhenTheBrokerStops(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	a.sendAll(to("a", subject("1")), to("a", subject("2")))
	busy := a.taker(&pb.ClaimOpen{Consumer: "busy"})
	held := busy.take(1)
	idle := a.taker(&pb.ClaimOpen{Consumer: "idle", Types: []string{"none"}})
	stopped := make(chan struct{})
	go func() { defer close(stopped); w.Restart() }()
	for _, c := range []*taker{busy, idle} {
		if grace := c.recv().GetGoAway().GetGrace().AsDuration(); grace <= 0 {
			t.Fatalf("no go_away, or no grace: %v", grace)
		}
	}
	want(t, "idle", status.Code(idle.ended()), codes.Unavailable)
	busy.ack(held...)
	want(t, "busy", status.Code(busy.ended()), codes.Unavailable)
	<-stopped
	w.operator().wantState(held[0].Message.Id, acked)
	wantList(t, "the other", subjectsOf(a.claim(5)), "2")
}

func TestClaimStream_ResumesOverARestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "")
	lead.sendAll(to("a", subject("1")), to("a", subject("2")), to("a", subject("3")))
	c := a.taker(&pb.ClaimOpen{Consumer: "x", MaxInFlight: 2})
	held := c.take(2)
	c.end()
	w.Restart()
	w.Clock.Advance(lease + 29*time.Second) // full time and grace
	c = a.taker(&pb.ClaimOpen{Consumer: "x", MaxInFlight: 3})
	wantList(t, "resumed", subjectsOf(c.opened.Resumed), "1", "2")
	want(t, "claim", c.opened.Resumed[0].ClaimId, held[0].ClaimId)
	third := c.take(1)
	wantList(t, "new", subjectsOf(third), "3")
	c.ack(append(third, c.opened.Resumed...)...)
	for _, m := range held {
		want(t, "attempts", lead.delivery(m.Message.Id).Attempts, 0)
	}
}

func TestClaim_RunsOutAfterARestartWithFullTimeAndGrace(t *testing.T) {
	t.Parallel()
	s := staged(t)
	s.worker.claimWith(&pb.ClaimMessagesRequest{ClaimFor: durationpb.New(time.Minute)})
	s.Clock.Advance(50 * time.Second)
	s.Restart()
	s.Clock.Advance(90 * time.Second)
	want(t, "attempts", s.awaitState(s.id, delayed).Attempts, 1)
}

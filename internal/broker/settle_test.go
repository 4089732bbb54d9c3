package broker_test

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestAck_TwiceIsFine(t *testing.T) {
	t.Parallel()
	s := staged(t)
	c := s.worker.claim1()
	for range 3 {
		wantList(t, "acked", s.worker.ack(c.ClaimId), c.ClaimId)
	}
	wantList(t, "twice in one call", s.worker.ack(c.ClaimId, s.id), c.ClaimId, c.ClaimId)
	want(t, "events", len(s.Root().Events("message.acked")), 1)
}

func TestAck_TakesClaimIDMessageIDAndRevision(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	sent := a.sendAll(to("a"), to("a"), to("a"))
	c := a.claim(3)
	wantList(t, "acked", a.ack(c[0].ClaimId, sent[1].Id, rev(sent[2])), c[0].ClaimId, c[1].ClaimId, c[2].ClaimId)
}

func TestAck_TakesUnclaimedOwnMail(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "builder")
	a.subscribe("news")
	for name, m := range map[string]*pb.Message{
		"pending": to("a"), "delayed": to("a", due(w.now(time.Hour))), "a channel's copy": toChannel("news"),
	} {
		t.Run(name, func(t *testing.T) {
			sent := lead.send(m)
			wantList(t, "acked", a.ack(sent.Id), rev(sent))
			wantList(t, "again", a.ack(rev(sent)), rev(sent))
			d := lead.delivery(sent.Id)
			want(t, "state", d.State, acked)
			want(t, "by", d.AckedBy, "a")
			if d.ReadAt == nil || d.DeliveredAt == nil || d.FinishedAt == nil {
				t.Errorf("marks: %v", d)
			}
		})
	}
	queued := lead.send(toRole("builder"))
	_, err := a.AckMessages(a.Ctx, &pb.AckMessagesRequest{Ids: []string{queued.Id}})
	apptest.Refused(t, err, codes.FailedPrecondition, "CLAIM_LOST")
	_, err = lead.AckMessages(lead.Ctx, &pb.AckMessagesRequest{Ids: []string{lead.send(to("a")).Id}})
	apptest.Refused(t, err, codes.FailedPrecondition, "CLAIM_LOST")
	want(t, "claims", len(a.claim(10)), 2)
}

func TestSettle_OthersClaimsAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, one, two := w.agent("lead", ""), w.agent("one", "builder"), w.agent("two", "builder")
	id := lead.send(toRole("builder")).Id
	c := one.claim1()
	_, err := two.AckMessages(two.Ctx, &pb.AckMessagesRequest{Ids: []string{c.ClaimId}})
	apptest.Refused(t, err, codes.FailedPrecondition, "CLAIM_LOST")
	for _, settle := range settlings(two) {
		apptest.Refused(t, settle(c.ClaimId), codes.FailedPrecondition, "CLAIM_LOST")
		apptest.Refused(t, settle(id), codes.FailedPrecondition, "CLAIM_LOST")
	}
	want(t, "holder", lead.delivery(id).Holder, "one")
}

func TestSettle_UnknownMessageIsNotFound(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	sent := a.send(to("a"))
	forged := sent.Id[:9] + "0000" + sent.Id[13:] // the right revision under another id
	for _, id := range []string{"4711000", "4711000.1", newUUID(), forged} {
		_, err := a.AckMessages(a.Ctx, &pb.AckMessagesRequest{Ids: []string{id}})
		apptest.Refused(t, err, codes.NotFound, "MESSAGE_NOT_FOUND")
		for _, settle := range settlings(a) {
			apptest.Refused(t, settle(id), codes.NotFound, "MESSAGE_NOT_FOUND")
		}
	}
}

func TestSettle_UnaryBatchIsAllOrNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	a.sendAll(to("a"), to("a"))
	c := a.claim(2)
	a.ack(c[1].ClaimId)
	good, bad := c[0].ClaimId, c[1].ClaimId
	_, err := a.NackMessages(a.Ctx, &pb.NackMessagesRequest{Nacks: []*pb.Nack{{ClaimId: good}, {ClaimId: bad}}})
	apptest.Refused(t, err, codes.FailedPrecondition, "CLAIM_LOST")
	_, err = a.ReleaseClaims(a.Ctx, &pb.ReleaseClaimsRequest{Ids: []string{good, bad}})
	apptest.Refused(t, err, codes.FailedPrecondition, "CLAIM_LOST")
	_, err = a.AckMessages(a.Ctx, &pb.AckMessagesRequest{Ids: []string{good, "4711000"}})
	apptest.Refused(t, err, codes.NotFound, "MESSAGE_NOT_FOUND")
	_, err = a.ExtendClaims(a.Ctx, &pb.ExtendClaimsRequest{Extensions: []*pb.Extension{{ClaimId: good, ClaimFor: durationpb.New(time.Hour)}, {ClaimId: bad}}})
	apptest.Refused(t, err, codes.FailedPrecondition, "CLAIM_LOST")
	want(t, "still held", a.claim1().ClaimId, good)
	want(t, "not extended", a.claim1().ExpiresIn.AsDuration(), lease)
}

func TestSettle_WithoutIDsMeansTheOnlyOpenClaim(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	calls := map[string]func() error{
		"ack": func() error { return drop(a.AckMessages(a.Ctx, &pb.AckMessagesRequest{})) },
		"nack": func() error {
			return drop(a.NackMessages(a.Ctx, &pb.NackMessagesRequest{Nacks: []*pb.Nack{{Delay: durationpb.New(0)}}}))
		},
		"extend": func() error {
			return drop(a.ExtendClaims(a.Ctx, &pb.ExtendClaimsRequest{Extensions: []*pb.Extension{{}}}))
		},
		"release": func() error { return drop(a.ReleaseClaims(a.Ctx, &pb.ReleaseClaimsRequest{})) },
	}
	a.sendAll(to("a", key("k")), to("a"))
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			apptest.Refused(t, call(), codes.FailedPrecondition, "NO_OPEN_CLAIM")
			a.send(to("a"))
			a.claimWith(&pb.ClaimMessagesRequest{Consumer: "x"})
			apptest.NoError(t, call())
			for _, c := range a.claimWith(&pb.ClaimMessagesRequest{Consumer: "x"}).Claims {
				a.claimWith(&pb.ClaimMessagesRequest{Consumer: "y"})
				apptest.Refused(t, call(), codes.FailedPrecondition, "SEVERAL_OPEN_CLAIMS")
				a.release(c.ClaimId)
			}
			a.release(a.claimWith(&pb.ClaimMessagesRequest{Consumer: "y"}).Claims[0].ClaimId)
		})
	}
}

func TestSettle_RequestIDDoesNothingTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	a.send(to("a"))
	nack := &pb.NackMessagesRequest{RequestId: newUUID(), Nacks: []*pb.Nack{{ClaimId: a.claim1().ClaimId, Delay: durationpb.New(0)}}}
	one := apptest.Must(t, a.NackMessages, nack)
	two := apptest.Must(t, a.NackMessages, nack)
	want(t, "revision", two.Revision, one.Revision)
	want(t, "state", two.Outcomes[0].State, pending)
	nack.Nacks[0].Fatal = true
	apptest.Refuses(t, a.NackMessages, nack, codes.AlreadyExists, "REQUEST_ID_REUSED")

	release := &pb.ReleaseClaimsRequest{RequestId: newUUID(), Ids: []string{a.claim1().ClaimId}}
	apptest.Must(t, a.ReleaseClaims, release)
	apptest.Must(t, a.ReleaseClaims, release)
	want(t, "attempt", a.claim1().Attempt, 2)
	ack := &pb.AckMessagesRequest{RequestId: newUUID()}
	apptest.Must(t, a.AckMessages, ack)
	out := apptest.Must(t, a.AckMessages, ack)
	want(t, "acked", len(out.Acked), 1)
}

func TestCancel_WithdrawsWhatNobodyHasClaimed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead", "")
	b := w.agents("builder", "b1", "b2", "b3", "b4")
	sent := lead.send(toRole("builder", all))
	done, held := b[0].claim1(), b[1].claim1()
	b[0].ack(done.ClaimId)
	out := lead.cancel(sent.Id)
	want(t, "cancelled", out.Cancelled, 2)
	want(t, "kept", out.Kept, 2)
	var states []pb.DeliveryState
	for _, d := range lead.get(sent.Id).Deliveries {
		states = append(states, d.State)
	}
	wantList(t, "states", states, acked, claimed, cancelled, cancelled)
	want(t, "claims", len(b[2].claim(1)), 0)
	items, _ := b[3].receive(&pb.ReceiveRequest{})
	want(t, "received", len(items), 0)
	b[1].ack(held.ClaimId)
	again := lead.cancel(rev(sent))
	want(t, "nothing left", again.Cancelled, 0)
	want(t, "kept", again.Kept, 4)
	_, err := b[2].AckMessages(b[2].Ctx, &pb.AckMessagesRequest{Ids: []string{sent.Id}})
	apptest.Refused(t, err, codes.FailedPrecondition, "CLAIM_LOST")
}

func TestCancel_WithdrawsDelayedAndBlocked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	late := a.send(to("a", due(w.now(time.Hour))))
	a.send(to("a", key("k")))
	behind := a.send(to("a", key("k")))
	for _, r := range []*pb.SendResult{late, behind} {
		want(t, "cancelled", a.cancel(r.Id).Cancelled, 1)
		d := a.delivery(r.Id)
		want(t, "state", d.State, cancelled)
		want(t, "finished_at", d.FinishedAt.AsTime(), w.Clock.Now())
	}
}

func TestCancel_OnlySenderAndOperatorMay(t *testing.T) {
	t.Parallel()
	s := staged(t)
	_, err := s.worker.CancelMessage(s.worker.Ctx, &pb.CancelMessageRequest{Id: s.id})
	apptest.Refused(t, err, codes.PermissionDenied, "NOT_THE_SENDER")
	s.lead.wantState(s.id, pending)
	want(t, "operator", s.operator().cancel(s.id).Cancelled, 1)
}

func TestExpire_LeavesTheMailboxAndAnEvent(t *testing.T) {
	t.Parallel()
	s := staged(t, ttl(time.Minute))
	late := s.lead.send(to("worker", ttl(time.Minute), due(s.now(time.Hour)))).Id
	s.lead.send(to("worker", key("k")))
	behind := s.lead.send(to("worker", key("k"), ttl(time.Minute))).Id
	s.Clock.Advance(time.Minute)
	for _, id := range []string{s.id, late, behind} {
		d := s.awaitState(id, expired)
		want(t, "finished_at", d.FinishedAt.AsTime(), s.Clock.Now())
	}
	want(t, "events", len(s.Root().Events("message.expired")), 3)
	items, _ := s.worker.receive(&pb.ReceiveRequest{})
	want(t, "received", len(items), 1)
	want(t, "claims", len(s.worker.claim(10)), 1)
}

func TestExpire_ClaimedIsLeftToItsHolder(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		settle func(*stage, string)
		state  pb.DeliveryState
	}{
		"ack":     {func(s *stage, id string) { s.worker.ack(id) }, acked},
		"nack":    {func(s *stage, id string) { s.worker.nack(&pb.Nack{ClaimId: id}) }, expired},
		"release": {func(s *stage, id string) { s.worker.release(id) }, expired},
		"fatal":   {func(s *stage, id string) { s.worker.nack(&pb.Nack{ClaimId: id, Fatal: true}) }, dead},
	} {
		t.Run(name, func(t *testing.T) {
			s := staged(t, ttl(10*time.Second))
			c1 := s.worker.claim1()
			marker := s.lead.send(to("worker", ttl(10*time.Second))).Id
			s.Clock.Advance(10 * time.Second)
			s.awaitState(marker, expired)
			s.lead.wantState(s.id, claimed)
			c.settle(s, c1.ClaimId)
			s.lead.wantState(s.id, c.state)
		})
	}
}

func TestExpire_AckAfterTheEndOfOwnMailIsAccepted(t *testing.T) {
	t.Parallel()
	s := staged(t, ttl(time.Minute))
	c := s.worker.claim1()
	s.worker.release(c.ClaimId)
	s.Clock.Advance(time.Minute)
	s.awaitState(s.id, expired)
	s.worker.ack(c.ClaimId)
	s.lead.wantState(s.id, acked)
}

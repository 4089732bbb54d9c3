package broker_test

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// A stage is a daemon with one worker that a message, sent by the lead, is for.
type stage struct {
	*world
	lead, worker *agent
	id           string // of the message
}

// staged returns a stage with a message in PENDING.
func staged(t testing.TB, c ...change) *stage {
	t.Helper()
	w := newWorld(t)
	s := &stage{world: w, lead: w.agent("lead", "lead"), worker: w.agent("worker", "builder")}
	s.id = s.lead.send(to("worker", c...)).Id
	return s
}

// wait is how long a test's claims last.
const lease = 30 * time.Second

func TestState_SentIsPending(t *testing.T) {
	t.Parallel()
	s := staged(t)
	d := s.lead.delivery(s.id)
	want(t, "state", d.State, pending)
	want(t, "arrival", d.Arrival, s.lead.get(s.id).Message.Revision)
	want(t, "claim", d.ClaimId+d.Holder+d.Consumer, "")
	want(t, "attempts", d.Attempts, 0)
	want(t, "max_attempts", d.MaxAttempts, 3)
	if d.DeliveredAt != nil || d.ReadAt != nil || d.FinishedAt != nil || d.DueAt != nil || d.ClaimedAt != nil {
		t.Errorf("marks: %v", d)
	}
}

func TestState_PendingToClaimedToAcked(t *testing.T) {
	t.Parallel()
	s := staged(t)
	c := s.worker.claimWith(&pb.ClaimMessagesRequest{Consumer: "c1"}).Claims[0]
	d := s.lead.delivery(s.id)
	want(t, "state", d.State, claimed)
	want(t, "claim", d.ClaimId, c.ClaimId)
	want(t, "holder", d.Holder, "worker")
	want(t, "consumer", d.Consumer, "c1")
	want(t, "claimed_at", d.ClaimedAt.AsTime(), s.Clock.Now())
	want(t, "delivered_at", d.DeliveredAt.AsTime(), s.Clock.Now())
	want(t, "attempt", c.Attempt, 1)

	s.Clock.Advance(time.Second)
	wantList(t, "acked", s.worker.ack(c.ClaimId), c.ClaimId)
	d = s.lead.delivery(s.id)
	want(t, "state", d.State, acked)
	want(t, "acked_by", d.AckedBy, "worker")
	want(t, "read_at", d.ReadAt.AsTime(), s.Clock.Now())
	want(t, "finished_at", d.FinishedAt.AsTime(), s.Clock.Now())
	want(t, "attempts", d.Attempts, 0)
	want(t, "claims", len(s.worker.claim(1)), 0)
}

func TestState_NackWithDelayIsDelayedThenPending(t *testing.T) {
	t.Parallel()
	s := staged(t)
	c := s.worker.claim1()
	out := s.worker.nack(&pb.Nack{ClaimId: c.ClaimId, Error: "no luck", Delay: durationpb.New(time.Minute)})
	want(t, "state", out.State, delayed)
	want(t, "claim", out.ClaimId, c.ClaimId)
	want(t, "due", out.DueAt.AsTime(), s.Clock.Now().Add(time.Minute))
	d := s.lead.delivery(s.id)
	want(t, "state", d.State, delayed)
	want(t, "due", d.DueAt.AsTime(), s.Clock.Now().Add(time.Minute))
	want(t, "attempts", d.Attempts, 1)
	want(t, "claims", len(s.worker.claim(1)), 0)

	s.Clock.Advance(time.Minute)
	d = s.awaitState(s.id, pending)
	if d.DueAt != nil {
		t.Errorf("due at %v", d.DueAt)
	}
	again := s.worker.claim1()
	want(t, "attempt", again.Attempt, 2)
	if again.ClaimId == c.ClaimId {
		t.Error("two claims have one id")
	}
}

func TestState_NackWithoutDelayIsPendingAtOnce(t *testing.T) {
	t.Parallel()
	s := staged(t)
	out := s.worker.nack(&pb.Nack{ClaimId: s.worker.claim1().ClaimId, Delay: durationpb.New(0)})
	want(t, "state", out.State, pending)
	want(t, "attempt", s.worker.claim1().Attempt, 2)
}

func TestState_BackoffDoublesWithinItsBounds(t *testing.T) {
	t.Parallel()
	s := staged(t, attempts(15))
	s.unbroken()
	for n := range 14 {
		c := s.worker.claim1()
		due := s.worker.nack(&pb.Nack{ClaimId: c.ClaimId}).DueAt.AsTime()
		wait, nominal := due.Sub(s.Clock.Now()), min(5*time.Minute, time.Second<<n)
		if wait < nominal*3/4 || wait > min(5*time.Minute, nominal*5/4) {
			t.Fatalf("after attempt %d: %v, about %v expected", n+1, wait, nominal)
		}
		s.Clock.Advance(wait)
		s.awaitState(s.id, pending)
	}
}

func TestState_FatalNackIsDeadAtOnce(t *testing.T) {
	t.Parallel()
	s := staged(t)
	c := s.worker.claim1()
	out := s.worker.nack(&pb.Nack{ClaimId: c.ClaimId, Fatal: true, Error: "cannot\never"})
	want(t, "state", out.State, dead)
	d := s.lead.delivery(s.id)
	want(t, "state", d.State, dead)
	want(t, "finished_at", d.FinishedAt.AsTime(), s.Clock.Now())
	want(t, "history", len(d.History), 1)
	want(t, "error", d.History[0].Error, "cannot\never")
}

func TestState_ThirdFailureIsDeadWithItsHistory(t *testing.T) {
	t.Parallel()
	s := staged(t)
	now := s.Clock.Now()
	for i, message := range []string{"first", "second", "third"} {
		c := s.worker.claimWith(&pb.ClaimMessagesRequest{Consumer: "c" + message}).Claims[0]
		want(t, "attempt", c.Attempt, int32(i+1))
		want(t, "max_attempts", c.MaxAttempts, 3)
		s.Clock.Advance(time.Second)
		out := s.worker.nack(&pb.Nack{ClaimId: c.ClaimId, Error: message, Delay: durationpb.New(0)})
		want(t, "state", out.State, map[bool]pb.DeliveryState{true: dead, false: pending}[i == 2])
	}
	d := s.lead.delivery(s.id)
	want(t, "state", d.State, dead)
	want(t, "attempts", d.Attempts, 3)
	for i, message := range []string{"first", "second", "third"} {
		h := d.History[i]
		want(t, "number", h.Number, int32(i+1))
		want(t, "agent", h.Agent, "worker")
		want(t, "consumer", h.Consumer, "c"+message)
		want(t, "error", h.Error, message)
		want(t, "claimed_at", h.ClaimedAt.AsTime(), now.Add(time.Duration(i)*time.Second))
		want(t, "ended_at", h.EndedAt.AsTime(), now.Add(time.Duration(i+1)*time.Second))
	}
	want(t, "events", len(s.Root().Events("message.dead")), 1)
}

func TestState_MaxAttemptsComeFromTheMessageOrTheSession(t *testing.T) {
	t.Parallel()
	s := staged(t, attempts(1))
	want(t, "by message", s.worker.nack(&pb.Nack{ClaimId: s.worker.claim1().ClaimId}).State, dead)
	s.Root().Configure(&pb.SessionSettings{MaxAttempts: new(int32(1))})
	want(t, "session", s.lead.get(s.lead.send(to("worker")).Id).Deliveries[0].MaxAttempts, 1)
	want(t, "by session", s.worker.nack(&pb.Nack{ClaimId: s.worker.claim1().ClaimId}).State, dead)
	s.lead.send(to("worker", attempts(2)))
	want(t, "the message wins", s.worker.nack(&pb.Nack{ClaimId: s.worker.claim1().ClaimId}).State, delayed)
}

func TestState_ClaimThatRunsOutIsAFailedAttempt(t *testing.T) {
	t.Parallel()
	s := staged(t)
	c := s.worker.claim1()
	want(t, "lasts", c.ExpiresIn.AsDuration(), lease)
	s.Clock.Advance(lease)
	d := s.awaitState(s.id, delayed)
	want(t, "attempts", d.Attempts, 1)
	if wait := d.DueAt.AsTime().Sub(s.Clock.Now()); wait < 750*time.Millisecond || wait > 1250*time.Millisecond {
		t.Errorf("waits %v", wait)
	}
	want(t, "history", d.History[0].Error, "the claim ran out after 30s")
	s.Clock.Advance(2 * time.Second)
	s.awaitState(s.id, pending)
}

func TestState_LastClaimThatRunsOutIsDead(t *testing.T) {
	t.Parallel()
	s := staged(t, attempts(1))
	s.worker.claim1()
	s.Clock.Advance(lease)
	s.awaitState(s.id, dead)
}

func TestState_ClaimLastsAsLongAsAsked(t *testing.T) {
	t.Parallel()
	s := staged(t)
	c := s.worker.claimWith(&pb.ClaimMessagesRequest{ClaimFor: durationpb.New(time.Hour)}).Claims[0]
	want(t, "lasts", c.ExpiresIn.AsDuration(), time.Hour)
	other := s.lead.send(to("worker"))
	s.worker.claimWith(&pb.ClaimMessagesRequest{Consumer: "other"})
	s.Clock.Advance(lease)
	s.awaitState(other.Id, delayed)
	s.lead.wantState(s.id, claimed)
}

func TestState_ReleaseCountsNothingAndKeepsThePlace(t *testing.T) {
	t.Parallel()
	s := staged(t)
	second := s.lead.send(to("worker"))
	c := s.worker.claim1()
	wantList(t, "released", s.worker.release(c.ClaimId), c.ClaimId)
	d := s.lead.delivery(s.id)
	want(t, "state", d.State, pending)
	want(t, "attempts", d.Attempts, 0)
	want(t, "history", len(d.History), 0)
	again := s.worker.claim(2)
	want(t, "first", again[0].Message.Id, s.id)
	want(t, "attempt", again[0].Attempt, 1)
	want(t, "second", again[1].Message.Id, second.Id)
}

func TestState_ExtensionMovesTheEnd(t *testing.T) {
	t.Parallel()
	s := staged(t)
	c := s.worker.claim1()
	s.Clock.Advance(20 * time.Second)
	s.worker.extend(c.ClaimId, time.Minute)
	other := s.lead.send(to("worker"))
	s.worker.claimWith(&pb.ClaimMessagesRequest{Consumer: "other"})
	s.Clock.Advance(lease) // 30 s into the extension
	s.awaitState(other.Id, delayed)
	s.lead.wantState(s.id, claimed)
	s.Clock.Advance(lease)
	s.awaitState(s.id, delayed)
}

func TestState_ExtensionWithoutTimeIsAsLongAsAtFirst(t *testing.T) {
	t.Parallel()
	s := staged(t)
	c := s.worker.claimWith(&pb.ClaimMessagesRequest{ClaimFor: durationpb.New(10 * time.Second)}).Claims[0]
	s.Clock.Advance(9 * time.Second)
	apptest.NoError(t, drop(s.worker.ExtendClaims(s.worker.Ctx, &pb.ExtendClaimsRequest{Extensions: []*pb.Extension{{ClaimId: c.ClaimId}}})))
	want(t, "left", s.worker.claim1().ExpiresIn.AsDuration(), 10*time.Second)
	s.Clock.Advance(10 * time.Second)
	s.awaitState(s.id, delayed)
}

func TestState_LateAckIsAcceptedWhileNobodyHasClaimedSince(t *testing.T) {
	t.Parallel()
	for name, back := range map[string]struct {
		attempts int32
		then     time.Duration
		state    pb.DeliveryState
	}{
		"from DELAYED": {3, 0, delayed},
		"from PENDING": {3, 2 * time.Second, pending},
		"from DEAD":    {1, 0, dead},
	} {
		t.Run(name, func(t *testing.T) {
			s := staged(t, attempts(back.attempts))
			c := s.worker.claim1()
			s.Clock.Advance(lease)
			s.await("the claim has run out", func() bool { return s.lead.state(s.id) != claimed })
			if back.then > 0 {
				s.Clock.Advance(back.then)
			}
			s.awaitState(s.id, back.state)
			wantList(t, "acked", s.worker.ack(c.ClaimId), c.ClaimId)
			d := s.lead.delivery(s.id)
			want(t, "state", d.State, acked)
			want(t, "the failure stays in the history", len(d.History), 1)
			want(t, "claims", len(s.worker.claim(1)), 0)
			want(t, "dead letters", len(s.worker.deadLetters()), 0)
		})
	}
}

func TestState_LateAckIsRefusedOnceSomebodyHasClaimed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, one, two := w.agent("lead", ""), w.agent("one", "builder"), w.agent("two", "builder")
	id := lead.send(toRole("builder")).Id
	c := one.claim1()
	w.Clock.Advance(lease)
	w.awaitState(id, delayed)
	w.Clock.Advance(2 * time.Second)
	w.awaitState(id, pending)
	theirs := two.claim1()
	for _, ref := range []string{c.ClaimId, id} {
		_, err := one.AckMessages(one.Ctx, &pb.AckMessagesRequest{Ids: []string{ref}})
		apptest.Refused(t, err, codes.FailedPrecondition, "CLAIM_LOST")
	}
	want(t, "holder", lead.delivery(id).Holder, "two")
	two.ack(theirs.ClaimId)
	_, err := one.AckMessages(one.Ctx, &pb.AckMessagesRequest{Ids: []string{c.ClaimId}})
	apptest.Refused(t, err, codes.FailedPrecondition, "CLAIM_LOST")
}

func TestState_OwnEarlierClaimIsLostOnceClaimedAgain(t *testing.T) {
	t.Parallel()
	s := staged(t)
	old := s.worker.claim1()
	s.worker.nack(&pb.Nack{ClaimId: old.ClaimId, Delay: durationpb.New(0)})
	again := s.worker.claim1()
	_, err := s.worker.AckMessages(s.worker.Ctx, &pb.AckMessagesRequest{Ids: []string{old.ClaimId}})
	apptest.Refused(t, err, codes.FailedPrecondition, "CLAIM_LOST")
	s.lead.wantState(s.id, claimed)
	s.worker.ack(again.ClaimId)
}

func TestState_LateNackExtendAndReleaseAreRefused(t *testing.T) {
	t.Parallel()
	s := staged(t)
	c := s.worker.claim1()
	s.Clock.Advance(lease)
	s.awaitState(s.id, delayed)
	for name, settle := range settlings(s.worker) {
		apptest.Refused(t, settle(c.ClaimId), codes.FailedPrecondition, "CLAIM_LOST")
		apptest.Refused(t, settle(s.id), codes.FailedPrecondition, "CLAIM_LOST")
		want(t, name, s.lead.delivery(s.id).Attempts, 1)
	}
	s.worker.ack(c.ClaimId)
	for _, settle := range settlings(s.worker) {
		apptest.Refused(t, settle(c.ClaimId), codes.FailedPrecondition, "CLAIM_LOST")
	}
}

// settlings are the ways to settle a claim other than by an ack.
func settlings(a *agent) map[string]func(id string) error {
	return map[string]func(string) error{
		"nack": func(id string) error {
			return drop(a.NackMessages(a.Ctx, &pb.NackMessagesRequest{Nacks: []*pb.Nack{{ClaimId: id}}}))
		},
		"extend": func(id string) error {
			return drop(a.ExtendClaims(a.Ctx, &pb.ExtendClaimsRequest{Extensions: []*pb.Extension{{ClaimId: id}}}))
		},
		"release": func(id string) error {
			return drop(a.ReleaseClaims(a.Ctx, &pb.ReleaseClaimsRequest{Ids: []string{id}}))
		},
	}
}

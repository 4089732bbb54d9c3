package crashtest_test

import (
	"slices"
	"strconv"
	"strings"

	pb "brokerd/gen/brokerd/v1"
)

// verify compares the record with what the broker has. Nobody may use the record meanwhile.
func (r *record) verify(t *truth) {
	r.verifyMessages(t)
	for which, got := range t.deliveries {
		r.counts[got.GetState().String()]++
		if m := r.byRevision[which.message]; m != nil {
			r.verifyState(m, which, got)
			r.verifyHistory(m, which, got)
		}
	}
	for _, n := range r.nacks {
		if n.verdict == confirmed {
			r.fault("the history of %v lacks the confirmed %q", n.claim.delivery, n.text)
		}
	}
}

// verifyMessages: every confirmed send is there with all its deliveries, and nothing that was not sent. A send that was
// never answered is there or not, once.
func (r *record) verifyMessages(t *truth) {
	for revision, wire := range t.messages {
		m := r.messages[wire.GetSubject()]
		switch {
		case m == nil:
			r.fault("message %d was never sent: %v", revision, wire)
		case m.revision == 0:
			m.revision, m.id = revision, wire.GetId()
			r.byRevision[revision] = m
		case m.revision != revision || m.id != wire.GetId():
			r.fault("%s is there as %d (%s) and as %d (%s)", m.tag, m.revision, m.id, revision, wire.GetId())
		}
	}
	for revision, m := range r.byRevision {
		wire := t.messages[revision]
		if wire == nil {
			r.fault("%s was confirmed as %d and is lost", m.tag, revision)
			continue
		}
		if wire.GetSubject() != m.tag || wire.GetPayload() != m.wire.GetPayload() || wire.GetSender() != m.sender {
			r.fault("%s was confirmed as %d, which is now %v", m.tag, revision, wire)
		}
		for _, box := range m.expect {
			if t.deliveries[delivery{revision, box}] == nil {
				r.fault("%s (%d) is lost for %s", m.tag, revision, box)
			}
		}
	}
	for which := range t.deliveries {
		if m := r.byRevision[which.message]; m != nil && !slices.Contains(m.expect, which.mailbox) {
			r.fault("%s was put into %s, and went to %v", m.tag, which.mailbox, m.expect)
		}
	}
}

// verifyState: it is finished, and by what was asked for; a confirmed ack stays; an ack is refused only if
// somebody has claimed since.
func (r *record) verifyState(m *message, which delivery, got *pb.Delivery) {
	last := r.claims[which][lastClaim(got)]
	mail, byMail := r.mail[which]
	switch got.GetState() {
	case pb.DeliveryState_DELIVERY_STATE_ACKED:
		if !byMail && (last == nil || last.settled != acked || last.agent != got.GetAckedBy()) {
			r.fault("%s in %s is acked by %q, and was not: %v", m.tag, which.mailbox, got.GetAckedBy(), got)
		}
	case pb.DeliveryState_DELIVERY_STATE_EXPIRED:
		if m.wire.GetTtl() == nil {
			r.fault("%s in %s expired and has no time to live", m.tag, which.mailbox)
		}
	case pb.DeliveryState_DELIVERY_STATE_DEAD:
		h := got.GetHistory()
		if len(h) == 0 || h[len(h)-1].GetNumber() < got.GetMaxAttempts() && !r.fatal(h[len(h)-1]) {
			r.fault("%s in %s is dead without a reason: %v", m.tag, which.mailbox, got)
		}
	default:
		r.fault("%s in %s was drained, and is %v", m.tag, which.mailbox, got)
	}
	if mail == confirmed && got.GetState() != pb.DeliveryState_DELIVERY_STATE_ACKED {
		r.fault("the ack of %s by %s was confirmed, and it is %v", m.tag, which.mailbox, got)
	}
	for n, c := range r.claims[which] {
		switch {
		case n > lastClaim(got):
			r.fault("claim %s of %s in %s was handed out and is forgotten: %v", c.id, m.tag, which.mailbox, got)
		case c.settled == acked && (got.GetState() != pb.DeliveryState_DELIVERY_STATE_ACKED || n != lastClaim(got)):
			r.fault("the ack of %s (%s in %s) was confirmed, and it is %v", c.id, m.tag, which.mailbox, got)
		case c.settled == lost && n == lastClaim(got):
			r.fault("the ack of %s (%s in %s) was refused, and nobody has claimed since: %v", c.id, m.tag, which.mailbox, got)
		}
	}
}

// lastClaim is the number of the newest claim of a delivery, 0 if it was never claimed.
func lastClaim(d *pb.Delivery) int {
	n, _ := strconv.Atoi(d.GetClaimId()[strings.LastIndex(d.GetClaimId(), ".")+1:])
	return n
}

func (r *record) fatal(a *pb.Attempt) bool {
	n := r.nacks[a.GetError()]
	return n != nil && n.fatal
}

// verifyHistory: the attempts are the confirmed nacks and the claims that ran out, each once, and nothing else.
func (r *record) verifyHistory(m *message, which delivery, got *pb.Delivery) {
	last, final := int32(0), false
	redriven := 0
	for _, a := range got.GetHistory() {
		r.verifyAttempt(m, which, a)
		if a.GetNumber() == 1 && (last > 0 || final) {
			redriven++
			last, final = 0, false
		}
		if a.GetNumber() != last+1 || final {
			r.fault("the attempts of %s in %s are not counted once each: %v", m.tag, which.mailbox, got)
		}
		last = a.GetNumber()
		final = r.fatal(a) || last >= got.GetMaxAttempts()
	}
	switch {
	case got.GetAttempts() == 0 && last > 0:
		redriven++
	case got.GetAttempts() != last:
		r.fault("%s in %s counts other attempts than its history has: %v", m.tag, which.mailbox, got)
	}
	if redriven > r.redriven[which.message] {
		r.fault("%s was redriven %d times, and in %s begins anew more often: %v", m.tag, r.redriven[which.message], which.mailbox, got)
	}
}

func (r *record) verifyAttempt(m *message, which delivery, a *pb.Attempt) {
	if strings.HasPrefix(a.GetError(), "the claim ran out") {
		r.verifyRanOut(m, which, a)
		return
	}
	n := r.nacks[a.GetError()]
	switch {
	case n == nil:
		r.fault("%s in %s failed for a reason that nobody gave: %v", m.tag, which.mailbox, a)
	case n.verdict == refused:
		r.fault("%s in %s: %q is in the history, or there twice, and its claim was held afterwards", m.tag, which.mailbox, n.text)
	case n.claim.delivery != which || n.claim.agent != a.GetAgent() || n.claim.consumer != a.GetConsumer():
		r.fault("%s in %s: %q of %v is in the history as %v", m.tag, which.mailbox, n.text, n.claim.holder, a)
	default:
		n.verdict = refused // from now on: it may be there once
	}
}

// verifyRanOut: only the slow consumer's claims run out, not early, and not within the grace after a restart.
func (r *record) verifyRanOut(m *message, which delivery, a *pb.Attempt) {
	from, to := a.GetClaimedAt().AsTime(), a.GetEndedAt().AsTime()
	if a.GetAgent() != slowAgent || to.Sub(from) < slowClaim {
		r.fault("a claim of %s in %s ran out that had time left: %v", m.tag, which.mailbox, a)
	}
	for _, start := range r.starts {
		if start.After(from) && start.Before(to) {
			r.fault("a claim of %s in %s ran out within the grace after a restart: %v", m.tag, which.mailbox, a)
		}
	}
}

package crashtest_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	pb "brokerd/gen/brokerd/v1"
)

// A record is what the test knows by itself: what it asked for and what it was answered. Its methods may be called
// concurrently; what the broker got wrong is reported at once.
type record struct {
	t *testing.T

	mu         sync.Mutex // guards the fields below
	problems   int
	messages   map[string]*message // by tag
	byRevision map[int64]*message
	claims     map[delivery]map[int]*claim
	held       map[holder]map[*claim]bool // not settled as far as anybody knows
	nacks      map[string]*nack           // by the error that was given
	mail       map[delivery]verdict       // acks of own mail that nobody claimed
	redriven   map[int64]int              // confirmed redrives, by message
	seen       int64                      // the highest revision that the broker has named
	floor      int64                      // the same, before the daemon that runs now
	starts     []time.Time                // of every daemon
	counts     map[string]int             // how often what this test is about has happened
}

// A delivery is one mailbox's copy of a message.
type delivery struct {
	message int64
	mailbox string
}

// A holder is who may hold a claim.
type holder struct{ agent, consumer string }

// A claim is one that was handed out to a participant.
type claim struct {
	delivery
	holder
	id      string
	number  int
	from    *message
	asked   verb // what was asked for and not answered
	settled verb // what it ended by
	nack    *nack
	ranOut  bool // it is not held any more, and nobody settled it
}

// A verb is what ends a claim.
type verb int

const (
	nothing verb = iota
	acked
	nacked
	released
	lost // the broker refused an ack, since somebody has claimed since
)

// A verdict is what is known of a request.
type verdict int

const (
	unknown verdict = iota
	confirmed
	refused
)

// A nack is one try to give up a claim; its text is its own, so that the history of the delivery names it.
type nack struct {
	claim   *claim
	text    string
	fatal   bool
	verdict verdict
}

func newRecord(t *testing.T) *record {
	return &record{t: t, messages: map[string]*message{}, byRevision: map[int64]*message{}, claims: map[delivery]map[int]*claim{},
		held: map[holder]map[*claim]bool{}, nacks: map[string]*nack{}, mail: map[delivery]verdict{}, redriven: map[int64]int{}, counts: map[string]int{}}
}

// wrong reports a broken promise.
func (r *record) wrong(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fault(format, args...)
}

// fault is wrong for callers that hold the mutex.
func (r *record) fault(format string, args ...any) {
	r.t.Helper()
	const most = 30
	switch r.problems++; {
	case r.problems <= most:
		r.t.Errorf(format, args...)
	case r.problems == most+1:
		r.t.Error("and more")
	}
}

// raise has no revision given from now on that was known before.
func (r *record) raise() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.floor = r.seen
}

// started notes that a daemon starts.
func (r *record) started() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.starts = append(r.starts, time.Now())
}

// known notes a revision that the broker has named.
func (r *record) known(revision int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = max(r.seen, revision)
}

// sending notes what is about to be sent.
func (r *record) sending(all []*message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range all {
		r.messages[m.tag] = m
	}
}

// sent notes the answer to messages; again says that they were sent before.
func (r *record) sent(all []*message, results []*pb.SendResult, again bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(all) != len(results) {
		r.fault("%d results for %d messages", len(results), len(all))
		return
	}
	for i, m := range all {
		got := results[i]
		switch {
		case got.GetError() != nil || got.GetRevision() == 0:
			r.fault("%s was refused: %v", m.tag, got)
			continue
		case m.revision != 0:
			if got.GetRevision() != m.revision || got.GetId() != m.id || !got.GetDuplicate() {
				r.fault("%s, sent again, is not recognised: it was %d (%s), and is now %v", m.tag, m.revision, m.id, got)
			}
			continue
		case got.GetDuplicate() && !again:
			r.fault("%s passes for a duplicate, and was never sent before", m.tag)
		case !got.GetDuplicate() && got.GetRevision() <= r.floor:
			r.fault("%s got revision %d, and %d was given before the restart", m.tag, got.GetRevision(), r.floor)
		}
		if other := r.byRevision[got.GetRevision()]; other != nil {
			r.fault("%s and %s got the same revision %d", m.tag, other.tag, got.GetRevision())
		}
		if got.GetDuplicate() {
			r.counts["sent by an unanswered call"]++
		}
		m.revision, m.id = got.GetRevision(), got.GetId()
		r.byRevision[m.revision] = m
		r.seen = max(r.seen, m.revision)
		r.recipients(m, got)
	}
}

// recipients compares who got a message with who must get it.
func (r *record) recipients(m *message, got *pb.SendResult) {
	if int(got.GetRecipientCount()) != len(m.expect) {
		r.fault("%s has %d recipients, want %v", m.tag, got.GetRecipientCount(), m.expect)
	}
	for _, to := range got.GetRecipients() {
		if !slices.Contains(m.expect, to.GetMailbox()) || to.GetOutcome() != pb.RecipientOutcome_RECIPIENT_OUTCOME_QUEUED {
			r.fault("%s went to %v, want %v", m.tag, to, m.expect)
		}
	}
}

// holding notes what a holder was given, all of it: what it had, marked resumed, and what is new. It returns
// the claims. What it had asked for without an answer is known now: the claim is still there, or not.
func (r *record) holding(h holder, resumed, fresh []*pb.ClaimedMessage) []*claim {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []*claim
	still := map[*claim]bool{}
	for _, m := range resumed {
		if c := r.look(h, m); c != nil {
			still[c] = true
			r.counts["resumed"]++
			all = append(all, c)
		}
	}
	for c := range r.held[h] {
		switch {
		case still[c] && c.nack != nil:
			c.nack.verdict, c.nack = refused, nil
			fallthrough
		case still[c]:
			c.asked = nothing
		case h.agent == slowAgent: // or an unanswered ack was carried out: it is made again
			c.ranOut = true
			r.counts["ran out"]++
			delete(r.held[h], c)
		case c.asked != nothing:
			r.counts["settled by an unanswered call"]++
			r.end(c, c.asked)
		default:
			r.fault("%v held claim %s of %s (%s), did nothing to it, and has lost it", h, c.id, c.from.tag, c.mailbox)
			delete(r.held[h], c)
		}
	}
	return append(all, r.given(h, fresh)...)
}

// got notes new claims.
func (r *record) got(h holder, fresh []*pb.ClaimedMessage) []*claim {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.given(h, fresh)
}

func (r *record) given(h holder, fresh []*pb.ClaimedMessage) []*claim {
	var all []*claim
	for _, m := range fresh {
		if m.GetResumed() {
			r.fault("%v was given claim %s as resumed among the new ones", h, m.GetClaimId())
		}
		if c := r.look(h, m); c != nil {
			all = append(all, c)
		}
	}
	return all
}

// look compares a claim with what is known of it, and notes it if nothing is. It returns nil for one
// that must not be.
func (r *record) look(h holder, m *pb.ClaimedMessage) *claim {
	wire := m.GetMessage()
	from := r.messages[wire.GetSubject()]
	if from == nil {
		r.fault("%v was given a message that nobody sent: %v", h, m)
		return nil
	}
	if from.revision != 0 && from.revision != wire.GetRevision() || wire.GetSender() != from.sender || wire.GetPayload() != from.wire.GetPayload() {
		r.fault("%v was given %s in another form than it was sent: %v", h, from.tag, wire)
	}
	if !slices.Contains(from.expect, m.GetMailbox()) {
		r.fault("%v was given %s from %s, but it went to %v", h, from.tag, m.GetMailbox(), from.expect)
	}
	if from.queue && from.sender == h.agent {
		r.fault("%v was given its own message %s", h, from.tag)
	}
	number, _ := strconv.Atoi(m.GetClaimId()[strings.LastIndex(m.GetClaimId(), ".")+1:])
	d := delivery{wire.GetRevision(), m.GetMailbox()}
	if m.GetClaimId() != fmt.Sprintf("%d.%d", d.message, number) || number < 1 {
		r.fault("%v was given a claim id that is none: %v", h, m)
		return nil
	}
	if m.GetAttempt() < 1 || m.GetAttempt() > m.GetMaxAttempts() || m.GetMaxAttempts() != from.wire.GetMaxAttempts() {
		r.fault("claim %s of %s is attempt %d of %d", m.GetClaimId(), from.tag, m.GetAttempt(), m.GetMaxAttempts())
	}
	for n, c := range r.claims[d] {
		switch {
		case c.settled == acked:
			r.fault("%v was given %s (%s) as %s after the ack of %s was confirmed", h, from.tag, m.GetMailbox(), m.GetClaimId(), c.id)
		case n > number:
			r.fault("%v was given claim %s of %s after %s", h, m.GetClaimId(), from.tag, c.id)
		}
	}
	if r.mail[d] == confirmed {
		r.fault("%v was given %s as %s after its ack was confirmed", h, from.tag, m.GetClaimId())
	}
	c := r.claims[d][number]
	if c == nil {
		c = &claim{delivery: d, holder: h, id: m.GetClaimId(), number: number, from: from}
		if r.claims[d] == nil {
			r.claims[d] = map[int]*claim{}
		}
		r.claims[d][number] = c
		if r.held[h] == nil {
			r.held[h] = map[*claim]bool{}
		}
		r.held[h][c] = true
		return c
	}
	switch {
	case c.holder != h:
		r.fault("claim %s of %s (%s) was given to %v and to %v", c.id, from.tag, c.mailbox, c.holder, h)
	case !m.GetResumed():
		r.fault("claim %s of %s (%s) was given to %v twice", c.id, from.tag, c.mailbox, h)
	case c.settled != nothing || c.ranOut:
		r.fault("%v still holds claim %s of %s (%s), which has ended: %d", h, c.id, from.tag, c.mailbox, c.settled)
	default:
		return c
	}
	return nil
}

// holds returns how many claims a holder has.
func (r *record) holds(h holder) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.held[h])
}

// ask notes that claims are about to be settled; fatal matters for nacks. It returns their texts.
func (r *record) ask(v verb, claims []*claim, fatal bool) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	texts := make([]string, len(claims))
	for i, c := range claims {
		c.asked = v
		if v == nacked {
			texts[i] = fmt.Sprintf("failed: nack %d of %s in %s", len(r.nacks)+1, c.id, c.mailbox)
			c.nack = &nack{claim: c, text: texts[i], fatal: fatal}
			r.nacks[texts[i]] = c.nack
		}
	}
	return texts
}

// done notes that what was asked of the claims was done.
func (r *record) done(claims []*claim) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range claims {
		if c.settled == nothing {
			r.end(c, c.asked)
		}
	}
}

// gone notes that an ack came too late.
func (r *record) gone(c *claim) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.ranOut = true
	r.counts["acked too late"]++
	r.end(c, lost)
}

func (r *record) end(c *claim, v verb) {
	if v == acked && c.ranOut {
		r.counts["acked late"]++
	}
	c.settled, c.asked = v, nothing
	if c.nack != nil {
		c.nack.verdict = confirmed
	}
	delete(r.held[c.holder], c)
}

// ackMail notes what is known of acks of own mail by revision.
func (r *record) ackMail(agent string, revisions []string, v verdict) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, text := range revisions {
		n, _ := strconv.ParseInt(text, 10, 64)
		r.mail[delivery{n, agent}] = v
	}
}

// redrove notes confirmed redrives.
func (r *record) redrove(revisions []int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range revisions {
		r.counts["redriven"]++
		r.redriven[n]++
	}
}

package broker

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/mail"
	"brokerd/internal/msgid"
	"brokerd/internal/store"
)

// Questions keeps the calls that wait for replies. The broker calls its method in the writer.
type Questions interface {
	// Unanswered ends the calls that wait for replies to a message of which a delivery has just ended, unless a reply
	// can still come.
	Unanswered(tx *store.Tx, message int64) error
}

// UseQuestions gives the broker what keeps questions. Call it before the broker is used.
func (b *Broker) UseQuestions(q Questions) { b.questions = q }

// A Verb is a kind of settlement.
type Verb int

// The kinds of settlement.
const (
	Ack Verb = iota
	Nack
	Extend
	Release
)

// A Settlement is one change to one claim.
type Settlement struct {
	Verb  Verb
	Ref   msgid.Ref
	Fatal bool           // Nack: dead letter at once
	Error string         // Nack: what went wrong
	Delay *time.Duration // Nack: wait before the next attempt; nil = backoff
	For   time.Duration  // Extend: from now on; 0 = what the claim had at first

	Fault error // streams: why it is refused; then no other field but Ref.Text is set

	// Streams set these for the claims that they have.
	key     mail.DeliveryID
	class   string
	ordered bool
	bytes   int  // of the message
	applied bool // the round of acks has changed its row
}

// A Settled is the result of a Settlement.
type Settled struct {
	ClaimID string
	State   mail.State
	DueAt   time.Time `json:",omitzero"` // Delayed
	Fault   error     `json:"-"`
}

// Settle applies all items or none, in the name of the caller. No item may have an empty Ref, except a single
// one, which then means the caller's only open claim. Operators without an agent only acknowledge what is in
// OperatorMailbox. Errors: fault.NotFound for a message that does not exist, fault.Precondition (CLAIM_LOST) for a
// claim that is no longer the caller's, (NO_OPEN_CLAIM, SEVERAL_OPEN_CLAIMS) for an empty Ref that means none or
// several.
func (b *Broker) Settle(ctx context.Context, c identity.Caller, req idempotency.Request, items []Settlement) ([]Settled, int64, error) {
	var answer struct {
		Settled  []Settled
		Revision int64
	}
	err := req.Drain(ctx, b.store, &answer, func(tx *store.Tx) error {
		a, err := b.Mailboxes.Owner(tx, c)
		if err != nil {
			return err
		}
		claims := func(item Settlement) bool { return item.Verb != Ack || item.Ref.Revision == 0 }
		if a.System() && slices.ContainsFunc(items, claims) {
			return fault.AgentRequired() // operators have no claims
		}
		if len(items) == 1 && items[0].Ref.Revision == 0 {
			if items[0].Ref, err = OnlyClaim(tx, a); err != nil {
				return err
			}
		}
		s := b.NewSettleTx(tx, a)
		answer.Settled = nil
		for i := range items {
			done, err := s.Settle(&items[i])
			if err != nil {
				return err
			}
			answer.Settled = append(answer.Settled, done)
		}
		answer.Revision, err = s.Finish()
		return err
	})
	return answer.Settled, answer.Revision, err
}

// A SettleTx changes deliveries in one function of the writer: it settles claims, and a package beside the core may make
// deliveries wait or end (settletx.go). It gathers what follows from its changes, and Finish writes that once.
type SettleTx struct {
	*Broker
	tx    *store.Tx
	actor mail.Actor
	left  mail.Tally
	due   time.Time
	ended []heldClaim // claims that have ended
	renew []renewal
	noted [Release + 1][]string // claim ids by verb, for the log
	last  int64                 // revision of the newest event
	why   Reason                // reason for the streams whose claims end
	took  []time.Duration       // from claim to ack, as far as streams do not know it
	fresh int                   // messages that AutoAck delivers for the first time

	readied bool          // deliveries have become Pending
	items   []streamItems // of streams
}

// A heldClaim is an ended claim, with the stream that held it.
type heldClaim struct {
	key    mail.DeliveryID
	holder consumerKey
}

type renewal struct {
	key    mail.DeliveryID
	id     string
	holder consumerKey
	at     time.Time
}

// NewSettleTx returns a SettleTx in which the actor changes deliveries.
func (b *Broker) NewSettleTx(tx *store.Tx, actor mail.Actor) *SettleTx {
	return &SettleTx{Broker: b, tx: tx, actor: actor, left: mail.Tally{}}
}

// Settle applies one settlement. It changes nothing if it returns an error.
func (s *SettleTx) Settle(item *Settlement) (Settled, error) {
	h, err := s.locate(item)
	if err != nil {
		return Settled{}, err
	}
	switch item.Verb {
	case Ack:
		return s.ack(h)
	case Nack:
		return s.nack(h, item)
	case Extend:
		return s.extend(h, item.For), nil
	default:
		return s.release(h)
	}
}

func (s *SettleTx) ack(h *held) (Settled, error) {
	done := Settled{ClaimID: h.claimID(), State: mail.Acked}
	switch h.state {
	case mail.Acked:
		return done, nil
	case mail.Cancelled:
		return done, s.lost(msgid.Ref{Text: h.claimID()}, "it was cancelled")
	}
	now := s.tx.Now()
	s.tx.Exec(updateAck, s.actor.Mailbox, now, h.Message, h.Mailbox)
	if h.state.Waits() {
		s.left[h.Mailbox]--
	}
	if h.state == mail.Claimed && s.Counters.observer != nil {
		s.took = append(s.took, now.Sub(h.claimedAt))
	}
	s.noted[Ack] = append(s.noted[Ack], done.ClaimID)
	if err := s.traceEnd(h, mail.Acked, h.attempts); err != nil {
		return done, err
	}
	s.end(h)
	if err := s.Counters.count(s.tx, s.actor.Session, isAcked, h.Message); err != nil {
		return done, err
	}
	if err := s.questions.Unanswered(s.tx, h.Message); err != nil {
		return done, err
	}
	if h.holder == s.actor.Mailbox {
		if err := s.breakers.Succeeded(s.tx, s.actor.Session.ID, s.actor.Mailbox, h.DeliveryID); err != nil {
			return done, err
		}
	}
	return done, s.promote(h)
}

func (s *SettleTx) nack(h *held, item *Settlement) (Settled, error) {
	done := Settled{ClaimID: h.claimID()}
	var err error
	if done.State, done.DueAt, err = s.fail(h, item.Error, item.Fatal, item.Delay); err != nil {
		return done, err
	}
	return done, s.breakers.Failed(s.tx, s.actor.Session.ID, h.holder, h.DeliveryID)
}

// fail counts an attempt and returns the delivery to the mailbox, or makes it a dead letter.
func (s *SettleTx) fail(
	h *held, reason string, fatal bool, delay *time.Duration,
) (state mail.State, due time.Time, err error) {
	now := s.tx.Now()
	attempts := h.attempts + 1
	s.tx.Exec(insertAttempt, h.Message, h.Mailbox, h.claims, attempts, h.holder, h.consumer, h.claimedAt, now, reason)
	if err := s.Counters.count(s.tx, s.actor.Session, hasFailed, h.Message); err != nil {
		return 0, due, err
	}
	wait := backoff(attempts)
	if delay != nil {
		wait = *delay
	}
	state = mail.Pending
	switch {
	case fatal || attempts >= h.maxAttempts:
		state = mail.Dead
	case !h.expiresAt.IsZero() && !h.expiresAt.After(now):
		state = mail.Expired
	case wait > 0:
		state, due = mail.Delayed, now.Add(wait)
	}
	if err := s.put(h, state, attempts, due); err != nil {
		return state, due, err
	}
	entry := s.actor.Event("message.retried")
	entry.Severity = events.Warning
	entry.Summary = h.claimID() + " failed: " + events.OneLine(reason)
	if state == mail.Dead {
		entry.Type = "message.dead"
		entry.Severity = events.Error
		if entry.Quiet, err = s.ofEvent(h.Message); err != nil {
			return state, due, err
		}
		entry.Summary = fmt.Sprintf("message %d is a dead letter after %s: %s",
			h.Message, events.Counted(attempts, "attempt"), events.OneLine(reason))
	}
	mailbox, err := mail.MailboxName(s.tx, h.Mailbox)
	if err != nil {
		return state, due, err
	}
	entry.Details = fmt.Sprintf(`{"claim":%q,"mailbox":%q,"attempt":%d,"state":%q,"error":%s}`, h.claimID(), mailbox, attempts, state, events.Quote(reason))
	s.last, err = s.log.Append(s.tx, entry)
	return state, due, err
}

func (s *SettleTx) release(h *held) (Settled, error) {
	done := Settled{ClaimID: h.claimID(), State: mail.Pending}
	if !h.expiresAt.IsZero() && !h.expiresAt.After(s.tx.Now()) {
		done.State = mail.Expired
	}
	s.noted[Release] = append(s.noted[Release], done.ClaimID)
	if err := s.put(h, done.State, h.attempts, time.Time{}); err != nil {
		return done, err
	}
	return done, s.breakers.Released(s.tx, h.holder, h.DeliveryID)
}

// put changes the state of a claimed delivery.
func (s *SettleTx) put(h *held, state mail.State, attempts int, due time.Time) error {
	var finished time.Time
	if !state.Waits() {
		finished = s.tx.Now()
	}
	s.tx.Exec(updatePutBack, int(state), attempts, due, finished, finished, h.Message, h.Mailbox)
	if err := s.traceEnd(h, state, attempts); err != nil {
		return err
	}
	s.end(h)
	if err := s.noteEnd(h, state); err != nil {
		return err
	}
	switch state {
	case mail.Pending:
		s.makeReady(h.Mailbox, place{h.rank, h.Message})
	case mail.Delayed:
		s.due = Earliest(s.due, due)
	default:
		return s.promote(h)
	}
	s.left[h.Mailbox]++
	s.due = Earliest(s.due, h.expiresAt)
	return nil
}

// noteEnd counts a copy that ends in a state without an ack, and ends the calls that wait for its reply.
func (s *SettleTx) noteEnd(h *held, state mail.State) error {
	var err error
	switch state {
	case mail.Dead:
		err = s.Counters.count(s.tx, s.actor.Session, isDead, h.Message)
	case mail.Expired:
		err = s.Counters.count(s.tx, s.actor.Session, hasExpired, h.Message)
	case mail.Cancelled:
	default:
		return nil
	}
	if err != nil {
		return err
	}
	return s.questions.Unanswered(s.tx, h.Message)
}

func (s *SettleTx) extend(h *held, lasts time.Duration) Settled {
	done := Settled{ClaimID: h.claimID(), State: mail.Claimed}
	if lasts == 0 {
		lasts = h.claimFor
	}
	if lasts != h.claimFor {
		s.tx.Exec(updateClaimFor, lasts, h.Message, h.Mailbox)
	}
	s.noted[Extend] = append(s.noted[Extend], done.ClaimID)
	holder := consumerKey{h.holder, h.consumer}
	s.renew = append(s.renew, renewal{h.DeliveryID, done.ClaimID, holder, s.clock.Now().Add(lasts)})
	return done
}

// end notes the end of a claim.
func (s *SettleTx) end(h *held) {
	if h.state == mail.Claimed {
		holder := consumerKey{h.holder, h.consumer}
		s.ended = append(s.ended, heldClaim{h.DeliveryID, holder})
		s.Waiters.recall(s.tx, holder, h.DeliveryID)
	}
}

// Finish writes what the SettleTx has gathered, and returns the revision of the change.
func (s *SettleTx) Finish() (int64, error) { return s.finish(nil) }

// finish is Finish for a stream that settles its own claims; nil stands for any other caller.
func (s *SettleTx) finish(self *consumer) (int64, error) {
	for verb, kind := range [...]string{Ack: "message.acked", Extend: "message.extended", Release: "message.released"} {
		if len(s.noted[verb]) == 0 {
			continue
		}
		entry := s.actor.Event(kind)
		entry.Severity = events.Debug
		entry.Summary = events.Counted(len(s.noted[verb]), "claim") + " " + strings.TrimPrefix(kind, "message.")
		entry.Details = `{"claims":["` + strings.Join(s.noted[verb], `","`) + `"]}`
		var err error
		if s.last, err = s.log.Append(s.tx, entry); err != nil {
			return 0, err
		}
	}
	s.left.Flush(s.tx)
	s.Calendar.Expect(s.tx, s.due)
	if len(s.ended) > 0 || len(s.renew) > 0 || len(s.noted[Ack]) > 0 || len(s.items) > 0 {
		s.tx.OnCommit(func() { s.settled(self) })
	}
	if s.last == 0 {
		s.last = s.store.Revision()
	}
	return s.last, nil
}

// settled updates the memory after the commit.
func (s *SettleTx) settled(self *consumer) {
	for _, e := range s.ended {
		s.Running.ends.Remove(e.key)
	}
	for _, r := range s.renew {
		if end, ok := s.Running.ends.Deadline(r.key); ok && end.After(r.at) && s.Streams.hold(r.holder, r.id) {
			continue // the broker keeps it for longer than that anyway
		}
		s.Running.ends.Set(r.key, r.at)
	}
	if self == nil {
		for _, took := range s.took {
			s.Counters.observer.Acked(took)
		}
	}
	for _, n := range s.items {
		n.stream.release(n.items, n.results)
	}
	s.Streams.revoke(s.ended, self, s.why)
	if acked := len(s.noted[Ack]); acked > 0 {
		s.Counters.Worked(s.actor, 0, s.fresh, acked)
	}
}

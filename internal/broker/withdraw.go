package broker

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/msgtype"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Moot selects messages that are no longer true, or need no answer any more.
type Moot struct {
	About int64  // as in the Notice or Letter
	Type  string // empty = of any type
	Agent string // whose delivery; empty = all
}

// Withdraw ends the deliveries of messages that have become moot: it withdraws unread notices and
// unclaimed letters, and acknowledges letters in the name of the agents that have claimed them. If
// these are more than withdrawPage, the backlog ends the rest. Copies that have not followed their
// message yet do not follow.
func (q *Chores) Withdraw(tx *store.Tx, session int64, m Moot) error {
	m.Type = msgtype.Canonical(m.Type)
	if m.Agent == "" {
		if err := q.copyNoMore(tx, m); err != nil {
			return err
		}
	}
	c := work.Chore{Kind: withdrawChore, Session: session, Item: m.About, Name: m.Agent, Text: m.Type}
	_, err := q.rows.Do(tx, c)
	return err
}

// withdrawFurther ends the next deliveries of moot messages that are not newer than the withdrawal.
func (q *Chores) withdrawFurther(tx *store.Tx, c *work.Chore) (more bool, err error) {
	m := Moot{About: c.Item, Type: c.Text, Agent: c.Name}
	if more, err = q.withdraw(tx, c.Session, m, c.Newest(), withdrawPage); err != nil || !more {
		return false, err
	}
	return c.Rest(tx)
}

// WithdrawSome ends up to limit deliveries as Withdraw does, and leaves the others. It reports whether
// there may be more.
func (q *Chores) WithdrawSome(tx *store.Tx, session int64, m Moot, limit int) (more bool, err error) {
	m.Type = msgtype.Canonical(m.Type)
	return q.withdraw(tx, session, m, math.MaxInt64, limit)
}

// withdraw ends up to limit deliveries of moot messages up to a revision.
func (q *Chores) withdraw(tx *store.Tx, session int64, m Moot, newest int64, limit int) (more bool, err error) {
	var found []*held
	rows := tx.Query(selectAbout, m.About, newest, m.Type, m.Type, m.Agent, m.Agent, m.Agent, limit)
	defer rows.Close()
	for rows.Next() {
		h := &held{}
		var state int
		if err := rows.Scan(&h.message, &h.mailbox, &state, &h.ordering); err != nil {
			return false, err
		}
		h.state = State(state)
		found = append(found, h)
	}
	if err := rows.Err(); err != nil {
		return false, err
	}
	for _, h := range found {
		if err := q.end(tx, session, h); err != nil {
			return false, fmt.Errorf("withdraw message %d: %w", h.message, err)
		}
	}
	return len(found) == limit, nil
}

// end ends one delivery of a message that has become moot.
func (q *Chores) end(tx *store.Tx, session int64, h *held) error {
	s := q.broker.NewSettleTx(tx, system(session))
	if h.state != Claimed {
		if err := s.finishWaiting(h, Cancelled, "message.cancelled"); err != nil {
			return err
		}
		_, err := s.Finish()
		return err
	}
	claimed, _, err := claimedDelivery(tx, h.key)
	if err != nil {
		return err
	}
	s.actor.Mailbox = claimed.holder
	if _, err := s.ack(claimed); err != nil {
		return err
	}
	_, err = s.Finish()
	return err
}

// EndDelivery ends an unfinished delivery in the given state: one that waits is cancelled, and a claim is acknowledged in
// the name of its holder.
func (q *Chores) EndDelivery(tx *store.Tx, session int64, d DeliveryID, state State) error {
	return q.end(tx, session, &held{key: key{d.Message, d.Mailbox}, state: state})
}

// A Cancellation counts what became of the deliveries of a withdrawn message.
type Cancellation struct {
	Cancelled int
	Kept      int // claimed or finished
	Revision  int64
}

// Cancel withdraws the deliveries of a message that are not claimed. Errors: fault.NotFound, and fault.Denied for any
// caller but the sender and an operator.
func (b *Broker) Cancel(ctx context.Context, c identity.Caller, req idempotency.Request, ref Ref, reason string) (Cancellation, error) {
	var answer Cancellation
	err := b.Change(ctx, req, &answer, func(tx *store.Tx) error {
		a, err := b.Acting(tx, c)
		if err != nil {
			return err
		}
		m, err := a.Sent(tx, ref, "cancel it")
		if err != nil {
			return err
		}
		s := b.NewSettleTx(tx, a)
		waiting, kept, err := unclaimed(tx, m.Revision)
		if err != nil {
			return err
		}
		question, err := b.questions.Open(tx, m.Revision, false)
		if err != nil {
			return err
		}
		answer = Cancellation{Cancelled: len(waiting), Kept: kept, Revision: b.store.Revision()}
		if len(waiting) == 0 && question == nil {
			return nil
		}
		entry := a.Event("message.cancelled")
		entry.Summary = fmt.Sprintf("message %d cancelled for %s", m.Revision, counted(len(waiting), "recipient"))
		entry.Related = []string{strconv.FormatInt(m.Revision, 10)}
		if reason != "" {
			entry.Summary += ": " + OneLine(reason)
			entry.Details = `{"reason":` + Quote(reason) + `}`
		}
		if s.last, err = b.log.Append(tx, entry); err != nil {
			return err
		}
		if question != nil {
			if err := question.Cancelled(tx, a.Session.ID, s.last); err != nil {
				return err
			}
		}
		for _, h := range waiting {
			tx.Exec(updateFinish, int(Cancelled), tx.Now(), h.message, h.mailbox)
			if h.state.Waits() {
				s.left[h.mailbox]--
			}
			if err := s.promote(h); err != nil {
				return err
			}
		}
		answer.Revision, err = s.Finish()
		return err
	})
	return answer, err
}

// unclaimed returns the deliveries of a message that wait or are unread notices, and how many
// others there are.
func unclaimed(q store.Querier, message int64) (waiting []*held, others int, err error) {
	rows := q.Query(selectMessageStates, message)
	for rows.Next() {
		h := &held{}
		var state int
		if err := rows.Scan(&h.message, &h.mailbox, &state, &h.ordering); err != nil {
			return nil, 0, err
		}
		if h.state = State(state); h.state.Waits() || h.state == NoticeUnread {
			waiting = append(waiting, h)
		} else {
			others++
		}
	}
	return waiting, others, rows.Err()
}

// heldBy returns claims of an agent, of whichever consumer, that it made before a time: at most limit.
func heldBy(q store.Querier, agent int64, until time.Time, limit int) ([]*held, error) {
	rows := q.Query(selectHeldBy, agent, until, limit)
	defer rows.Close()
	var found []*held
	for rows.Next() {
		h := &held{state: Claimed, holder: agent}
		if err := rows.Scan(&h.message, &h.mailbox, &h.rank, &h.claims, &h.attempts, &h.maxAttempts, &h.consumer,
			&h.claimedAt, &h.claimFor, &h.expiresAt, &h.ordering, &h.queue); err != nil {
			return nil, err
		}
		found = append(found, h)
	}
	return found, rows.Err()
}

// Sent returns a message that the actor sent, or any message for an operator. Errors: fault.NotFound, and fault.Denied
// for any other agent; what names the action that it may not do.
func (a Actor) Sent(q store.Querier, ref Ref, what string) (Message, error) {
	m, err := FindMessage(q, a.Session.ID, ref)
	if err != nil {
		return m, err
	}
	if !a.System() && a.Name != m.Sender {
		return m, fault.New(fault.Denied, "NOT_THE_SENDER", "message %s was sent by %q: only its sender or an operator may %s", ref.Text, m.Sender, what)
	}
	return m, nil
}

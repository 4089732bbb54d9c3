package broker

import (
	"fmt"
	"math"
	"time"

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

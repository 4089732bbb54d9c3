package backlog

import (
	"fmt"
	"math"

	"brokerd/internal/mail"
	"brokerd/internal/msgtype"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// withdrawPage is how many deliveries one function withdraws.
const withdrawPage = 200

// Withdraw ends the deliveries of messages that have become moot: it withdraws unread notices and
// unclaimed letters, and acknowledges letters in the name of the agents that have claimed them. If
// these are more than withdrawPage, the backlog ends the rest. Copies that have not followed their
// message yet do not follow.
func (q *Chores) Withdraw(tx *store.Tx, session int64, m work.Moot) error {
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
	m := work.Moot{About: c.Item, Type: c.Text, Agent: c.Name}
	if more, err = q.withdraw(tx, c.Session, m, c.Newest(), withdrawPage); err != nil || !more {
		return false, err
	}
	return c.Rest(tx)
}

// WithdrawSome ends up to limit deliveries as Withdraw does, and leaves the others. It reports whether
// there may be more.
func (q *Chores) WithdrawSome(tx *store.Tx, session int64, m work.Moot, limit int) (more bool, err error) {
	m.Type = msgtype.Canonical(m.Type)
	return q.withdraw(tx, session, m, math.MaxInt64, limit)
}

// withdraw ends up to limit deliveries of moot messages up to a revision.
func (q *Chores) withdraw(tx *store.Tx, session int64, m work.Moot, newest int64, limit int) (more bool, err error) {
	type moot struct {
		mail.DeliveryID
		state    int
		ordering string
	}
	found, err := store.Collect(tx.Query(selectAbout, m.About, newest, m.Type, m.Type, m.Agent, m.Agent, m.Agent, limit),
		func(r *store.Rows) (d moot, err error) {
			return d, r.Scan(&d.Message, &d.Mailbox, &d.state, &d.ordering)
		})
	if err != nil {
		return false, err
	}
	for _, d := range found {
		s := q.core.NewSettleTx(tx, mail.System(session))
		if err := s.End(d.DeliveryID, mail.State(d.state), d.ordering); err != nil {
			return false, fmt.Errorf("withdraw message %d: %w", d.Message, err)
		}
		if _, err := s.Finish(); err != nil {
			return false, err
		}
	}
	return len(found) == limit, nil
}

// copyNoMore drops what is left of copying the messages that have become moot.
func (q *Chores) copyNoMore(tx *store.Tx, m work.Moot) error {
	messages, err := store.Collect(tx.Query(selectMessagesAbout, m.About, m.Type, m.Type),
		func(r *store.Rows) (message int64, err error) { return message, r.Scan(&message) })
	if err != nil {
		return err
	}
	for _, message := range messages {
		q.rows.Drop(tx, NoticeCopies, message)
	}
	return nil
}

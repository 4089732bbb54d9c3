package broker

import (
	"cmp"

	"brokerd/internal/mail"
	"brokerd/internal/store"
)

// A Post is a message that is to be delivered.
type Post struct {
	Draft    *mail.Draft
	Message  mail.Message
	Rank     int64
	Attempts int   // how many a delivery has at most
	Notice   bool  // the message is a notice: it is not work
	Part     bool  // the message is part of another change: dispatch gives it to consumers, not Deliver
	Arrival  int64 // of copies that follow their message; 0 = they come with it
}

// Deliver makes the delivery of a message in a mailbox, which has a name as a person writes it. It returns the state:
// CLAIMED if it has given the message to a consumer that waits for it. The caller counts a delivery that waits, and
// calls Calendar.Expect for its due time and its expiry.
func (b *Broker) Deliver(tx *store.Tx, p *Post, to mail.Mailbox, name string) (mail.State, error) {
	d, m := p.Draft, &p.Message
	state := mail.Pending
	var due any
	if d.NotBefore.After(m.CreatedAt) {
		state, due = mail.Delayed, d.NotBefore
	}
	if d.OrderingKey != "" {
		earlier, err := HasOrdered(tx, to.ID, d.OrderingKey)
		if err != nil {
			return state, err
		}
		if earlier {
			state = mail.Blocked
		}
	}
	if p.Notice {
		state = mail.NoticeUnread
	}
	var arrival any
	switch {
	case due != nil: // the calendar gives it one
	case to.Ref.Kind == mail.AgentMailbox:
		arrival = cmp.Or(p.Arrival, m.Revision)
	default:
		arrival = -m.Revision
	}
	if state == mail.Pending && !p.Part {
		handed, err := b.handOver(tx, p, to, name, arrival)
		if err != nil || handed {
			return mail.Claimed, err
		}
	}
	tx.Exec(insertDelivery, m.Revision, to.ID, int(state), p.Rank, arrival, p.Attempts, due, m.ExpiresAt,
		mail.Null(d.OrderingKey))
	switch {
	case state == mail.Pending:
		b.Waiters.ready(tx, to.ID, place{p.Rank, m.Revision})
	case due == nil:
		b.Waiters.Arrived(tx, to.ID)
	}
	return state, nil
}

// handOver gives a message to a consumer that waits for it, if there is one.
func (b *Broker) handOver(tx *store.Tx, p *Post, to mail.Mailbox, name string, arrival any) (bool, error) {
	d, m := p.Draft, &p.Message
	c, err := b.Waiters.taker(tx, to, &ready{
		Claim: Claim{Message: *m}, place: place{p.Rank, m.Revision}, kind: d.Type, priority: d.Priority,
		task: d.Task, correlation: d.Correlation,
	})
	if c == nil || err != nil {
		return false, err
	}
	tx.Exec(insertHanded, m.Revision, to.ID, p.Rank, arrival, p.Attempts, m.ExpiresAt, mail.Null(d.OrderingKey),
		c.actor.Mailbox, c.name, m.CreatedAt, c.claimFor)
	b.Waiters.give(tx, c, &Claim{
		Message: *m, Mailbox: name, Number: 1, Attempt: 1, MaxAttempts: p.Attempts, ExpiresIn: c.claimFor,
		key: mail.DeliveryID{Message: m.Revision, Mailbox: to.ID}, ordered: d.OrderingKey != "", fresh: true,
		class: classOf(d.Type),
	})
	if to.Ref.Kind == mail.AgentMailbox {
		b.Waiters.Arrived(tx, to.ID)
	}
	return true, nil
}

// DeliverAwaited makes the delivery of a reply for which a call of the asker waits. It begins as ACKED.
func (b *Broker) DeliverAwaited(tx *store.Tx, p *Post, asker mail.Actor) error {
	m := &p.Message
	tx.Exec(insertAwaited, m.Revision, asker.Mailbox, p.Rank, p.Attempts, m.CreatedAt, m.ExpiresAt)
	for _, fate := range []string{isDelivered, isAcked} {
		if err := b.Counters.countOf(tx, asker.Session, fate, classOf(p.Draft.Type)); err != nil {
			return err
		}
	}
	tx.OnCommit(func() { b.Counters.Worked(asker, 0, 1, 1) })
	return nil
}

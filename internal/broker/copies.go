package broker

import (
	"errors"
	"fmt"
	"slices"

	"brokerd/internal/store"
	"brokerd/internal/work"
)

const (
	// copiesPage is how many copies a change sends itself of the message that reports it, and chorePage
	// how many each function of the backlog sends.
	copiesPage = 1000
	chorePage  = work.PageRows
	// copiesBudget is how many rows a change may have before the copies of its messages are left to the
	// backlog, and copyRows how many of them a copy takes at most: the delivery, and the mailbox twice.
	copiesBudget = 5000
	copyRows     = 3

	// withdrawPage is how many deliveries one function withdraws.
	withdrawPage = 200
)

// CopiesAtOnce returns how many agents receive a message that reports a change in the change's
// function; the others receive it from the backlog. A change never fails, and is not much larger,
// because many agents are to hear of it.
func CopiesAtOnce(tx *store.Tx) int {
	return max(0, min(copiesPage, (copiesBudget-tx.Changed())/copyRows))
}

// without returns a copy of names that lacks one.
func without(names []string, name string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(other string) bool { return other == name })
}

// copyNoMore drops what is left of copying the messages that have become moot.
func (q *Chores) copyNoMore(tx *store.Tx, m Moot) error {
	messages, err := store.Collect(tx.Query(selectMessagesAbout, m.About, m.Type, m.Type),
		func(r *store.Rows) (message int64, err error) { return message, r.Scan(&message) })
	if err != nil {
		return err
	}
	for _, message := range messages {
		q.rows.Drop(tx, noticeChore, message)
	}
	return nil
}

// copyFurther sends the next copies of a message that reports a change, to agents that have the role
// or subscribe at this time. It sends none in a closed session, or of a message that has expired or
// been removed. A copy arrives now, behind what the agent has already received.
func (q *Chores) copyFurther(tx *store.Tx, c *work.Chore) (more bool, err error) {
	session, err := q.broker.dir.ByID(tx, c.Session)
	if errors.Is(err, store.ErrNoRows) || err == nil && session.Closed() {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	m, d, channel := Message{Revision: c.Item}, &Draft{}, ""
	err = tx.QueryRow(selectCopied, c.Item).Scan(&d.Type, &d.Priority, &channel, &m.CreatedAt, &m.ExpiresAt)
	if errors.Is(err, store.ErrNoRows) || err == nil && !m.ExpiresAt.IsZero() && !m.ExpiresAt.After(tx.Now()) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	s := &SendTx{
		Broker: q.broker, tx: tx, actor: system(c.Session), known: map[MailboxRef]*recipient{}, part: true,
		arrival: tx.NextRevision(), notice: c.Kind == noticeChore,
	}
	s.actor.Session = session
	names, err := q.nextAudience(tx, c, channel)
	if err != nil || len(names) == 0 {
		return false, err
	}
	if err := s.copy(d, &m, names, c.Name); err != nil {
		return false, fmt.Errorf("copy message %d: %w", c.Item, err)
	}
	c.Text = names[len(names)-1]
	return len(names) == chorePage, s.Finish()
}

// nextAudience returns the agents of the next page.
func (q *Chores) nextAudience(tx *store.Tx, c *work.Chore, channel string) ([]string, error) {
	if c.Kind == noticeChore {
		return OfRole(q.broker.dir, tx, c.Session, c.Name, c.Text, chorePage)
	}
	return EventSubscribers(tx, c.Session, channel, c.Text, chorePage)
}

// copy sends copies of an event to agents, except one, whose mailboxes are not full, or copies of a
// notice to agents of a role.
func (s *SendTx) copy(d *Draft, m *Message, names []string, except string) error {
	limit := s.actor.Session.MailboxLimit
	if s.notice {
		limit = 0
	} else {
		names = without(names, except)
	}
	to, err := s.toAgents(names)
	if err != nil {
		return err
	}
	p := &post{
		draft: d, message: *m, limit: limit, most: s.actor.Session.MaxAttempts,
		rank: Rank(s.actor.Session.Ageing, d.Priority, m.CreatedAt),
	}
	refused := 0
	for _, r := range to {
		if p.isFull(r) {
			refused++
			continue
		}
		if err := s.deliver(p, r); err != nil {
			return err
		}
	}
	if refused > 0 && s.Counters.observer != nil {
		s.tx.OnCommit(func() { s.Counters.observer.Full(refused) })
	}
	return nil
}

// A Part says how messages are sent that are part of another change.
type Part struct {
	Audience []string // the agents that receive the message, in place of its target; nil = the target's
	More     bool     // the audience has more agents: see CopyLater
	Overfull bool     // full mailboxes take the message
	Notice   bool     // the message is a notice: it is not work
}

// A PartTx sends messages in the transaction of the change that they are part of. Its methods may be called until
// Finish.
type PartTx struct{ send *SendTx }

// NewPartTx returns a PartTx for messages of one sender.
func (b *Broker) NewPartTx(tx *store.Tx, from Actor, p Part) *PartTx {
	return &PartTx{&SendTx{
		Broker: b, tx: tx, actor: from, known: map[MailboxRef]*recipient{}, part: true,
		audience: p.Audience, more: p.More, overfull: p.Overfull, notice: p.Notice,
	}}
}

// Send sends a message.
func (p *PartTx) Send(d *Draft) (Outcome, error) { return p.send.send(d, 0, 0) }

// CopyLater leaves the copies of a message for the agents behind the given ones to the backlog. The name is the role of
// a notice, or the agent that caused an event and receives no copy.
func (p *PartTx) CopyLater(message int64, name string, have []string) {
	s := p.send
	c := work.Chore{Kind: eventChore, Session: s.actor.Session.ID, Item: message, Name: name}
	if s.notice {
		c.Kind = noticeChore
	}
	if len(have) > 0 {
		c.Text = have[len(have)-1]
	}
	s.Chores.rows.Add(s.tx, c)
}

// Finish writes what the messages have in common.
func (p *PartTx) Finish() error { return p.send.Finish() }

package router

import (
	"errors"
	"fmt"
	"slices"

	"brokerd/internal/backlog"
	"brokerd/internal/broker"
	"brokerd/internal/mail"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

const (
	// copiesPage is how many copies each function of the backlog sends.
	copiesPage = work.PageRows
	// copiesBudget is how many rows a change may have before the copies of its messages are left to the
	// backlog, and copyRows how many of them a copy takes at most: the delivery, and the mailbox twice.
	copiesBudget = 5000
	copyRows     = 3
)

// CopiesAtOnce returns how many agents receive a message that reports a change in the change's
// function; the others receive it from the backlog. A change never fails, and is not much larger,
// because many agents are to hear of it.
func CopiesAtOnce(tx *store.Tx) int {
	return max(0, min(mail.CopiesPage, (copiesBudget-tx.Changed())/copyRows))
}

// without returns a copy of names that lacks one.
func without(names []string, name string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(other string) bool { return other == name })
}

// copyFurther is a page of the backlog: it sends the next copies of a message that reports a change, to agents that
// have the role or subscribe at this time. It sends none in a closed session, or of a message that has expired or been
// removed. A copy arrives now, behind what the agent has already received.
func (r *Router) copyFurther(tx *store.Tx, c *work.Chore) (more bool, err error) {
	session, err := r.dir.ByID(tx, c.Session)
	if errors.Is(err, store.ErrNoRows) || err == nil && session.Closed() {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	m, d, channel := mail.Message{Revision: c.Item}, &mail.Draft{}, ""
	err = tx.QueryRow(selectCopied, c.Item).Scan(&d.Type, &d.Priority, &channel, &m.CreatedAt, &m.ExpiresAt)
	if errors.Is(err, store.ErrNoRows) || err == nil && !m.ExpiresAt.IsZero() && !m.ExpiresAt.After(tx.Now()) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	actor := mail.System(c.Session)
	actor.Session = session
	s := r.NewTx(tx, actor, nil)
	s.part, s.arrival, s.notice = true, tx.NextRevision(), c.Kind == backlog.NoticeCopies
	names, err := r.nextAudience(tx, c, channel)
	if err != nil || len(names) == 0 {
		return false, err
	}
	if err := s.copy(d, &m, names, c.Name); err != nil {
		return false, fmt.Errorf("copy message %d: %w", c.Item, err)
	}
	c.Text = names[len(names)-1]
	return len(names) == copiesPage, s.Finish()
}

// nextAudience returns the agents of the next page.
func (r *Router) nextAudience(tx *store.Tx, c *work.Chore, channel string) ([]string, error) {
	if c.Kind == backlog.NoticeCopies {
		return mail.OfRole(r.dir, tx, c.Session, c.Name, c.Text, copiesPage)
	}
	return mail.EventSubscribers(tx, c.Session, channel, c.Text, copiesPage)
}

// copy sends copies of an event to agents, except one, whose mailboxes are not full, or copies of a
// notice to agents of a role.
func (s *Tx) copy(d *mail.Draft, m *mail.Message, names []string, except string) error {
	rules := s.actor.Session.Settings
	limit := rules.GetMailboxLimit()
	if s.notice {
		limit = 0
	} else {
		names = without(names, except)
	}
	to, err := s.toAgents(names)
	if err != nil {
		return err
	}
	p := &post{Post: broker.Post{
		Draft: d, Message: *m, Rank: mail.Rank(rules.GetAgeing().AsDuration(), d.Priority, m.CreatedAt),
		Attempts: int(rules.GetMaxAttempts()), Notice: s.notice, Part: true, Arrival: s.arrival,
	}, limit: limit}
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
	s.core.Counters.Full(s.tx, refused)
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
type PartTx struct{ send *Tx }

// NewPartTx returns a PartTx for messages of one sender.
func (r *Router) NewPartTx(tx *store.Tx, from mail.Actor, p Part) *PartTx {
	s := r.NewTx(tx, from, nil)
	s.part, s.audience, s.more, s.overfull, s.notice = true, p.Audience, p.More, p.Overfull, p.Notice
	return &PartTx{s}
}

// Send sends a message.
func (p *PartTx) Send(d *mail.Draft) (Outcome, error) { return p.send.send(d, 0, 0) }

// CopyLater leaves the copies of a message for the agents behind the given ones to the backlog. The name is the role of
// a notice, or the agent that caused an event and receives no copy.
func (p *PartTx) CopyLater(message int64, name string, have []string) {
	s := p.send
	c := work.Chore{Kind: backlog.EventCopies, Session: s.actor.Session.ID, Item: message, Name: name}
	if s.notice {
		c.Kind = backlog.NoticeCopies
	}
	if len(have) > 0 {
		c.Text = have[len(have)-1]
	}
	s.rest.Add(s.tx, c)
}

// Finish writes what the messages have in common.
func (p *PartTx) Finish() error { return p.send.Finish() }

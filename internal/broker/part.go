package broker

import (
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// A Part says how messages are sent that are part of another change.
type Part struct {
	Audience []string // the agents that receive the message, in place of its target; nil = the target's
	More     bool     // the audience has more agents: see CopyLater
	Overfull bool     // full mailboxes take the message
	Notice   bool     // the message is a notice: it is not work
}

// A PartTx sends messages in the transaction of the change that they are part of. Its methods may be called until
// Finish.
type PartTx struct{ sending *sending }

// NewPartTx returns a PartTx for messages of one sender.
func (b *Broker) NewPartTx(tx *store.Tx, from Actor, p Part) *PartTx {
	return &PartTx{&sending{
		Broker: b, tx: tx, actor: from, rooms: map[MailboxRef]*room{}, part: true,
		audience: p.Audience, more: p.More, overfull: p.Overfull, notice: p.Notice,
	}}
}

// Send sends a message.
func (p *PartTx) Send(d *Draft) (Outcome, error) { return p.sending.send(d, 0, 0) }

// CopyLater leaves the copies of a message for the agents behind the given ones to the backlog. The name is the role of
// a notice, or the agent that caused an event and receives no copy.
func (p *PartTx) CopyLater(message int64, name string, have []string) {
	s := p.sending
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
func (p *PartTx) Finish() error { return p.sending.finish() }

// A SendTx sends messages of a caller in one function of the writer. Its methods may be called until Finish.
type SendTx struct{ sending *sending }

// NewSendTx returns a SendTx for messages of an actor. from is their origin.
func (b *Broker) NewSendTx(tx *store.Tx, actor Actor, from *Origin) *SendTx {
	return &SendTx{&sending{Broker: b, tx: tx, actor: actor, rooms: map[MailboxRef]*room{}, origin: from}}
}

// Send sends a message, which must not be larger than its session allows. Errors: as Broker.Send.
func (s *SendTx) Send(d *Draft) (Outcome, error) { return s.sending.sendFitting(d, 0, 0) }

// Vacancy returns the warning for a role or channel that no agent has; it is empty if an agent has it.
func (s *SendTx) Vacancy(ref MailboxRef) (string, error) { return s.sending.vacancy(ref) }

// Finish writes what the messages have in common.
func (s *SendTx) Finish() error { return s.sending.finish() }

package broker

import (
	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/mail"
	"brokerd/internal/store"
)

// SubscriptionsChanged clears from memory what depends on subscriptions, of which the caller has changed the actor's,
// and moves the actor's consumers to the channels to which it subscribes now.
func (b *Broker) SubscriptionsChanged(tx *store.Tx, a mail.Actor) error {
	b.Audiences.Forget(tx)
	return b.rebox(tx, a)
}

// rebox moves those of the actor's consumers that take from all mailboxes that they may take from: the set of these
// mailboxes has changed.
func (b *Broker) rebox(tx *store.Tx, a mail.Actor) error {
	boxes, err := b.Mailboxes.Choose(tx, a, nil)
	if err != nil {
		return err
	}
	tx.OnCommit(func() { b.Streams.move(a, boxes) })
	return nil
}

// AgentRegistered moves an agent's open streams to the mailboxes of its new role. It is a hook of the registration.
func (b *Broker) AgentRegistered(tx *store.Tx, agent directory.Agent) error {
	a := mail.Actor{Agent: agent}
	var err error
	if a.Session, err = b.dir.ByID(tx, agent.Session); err != nil {
		return err
	}
	if a.Mailbox, err = b.Mailboxes.Open(tx, agent.Session, mail.AgentRef(agent.Name)); err != nil {
		return err
	}
	return b.rebox(tx, a)
}

// Dismiss ends what a deregistered agent has in the core beside its claims and its mail: streams, waiting calls and
// subscriptions. It returns the agent as an actor, with the mailbox 0 if it has none.
func (b *Broker) Dismiss(tx *store.Tx, agent directory.Agent) (mail.Actor, error) {
	a := mail.Actor{Agent: agent}
	var err error
	if a.Session, err = b.dir.ByID(tx, agent.Session); err != nil {
		return a, err
	}
	a.Mailbox, err = b.Mailboxes.Find(tx, agent.Session, mail.AgentRef(agent.Name))
	if err != nil || a.Mailbox == 0 {
		return a, err
	}
	b.Waiters.dismissAgent(tx, a.Mailbox, fault.AgentGone(a.Name))
	tx.Exec(deleteSubscriptions, a.Mailbox)
	b.Audiences.Forget(tx)
	return a, nil
}

// DismissSession ends streams and waiting calls of a session with an error when the transaction is committed, and wakes
// its readers, which check whether they may continue.
func (b *Broker) DismissSession(tx *store.Tx, session int64, why error) {
	b.Waiters.dismiss(tx, func(c *consumer) bool { return c.actor.Session.ID == session }, why)
	tx.OnCommit(b.Waiters.signalAll)
}

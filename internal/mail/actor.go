package mail

import (
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

// An Actor is the agent that acts in a transaction, with its session and its own mailbox.
type Actor struct {
	directory.Agent
	Session directory.Session
	Mailbox int64 // 0 if it was never sent anything
}

// System returns the broker itself, acting in a session.
func System(session int64) Actor {
	return Actor{Agent: directory.Agent{Name: identity.System}, Session: directory.Session{ID: session}}
}

// System reports whether an operator acts without an agent's name.
func (a Actor) System() bool { return a.Name == identity.System }

// Event returns an entry of the log with what all events of messages have in common.
func (a Actor) Event(kind string) events.Entry {
	return events.Entry{Session: a.Session.ID, Category: events.Message, Type: kind, Source: a.Name, SourceRole: a.Role}
}

// Acting returns the actor that calls. The mailbox stays 0 if there is none yet.
func (m *Mailboxes) Acting(q store.Querier, c identity.Caller) (Actor, error) {
	session, err := m.dir.Session(q, c.Session)
	if err != nil {
		return Actor{}, err
	}
	agent, err := m.dir.Acting(q, session.ID, c)
	if err != nil {
		return Actor{}, err
	}
	return Actor{Agent: agent, Session: session}, nil
}

// Owner is Acting for calls that need the caller's own mailbox. Operators without an agent share one:
// see OperatorMailbox.
func (m *Mailboxes) Owner(tx *store.Tx, c identity.Caller) (Actor, error) {
	a, err := m.Acting(tx, c)
	if err != nil {
		return a, err
	}
	a.Mailbox, err = m.Open(tx, a.Session.ID, AgentRef(a.Name))
	return a, err
}

// ActingAgent is Owner for calls that only an agent can make.
func (m *Mailboxes) ActingAgent(tx *store.Tx, c identity.Caller) (Actor, error) {
	a, err := m.Owner(tx, c)
	if err == nil && a.System() {
		err = fault.AgentRequired()
	}
	return a, err
}

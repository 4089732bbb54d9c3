package directory

import (
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

// A Directory looks up sessions and agents. Its methods may be called concurrently, in transactions and on
// snapshots; functions are plugged in before that.
type Directory struct {
	sessions store.Cache[string, Session]
	agents   store.Cache[agentKey, Agent] // ID is 0 if there is none
	fences   []Fences
	revive   func(tx *store.Tx, c identity.Caller, a Agent) (Agent, error)
}

// New returns the directory of a store that has the tables of sessions and agents.
func New() *Directory { return &Directory{} }

// Fences knows which grants an agent holds: locks and tokens, or tasks.
type Fences interface {
	// Holds reports whether the agent holds the grant of a revision.
	Holds(q store.Querier, session int64, agent string, fence int64) (bool, error)
}

// UseFences adds features that grant something under a fence. A call with a fence that none of them
// knows is refused.
func (d *Directory) UseFences(f ...Fences) { d.fences = append(d.fences, f...) }

// UseReviver sets the function that brings back an agent which has failed or stopped and calls again. It
// returns the agent as it is then.
func (d *Directory) UseReviver(revive func(tx *store.Tx, c identity.Caller, a Agent) (Agent, error)) {
	d.revive = revive
}

// SessionsChanged is called in each transaction that changes sessions.
func (d *Directory) SessionsChanged(tx *store.Tx) { d.sessions.Clear(tx) }

// AgentsChanged is called in each transaction that changes something of an agent that Find returns.
func (d *Directory) AgentsChanged(tx *store.Tx) { d.agents.Clear(tx) }

// Package directory looks up sessions and agents for every other part of the broker. Nearly every call begins
// with it: Session finds the session that the call names, and Acting finds the agent that makes the call and
// checks that it may.
//
//	call in a session ──► Session ──► the session with its settings, or NOT_FOUND, SESSION_CLOSED
//	      by an agent ──► Acting  ──► the agent, or AGENT_NOT_REGISTERED, STALE_INCARNATION, FENCE_LOST
//
// The package only reads. The tables belong to the packages sessions and agents, which make, change and remove
// the rows. A look-up takes a store.Querier: the transaction of a call that changes something, or the snapshot
// of a call that reads. So what a call finds is true at its own revision.
//
// In a transaction, sessions and agents come from memory after the first look-up. Package sessions calls
// SessionsChanged and package agents calls AgentsChanged in each transaction that changes what is kept, so
// that the next look-up reads the rows again.
//
// A look-up in a transaction also refuses what may not change: a closed session gives SESSION_CLOSED, so no
// feature has to ask. And Acting has an agent that has failed or stopped brought back, because it calls again.
// Package agents does that; it plugs the function in with UseReviver.
//
// Packages locks and tasks know which fences are held. They are plugged in with UseFences.
package directory

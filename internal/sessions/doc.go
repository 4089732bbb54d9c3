// Package sessions keeps the sessions: the scopes in which everything else lives, each with its
// settings. The session "default" always exists.
//
// Every call in a session begins with Lookup, in the same transaction as what it does, so a change
// of settings holds from its own revision on and never for half a call.
//
// A session that was closed can be read and nothing else: Lookup and ID refuse it in a transaction that may change something, so
// no feature has to ask.
package sessions

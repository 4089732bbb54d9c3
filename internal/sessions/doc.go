// Package sessions keeps the sessions: the scopes in which everything else lives, each with its
// settings. The session "default" always exists.
//
// The package makes, configures, closes and deletes sessions. Every other part looks them up in package
// directory, at the start of every call and in the same transaction as what the call does. So a change
// of settings holds from its own revision on and never for half a call.
//
// A session that was closed can be read and nothing else.
package sessions

// Package app builds the daemon from its parts, starts them, and stops them in reverse. It is the one
// place that knows every feature: what one feature needs of another is plugged in here.
//
//	Start: store ─► credential, sockets ─► features ─► server ─► runners ─► serving ─► endpoint file
//	Stop:  endpoint file ─► streams told to go away ─► server (bounded) ─► runners ─► store
package app

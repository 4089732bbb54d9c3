// Package catalog keeps the types of messages that sessions register, beside the built-in ones of
// msgtype, and serves the CatalogService.
//
//	Register ──► writer: row, event type.registered ──commit──► cache dropped
//	Types    ──► cache ──(first use)──► rows
//
// # Cache
//
// Types is on the path of every message, outside the writer. It keeps the types of a session in
// memory. A registration drops what is kept when its commit is on disk, before its caller gets an
// answer: a send that begins after that answer knows the type. A read that began before the commit
// keeps nothing.
//
// # Rules
//
// A registered name or alias never has a second meaning in its session. Built-in names cannot be
// registered. If an upgrade of the broker adds a built-in type of a registered name, the built-in
// type counts.
package catalog

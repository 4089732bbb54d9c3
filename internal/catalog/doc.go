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
// A registered name or alias never has a second meaning in its session. A registration with the name
// of a built-in type replaces the schema of that type in the session; its name, aliases, family and
// meaning as a directive stay. So does a registration whose name an upgrade of the broker adds to the
// built-in types. If an upgrade adds it as an alias, the built-in type counts.
package catalog

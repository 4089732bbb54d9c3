// Package state keeps what agents know in common: versioned values by namespace and key, and documents that grow by entries.
//
//	            put, append                      put, append
//	(nothing) ──────────────► version 1 ─ … ─ version n ──────┐
//	                              ▲                           │ delete, time to live over
//	                              │       put, append         ▼
//	                              └───────────────────── tombstone, version n+1
//
// Every change is a version of its key, with a number that counts on, and a revision: that of its event. A transaction of many changes
// is one event, so all of them have one revision. A change may be made on condition that a key still has the
// revision that the caller read; 0 stands for a key that is not there. The conditions are looked at in the writer, in the
// transaction of the change, so of two callers that read the same one is refused.
//
// The rows of the namespace "global" belong to the scope 0, which all sessions share; all others to the scope of their
// session. Nothing but the session of an event tells where a change of a global key came from.
//
// # History
//
// A version is a row that is never changed. The newest 100 of each key are kept, and besides the newest 100,000 of a scope (up to
// 256 MiB of values), so that whoever watches a key that changes all the time is not outrun. What is older is removed in
// the background. The highest revision up to which something may be missing is the floor of the scope: a watch from below it
// is refused as fault.OutOfRange. The entries of a document are its versions, and stay for as long as the document does. A tombstone
// goes with its history once the floor has passed it; a key made again after that begins at version 1.
//
// # Watching
//
//	rules ──versions──► commit ──► hub ──wake-up──► watcher: read a page, close, send
//
// A watcher reads versions in the order of their row ids, which is the order of commits, and sends all of a revision in one
// frame. What a snapshot shows up to its revision is complete, so nothing is missed or sent twice, and one that stops reading costs
// nobody anything.
package state

// Package locks is the one engine behind locks and tokens: who holds what, who waits for it, and whose turn is next.
//
// # A request
//
// A request names what it wants, all or none: paths (files, directories, globs) in a mode, or one token by its name, which
// conflicts with nothing but itself. It is a row all its life, first a ticket, then a grant:
//
//	            in nobody's way ┌───────────────────────────────────────────► GRANTED ──► released, expired,
//	acquire ────────────────────┤                                                ▲        revoked, agent ended
//	                            └──► QUEUED (ticket) ── nobody is in the way ────┘
//	                                   │      any more: in the same transaction
//	                                   └──► given up, lapsed, agent ended, ABORTED (a deadlock)
//
// A ticket's number is the revision at which it was made, and so its place; a grant's fence is the revision at which it was
// granted, so fences only grow.
//
// # Who is in the way
//
// The owner of a request is an agent together with a holder: two workers under one agent's name exclude each other, and what an owner
// holds never stands in its own way. Two requests conflict if one of them is exclusive and some resource of one overlaps one of the
// other. A request has in its way
//
//   - every grant of another owner that it conflicts with, and
//   - every earlier ticket of another owner that it conflicts with, unless that owner waits for the requester.
//
// An owner waits for another, for that rule, if a chain of tickets leads from one to the other, each of which conflicts with a grant or an
// earlier ticket of the next owner, over locks and tokens alike. Without the exception the requester would wait for somebody who waits
// for it, although nothing but the order of asking keeps it. With it only grants can close a circle: what is left, an owner that
// waits for a grant of one who waits for a grant, and so on, of the first, is a deadlock that nobody can solve but by
// giving up. It is looked for when a ticket is made, when somebody who still waits for something else is granted something,
// and when a token is passed on; the youngest ticket of the circle ends, with the circle spelt out.
//
// The search has a budget of rows and comparisons. Beyond it, a call is refused as long as that is possible;
// later, the ticket ends that the search began with. Either way, no deadlock remains undetected.
//
// The nodes of that graph are owners and not agents: of two workers under one name one may wait for what the other holds, and that is no
// deadlock. So for agents that use no holders, nodes are agents.
//
// # What is where
//
// Grants and tickets are rows. The writer also keeps in memory:
//
//   - the tickets of a session, of which there are few, parsed and in order. A function that changes the rows
//     changes the list as well; if the function is dropped, the list is read again (store.Cache).
//   - how many paths are held at a place, so that a request near which nothing is held reads no table, and how many
//     paths and tokens an agent holds (store.Memory, as all that follows).
//   - the calls that wait, the answers that name a grant, and the first ticket that settle has left to an alarm.
//
// An index finds grants by where a path stands: a file or directory stands under its own name, a glob under the
// segments before its first wildcard. What may overlap a path stands at its place, above it, or, for directories and
// globs, below it; an exact check decides.
//
// A call that waits for a ticket is answered after the commit that grants it, and that grant counts as collected at
// once. No caller waits for the commit of such a call's ticket, so it goes with the next one (store.Tx.Patient). If
// the writer fails to take a call off the list that has stopped waiting, the alarm of its ticket does so later.
// Deadlines start again with their full time, and a grace, when the broker starts.
package locks

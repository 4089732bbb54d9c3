// Package retention ends what has been kept for long enough: finished messages and old events go from the database into an archive of
// compressed files. It also exports whole sessions, and deletes those that are closed.
//
//	due ──► read a page ──► append to files, sync ──► one transaction: note the files' lengths, remove the rows
//	                              ▲                        │
//	                              └── cut back to the ◄────┘ killed in between, or a message has changed meanwhile
//	                                  noted length
//
// # What is promised
//
// A message is archived when all its deliveries are finished and the last of them has been for as long as the session keeps messages
// (dead letters: dead letters); an event when it is that old. A line is in the archive exactly once, whenever the broker is
// killed: what was appended without its transaction is cut off before the next append. Nothing leaves the database before it
// is on disk in the archive. An archive file whose name the database has never noted is never cut.
//
// Finished work of a Part, such as a closed vote, is archived in the same way when it has been finished for as long as the session
// keeps messages.
//
// # Pace
//
// A turn walks through the messages and events that may be due, in pages. One look at the rows serves a whole page: messages that follow each
// other and are alike count as one, due when the last of them is, and only where that does not hold is each looked at by itself. Reading a page, writing its lines and compressing them is done on a
// snapshot, beside the writer; what the writer does is one small transaction in the lane of sends: it compares sums over the page's
// deliveries with what was read, and removes the page's rows, which mostly follow each other, in stretches. After each page
// the turn rests several times as long as the page took, so that what agents do goes first. The later the page is the shorter the
// rest, down to none: a turn that is a little late removes as much as comes, which is how the file stops growing
// under any load.
//
// Then the keeper sleeps until the earliest moment at which something can be due: nothing is told of single messages. A turn that found
// messages that linger, for they are not finished, comes no sooner again than a twentieth of the shortest time to keep
// something.
//
// # Space
//
// Pages that were freed are used again before the file grows. Where more than a quarter of it is free, and has been for a minute, it is
// given back to the file system in small steps.
//
// # Deletion
//
//	closed ── export, sync, rename ──► noted as being deleted ── pages ──► archive files, session row
//
// Once it is noted, a deletion is finished by whoever finds it: the call, or the next turn after a start.
package retention

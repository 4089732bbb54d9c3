// Package retention moves finished messages and old events from the database into an archive of compressed files, once
// they have been kept for long enough. It also exports whole sessions, and deletes closed ones.
//
//	due ──► read a page ──► append to files, sync ──► one transaction: note the files' lengths, remove the rows
//	                              ▲                        │
//	                              └── cut back to the ◄────┘ killed in between, or a message has changed meanwhile
//	                                  noted length
//
// # What is promised
//
// A message is archived when all its deliveries are finished and the last of them has been finished for as long as the
// session keeps messages (a dead letter: for as long as the session keeps dead letters); an event when it is as old as
// the session keeps events. A line is in the archive exactly once, whenever the broker is killed: what was appended
// without its transaction is cut off before the next append. Nothing leaves the database before it is on disk in the
// archive. An archive file whose name the database has never noted is never cut.
//
// Finished work of a Part, such as a closed vote, is archived in the same way when it has been finished for as long as
// the session keeps messages.
//
// # Pace
//
// A run reads the messages and events that may be due, in pages. One check serves a whole page of messages that
// follow each other and are alike: they are due when the last of them is. Other messages are checked one by one. A
// page is read, encoded and compressed on a snapshot, beside the writer. The writer runs one small transaction in the
// lane of sends: it compares sums over the page's deliveries with those that were read, and removes the page's rows by
// ranges. After each page the run pauses for several times as long as the page took, so that calls of agents go first.
// The later the page is, the shorter the pause, down to none: a run that is a little late removes as much data as
// arrives, so the file stops growing under any load.
//
// Then the keeper sleeps until the earliest time at which data can be due: messages have no timers. A run
// that found unfinished messages comes again after a twentieth of the shortest time to keep something at the earliest.
//
// # Space
//
// Freed pages are used again before the file grows. When more than a quarter of the file has been free for a minute, the
// broker returns the free pages to the file system in small steps.
//
// # Deletion
//
//	closed ── export, sync, rename ──► noted as being deleted ── pages ──► archive files, session row
//
// Once it is noted, a deletion is finished by the call, or by the next run after a start.
package retention

// Package archive reads messages for the archive and removes them. The feature retention decides when, and keeps the
// files; the packages router and broker write the rows.
//
//	Standings ──► Records ──► (retention appends the lines to a file) ──► Remove ──► Tidy
//
// # Reading
//
// Standings returns the state of messages in a snapshot: whether they are finished, and since when. Messages that
// follow each other and are alike count as one standing, so one look-up serves a page of them. Records reads the
// messages of such standings with deliveries, attempts and offers, and writes each message as one line of JSON. It
// reads four tables in the order of the messages, each with one statement per stretch of messages.
//
// # Removal
//
// Between Records and Remove, an agent may acknowledge a dead letter late, or an operator may redrive it. Records
// therefore adds up numbers of the deliveries that change with each such change. Remove compares these sums with the
// rows, and removes all messages or none.
//
// One function of the writer changes a bounded number of rows. Remove removes messages, deliveries and questions at
// once, and as many of the other rows (attempts, offers, resends, names of artifacts) as are left of the bound. It
// notes the rest in the table leftovers, and Tidy removes that in pages. The row of a message is also the event that it
// was sent: before Remove removes it, the log adds that event to its own rows, unless retention has removed it.
//
// # Deletion of a session
//
// Erase removes the messages of a session, finished or not, and EraseMailboxes then removes all that the core has of
// the session beside messages. Both work in pages. The core forgets the mailboxes that it has in memory.
package archive

// Package inbox reads mailboxes and messages for agents and operators: it receives, lists and counts. It claims
// nothing. The only rows that it changes are those that record a read.
//
//	Receive    sends an agent its own mailbox by arrival, and follows new arrivals
//	List       lists a mailbox, or the messages of the session, page by page
//	Get        returns a message with all its deliveries
//	Summary    counts the mail of an agent, with its questions and directives
//	Mailboxes  lists the mailboxes that hold messages
//	Holdings   returns the claims and open questions of an agent, for the registry of agents
//
// ReadNotices returns the unread notices of an agent with its heartbeat.
//
// # Positions
//
// A delivery gets its arrival, a revision, when it becomes visible. Receive reads by arrival, so a client resumes
// behind the last revision that it has. With a cursor, the broker keeps this position (package events). Receive sends
// a page, and then records in a writer function that the messages were delivered. No transaction is open while it
// sends, so a client that does not read keeps no other call waiting. Between pages, Receive waits for a signal of
// broker.Waiters.
//
// With AutoAck, the order is reversed: each page is acknowledged before it is sent (autoack.go).
//
// # Looks
//
// A Look shows a mailbox in the order in which claims take from it, or together with the queues of the caller's role
// and channels (look.go). A position in it is a sort key and a message. Its statement sorts the keys first, and reads
// the contents of one page alone.
//
// # Limits
//
// A page ends at its number of messages or at a number of bytes. One snapshot reads at most 5,000 messages, and counts
// end at 1,000, so the time that a call takes does not depend on how much waits.
//
// # What it relies on
//
// The package mail knows the caller, the mailboxes that it takes from, and the questions, notices and offers of an
// agent. The core (package broker) records what was delivered or read (NoteDelivered, NoteRead), and acknowledges
// (SettleTx.AckReady). The package admission knows the gates of an agent. The service in package messagesrpc checks
// requests and calls this package.
package inbox

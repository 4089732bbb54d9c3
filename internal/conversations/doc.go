// Package conversations has what agents do with messages that answer each other: questions, replies and threads. A
// sender can also cancel a message, and the broker makes one arrive again that an agent has not noticed.
//
//	Ask       sends a question and waits for its reply
//	Reply     answers a message, and with Ack finishes it in the same transaction
//	Resolve   notes the outcome of a thread, and settles its open questions
//	Threads   lists conversations, the one with the newest message first
//	Resend    makes a message arrive again
//	Cancel    cancels the deliveries of a message that no agent has claimed
//
// # A question
//
// A message that requires a response is a question. It is open until one change settles it:
//
//	send ─► open ── first reply of another agent, Resolve, withdrawal ─► settled
//	         │                                                             ▲
//	         └── deadline ─► overdue: reported once ───────────────────────┘
//
// The row in questions is the record. Its column reply has the revision of the reply. The broker reports an overdue
// question by an event, and by a notice to the first escalation role of the session that an agent has.
//
// # A call of Ask
//
// A waiting call is in memory only, in a list that belongs to the writer (calls.go). The function that sends a reply
// asks Open for the question. If a call waits, the copy for the asker starts as ACKED and the call receives the reply
// after the commit. Otherwise the reply is ordinary mail. A call ends without a reply as soon as none can come: all
// copies of the question have ended (Unanswered), or the question is cancelled or resolved. If a client sends the
// request of a call again, the new call waits for the same reply or returns it.
//
// # Threads
//
// A conversation has no row until it is resolved. Its name is in its messages; the message that starts it may carry no
// name, and then its id is the name. The list walks the messages from the newest one back, a bounded number per
// snapshot (threadlist.go).
//
// # Times
//
// The calendar of the core calls Due when a question is overdue or a resend is due, and sleeps until Next at most. A
// resend gives a delivery a new arrival, so that readers see it again, at most five times.
//
// # What it relies on
//
// A router.Tx sends, a broker.SettleTx settles, and the backlog withdraws. They know this package by the interfaces
// router.Questions, broker.Questions and broker.Timed. The router writes the rows of resends when it sends, and the
// backlog deletes them when a session closes. The registries of sessions and agents call SessionClosed, AgentEnded and
// AgentGone. The tables are in package schema.
package conversations

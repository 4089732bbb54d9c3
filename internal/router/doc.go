// Package router sends messages: it checks a draft, finds the mailboxes of its recipients, writes the message, and
// passes it to the core (package broker), which delivers it to each of them.
//
// Each call has a Tx, for the messages of one actor in one function of the writer. A message passes, in this order:
//
//	Judge     is it too large, or of a type that the session does not know? (Admission)
//	prepare   checks of all that could refuse it: its sender's rights, its times, what it answers, its recipients (answer.go, route.go)
//	insert    the row of the message, which is also the event that it was sent
//	follow    metrics, a span, a question that waits for its answer, and one that is answered
//	deliver   a delivery in each mailbox that is not full
//	Direct    what a directive does beside being delivered (Directives)
//
// # Copies
//
// A change of a feature sends messages by a PartTx: to agents of its choice, in the transaction of the change. If there
// are many agents, the backlog sends the rest of the copies (part.go).
//
// # Questions
//
// A message that requires a response is a question until a change settles it. The package conversations keeps
// questions and the calls that wait for replies. The router knows it as Questions: a send records a question, and asks
// Open whether it answers one. If a call waits for the reply, the copy for the asker begins as ACKED.
package router

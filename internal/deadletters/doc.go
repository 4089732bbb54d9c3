// Package deadletters changes deliveries that no consumer finishes: it lists, redrives and purges dead letters, moves
// waiting messages from one mailbox to another, and makes dead letters of the mail that an agent leaves when it
// deregisters.
//
//	                     redrive                                      purge
//	PENDING, BLOCKED ◄──────────── DEAD ────────────────────────────────────► CANCELLED
//	                                ▲
//	     fatal nack, last attempt ──┤ (the core)
//	an agent deregisters with mail ─┘ (here)
//
// # The list
//
// A caller chooses dead letters by their messages, or by mailbox and filter. A walk finds the latter, newest message
// first. It merges the mailboxes that the caller may see, each in the order of its index, and reads a bounded number of
// rows per snapshot and per call. A call therefore returns a position, and the next call continues there.
//
// # Changes
//
// The core has the counts of waiting deliveries, the consumers that wait, the calendar and the questions. A change here
// writes the rows of its deliveries, and reports each to a broker.SettleTx: Wait for a delivery that waits again, Leave
// for one that waits no longer, Append for the event. Finish then does the rest once for the whole function.
//
// Redrive and purge walk before they enter the writer, which checks again that each delivery is a dead letter. A
// redriven delivery arrives with the revision of its event, without attempts, and is Blocked while an earlier delivery
// with its ordering key is unfinished.
//
// # Departures
//
// AgentGone releases a page of the claims of an agent that deregisters, or makes dead letters of a page of its mail. If
// there is more, a row in departures says so, and the queue continues in pages of 200, each in a writer function, also
// after a restart. Until the end, AgentRegistered refuses the agent, and AwaitDeparture does the rest at once.
package deadletters

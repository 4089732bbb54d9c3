// Package offers puts the mail of an agent before the model of its coding agent (its harness), and records whether
// the model has received it.
//
//	Offer         offers unread messages of the caller's own mailbox
//	OfferNotices  offers unread notices, for a claim that asks for them
//	Settle        records that offers were accepted, or returned
//	Due           returns offers for which there was no evidence in time
//	AgentEnded    returns the open offers to an agent that has failed or stopped
//
// # Why there are offers
//
// A hook of a coding agent writes messages into the conversation with the model, or hands them to a tool. It cannot
// know at that time whether the model gets to see them: a person may interrupt the agent, or the program may end. A
// message that was marked read too early would be lost. Therefore an offered message stays unread. A later event of
// the same session, for example the next call of a tool, shows that the model has continued, and accepts the offer.
// Only then is the message read.
//
// # The life of an offer
//
// An offer is a row for one delivery. The caller chooses a mark, which names the attempt: a repeated call with the
// same mark gets the same messages again. An offer is open for one minute. It is then accepted or returned, each
// with an event. An open offer keeps its message from being offered otherwise; after its return, the message can be
// offered again. An offer that was returned can still be accepted, since evidence may come late. An accepted one
// never changes. If the message was read or acknowledged in the meantime, the offer is accepted whatever its outcome
// is. The newest 20 offers of a delivery are kept.
//
// # Which messages are offered
//
// Directives come first, then messages in order of arrival. An agent may want little (its attention): then it is
// offered directives, answers to its questions and notices alone, or nothing, unless it asks for its mail itself. A
// call searches the oldest 10,000 unfinished deliveries, so its work is bounded.
//
// # What it relies on
//
// The package mail knows the caller and its mailbox. The core (package broker) records what was delivered
// (NoteDelivered). Its calendar calls Due at the time that this package expects, and it calls the other methods of
// broker.Offers. The service in package messagesrpc checks requests and calls this package.
package offers

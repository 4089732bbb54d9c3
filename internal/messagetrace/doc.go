// Package messagetrace makes OpenTelemetry spans of messages and claims. Package tracing exports them.
//
//	Begin    begins the span of a message that an agent sends
//	Sent     records this span after the commit
//	Ended    records the span of a claim after the commit of the change that ends it
//	OfClaim  returns the traceparent of a claim, which the consumer receives with the message
//
// # The spans of a trace
//
// The span of a message is in its content, as a traceparent. The span of a claim is a child of it:
//
//	caller's span ── send ──┬── process (claim 1)
//	                        └── process (claim 2) ── reply ── process
//
// The parent of a message's span is, in this order: the span that the draft names, the span of the call, the span of
// the sender's claim of the message that the draft answers, or the span of that message. A message with none of these
// begins a trace.
//
// # The span of a claim
//
// A claim can last for hours, and the daemon can start again in between. Therefore the broker keeps no open spans in
// memory. The id of a claim's span follows from the message's span, the number of the claim and the mailbox, so the
// consumer knows it from the start. The span is made when the claim ends, with times from the database.
//
// # What it relies on
//
// The packages broker and router know this package by their interfaces Tracer, and have none if traces are not
// exported. A nil *Recorder is then valid for OfClaim alone.
package messagetrace

// Package handoffs passes work from one agent to another: its description, and the claim of its task
// and the locks and tokens that belong to it.
//
//	create ──► PENDING ──accept──► ACCEPTED    the grants move to the acceptor
//	              ├──────reject──► REJECTED    by the recipient, or because it deregisters
//	              └──────cancel──► CANCELLED   by the sender, or because the session closes
//
// A handoff leaves PENDING exactly once: the writer decides. Accepting moves all grants in the same
// transaction, each under a new fence, so no other agent can hold one of them in between. The sender
// keeps the grants until then, and may lose them. An acceptor finds out before it accepts: without its
// consent, a handoff with lost grants is not accepted.
//
// A handoff is an item of work.Table. Its content and the texts of its checklist, which never change, are parts.
package handoffs

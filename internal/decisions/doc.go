// Package decisions keeps decisions: one agent submits something to another agent or to a role,
// which decides it with a verdict. Reviews, plans and shutdowns are decisions of fixed verdicts.
//
//	Open ──► OPEN ──verdict──────────────────────────────► DECIDED
//	          │ ▲                                             ▲
//	   revise │ │ Resubmit (round + 1)                        │
//	          ▼ │                                             │ verdict
//	        REVISING ◄──────────── revise ────────────────┐   │
//	          │ Resubmit, if an escalation has asked for it │   │
//	          └───────────────────────────────────────► ESCALATED
//	OPEN ── deadline, revise in the last round, addressee deregistered ──► ESCALATED
//	unfinished ── Cancel, opener deregisters, session closes ──► CANCELLED
//
// # Verdicts
//
// The addressee decides: the agent, or one agent of the role. After an escalation, one agent of the
// session's escalate_to roles decides, or an operator. If the session names no such roles, the
// addressee may still decide. The opener never decides. The first verdict counts, because the writer
// checks the state in the transaction of the verdict. So a round has exactly one verdict, and one
// more if it escalates.
//
// # Messages
//
// The letter of a round goes to the addressee, that of an escalation (type escalate) to the first of
// the escalate_to roles that has an agent other than the opener. A verdict and a cancellation end the
// letter: the broker withdraws it, or acknowledges it for the agent that has claimed it. The opener
// receives the verdict as a notice.
//
// # Agents that fail or deregister
//
// A decision stays as it is while an agent has failed: the agent may return, and the deadline covers
// the other case. If the addressee deregisters, the decision escalates. If the opener deregisters,
// the broker cancels its unfinished decisions.
//
// # The token
//
// A review may pass the token (producer_critic, SCOPE). Opening it passes the token from the opener
// to the reviewer, an escalation passes it to the role, and the verdict passes it back, each in the
// same transaction. The broker recognises the grant by its fence, so whichever agent of a role has
// collected it, the verdict passes it. If the grant has ended before the verdict, the verdict counts
// nevertheless, and passes nothing. A failed opener comes first for the token when it is back.
//
// # Storage
//
// A decision is an item of work.Table. Its content, which a resubmission replaces, and each verdict are parts.
package decisions

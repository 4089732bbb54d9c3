// Package broker delivers messages: it puts a message into a mailbox or gives it to a consumer that waits, delivers
// under claims, and keeps the state of every delivery. It is the core of messages. Below it is mail, with the types
// and mailboxes; above it are backlog, which does what is too large for one function, and router, which sends.
//
// # A delivery
//
// A message is immutable. Each mailbox that it goes to has a delivery of it, with a state:
//
//	             ┌───────── release; nack or timeout without delay ─────────┐
//	             ▼                                                          │
//	Deliver ─► PENDING ──────────────────── claim ─────────────────────► CLAIMED ── ack ─► ACKED
//	 │          ▲ ▲                                                      │  │              ▲
//	 │          │ └── due ── DELAYED ◄────── nack or timeout ────────────┘  │              │ late ack
//	 ├─► DELAYED ─┘              ▲                                          ▼              │
//	 │                           │ head, not yet due          fatal nack, last attempt ─► DEAD
//	 └─► BLOCKED ── head of its ordering key ─► PENDING                                     │
//	                                               ▲────────────────── redrive ────────────┘
//
// PENDING, DELAYED and BLOCKED deliveries wait; they may also become EXPIRED (time to live) or CANCELLED (withdrawn;
// from DEAD: purged). An ack is accepted from the agent that claimed last, even when the claim has run out, until
// another claims it.
//
// # Gates
//
// Between an agent and its work there may be a gate: it is halted, or its circuit breaker is open. Then its consumers
// receive directives alone, or one probe beside them. The package admission has the gates, and the core asks it
// (gates.go). When a gate becomes wider, it calls Reconsider, and dispatch checks what the agent's consumers may take.
//
// # Dispatch
//
// One function, dispatch, runs in the writer at the end of each transaction that made deliveries ready, gave some to
// consumers, or gave a consumer capacity. It assigns what is ready, and the consumers receive their claims after the
// commit. So no wake-up is lost and none stampedes.
//
// A message for which a consumer waits never becomes ready: Deliver creates its delivery as CLAIMED. That spares a
// third of the writer's work for a message. It is allowed only while dispatch has offered all that is ready in the
// mailbox, and while the consumer has been checked since it last gained capacity, so that nothing is overtaken.
//
// The acks of streams are notes. A round applies those of all streams together, before any function that could see their
// deliveries, and so the messages that follow in the same transaction find the capacity that the acks have freed.
//
// Waiters are memory, and belong to the writer; claims are rows. The deadline of a running claim is memory too, and
// starts again, with a grace, when the broker starts.
//
// # Parts
//
// A Broker consists of parts. Each has its data, its lock and its methods in one file:
//
//	Audiences      who receives the events of a type (package mail)
//	Calendar       delays, times to live, and the work of OnDue (calendar.go)
//	Counters       metrics, and the counts of agents (counters.go)
//	Failures       the claims of agents that have failed or stopped (failure.go)
//	Mailboxes      finds and makes mailboxes (package mail)
//	RunningClaims  when claims end, and what then happens (running.go)
//	Streams        open streams of claims, by consumer (streams.go, streamframe.go)
//	Waiters        consumers and readers that wait (waiters.go)
//
// Each call has its own value: a Post on its way to mailboxes (deliver.go), claimCall (claim.go, claimgiven.go),
// SettleTx (settle.go, settletx.go, held.go, acks.go), and one run of dispatch in dispatchRun (dispatch.go).
package broker

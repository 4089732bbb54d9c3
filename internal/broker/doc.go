// Package broker carries messages: it routes them to mailboxes, hands them out under claims, and keeps the
// state of every delivery.
//
// # A delivery
//
// A message is immutable. Each mailbox it goes to gets a delivery with a state of its own:
//
//	          ┌───────── release; nack or time-out without delay ────────┐
//	          ▼                                                          │
//	send ─► PENDING ──────────────────── claim ─────────────────────► CLAIMED ── ack ─► ACKED
//	 │        ▲ ▲                                                      │  │              ▲
//	 │        │ └── due ── DELAYED ◄────── nack or time-out ───────────┘  │              │ late ack
//	 ├─► DELAYED               ▲                                          ▼              │
//	 │                         │ head, not yet due          fatal nack, last attempt ─► DEAD
//	 └─► BLOCKED ── head of its ordering key ─► PENDING                                   │
//	                                             ▲────────────────── redrive ────────────┘
//
// PENDING, DELAYED and BLOCKED deliveries wait; they may also become EXPIRED (time to live) or
// CANCELLED (withdrawn; from DEAD: purged). An ack is accepted from whoever claimed last, even when the
// claim has run out, until somebody else claims.
//
// # Mailboxes
//
// Every agent has one, and so has every role and channel that was sent a message for ONE of them. A
// message has one target, so a caller can see at most one delivery of it: a copy in its own mailbox, or the one
// in a queue. That is why message and claim number are enough to name a claim ("4711.2").
//
// # Order
//
// A mailbox hands out by rank: the time of sending minus priority × ageing, smallest first, ties by
// revision. All items age alike, so a rank never changes and is one indexed column. With ageing 0 the
// rank is the priority alone. Receive goes by arrival instead: the revision at which a delivery became visible.
//
// Directives have ranks of their own, in front of all others.
//
// # Backlog
//
// A change that would touch many deliveries at once (the ageing of a session changes, an agent fails) does one page. The
// backlog (backlog.go) does the rest in pages of 200, each in a writer function, and resumes after a restart by the rows
// of reranks.
//
// # Gates
//
// Between an agent and its work there may be a gate: it is halted, or its circuit breaker is open. Then its consumers are
// given directives alone, or one probe beside them. The package admission has the gates, and the core asks it (gate.go).
// When a gate becomes wider, it has dispatch reconsider what the agent's consumers may take.
//
// # Questions
//
// A message that requires a response is a question until a change settles it. Package conversations keeps questions and
// the calls that wait for replies. The core knows it as Questions: a send records a question, and asks Open whether it
// answers one. If a call waits for the reply, the copy for the asker starts as ACKED. The calendar calls Due for
// overdue questions and for deliveries that are to arrive again.
//
// # Notices
//
// A notice is a message with which the broker informs an agent (package notices). Its delivery starts in state NOTICE and not in
// PENDING, so claims, attempts, breakers and the counts of waiting mail need no exception for it:
//
//	Notify ─► NOTICE ── the agent reads it ──────────► ACKED
//	             ├───── it is no longer true ────────► CANCELLED
//	             └───── no agent reads it for 24 h ──► EXPIRED
//
// The column about of its message has the revision of the grant or question that the notice is about. The change that makes
// the notice untrue withdraws it by that, in the same transaction.
//
// # Handing out
//
// One function, dispatch, runs in the writer at the end of each transaction that made deliveries
// ready or gave a consumer room. It decides who gets what, so no wake-up is lost and none stampedes;
// consumers are told after the commit. A message that finds a consumer waiting while it is sent is
// granted to it at once (handoff.go), and dispatch tells it with the rest. Waiters are memory; claims are rows. The running deadline of a claim is
// memory too and starts again, with a grace, when the broker does.
package broker

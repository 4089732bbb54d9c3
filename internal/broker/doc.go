// Package broker carries messages: it routes them to mailboxes, hands them out under claims, and keeps the
// state of every delivery.
//
// # A delivery
//
// A message is immutable. Each mailbox it goes to gets a delivery with a state of its own:
//
//	          ┌───────── release; nack or timeout without delay ─────────┐
//	          ▼                                                          │
//	send ─► PENDING ──────────────────── claim ─────────────────────► CLAIMED ── ack ─► ACKED
//	 │        ▲ ▲                                                      │  │              ▲
//	 │        │ └── due ── DELAYED ◄────── nack or timeout ────────────┘  │              │ late ack
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
// A change that would touch many deliveries at once (the ageing of a session changes, an agent fails) does one page.
// The backlog (chores.go) does the rest in pages of 200, each in a writer function, and resumes after a restart by the
// rows of reranks and work_backlog.
//
// # Gates
//
// Between an agent and its work there may be a gate: it is halted, or its circuit breaker is open. Then its consumers are
// given directives alone, or one probe beside them. The package admission has the gates, and the core asks it (admission.go).
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
// # Dispatch
//
// One function, dispatch, runs in the writer at the end of each transaction that made deliveries ready, gave some to
// consumers, or gave a consumer capacity. It assigns what is ready, and the consumers receive their claims after the
// commit. So no wake-up is lost and none stampedes.
//
// A message for which a consumer waits never becomes ready: the function that sends it creates its delivery as CLAIMED.
// That spares a third of the writer's work for a message. It is allowed only while dispatch has offered all that is ready
// in the mailbox, and while the consumer has been checked since it last gained capacity, so that nothing is overtaken.
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
//	Audiences      who receives the events of a type (channel.go)
//	Calendar       delays, times to live, deadlines of questions, resends, offers (calendar.go)
//	Chores         the backlog: ranks, closed sessions, copies, withdrawals (chores.go, copies.go, withdraw.go)
//	Counters       metrics, and the counts of agents (counters.go)
//	Failures       the claims of agents that have failed or stopped (failure.go)
//	Mailboxes      finds and creates mailboxes (mailbox.go)
//	RunningClaims  when claims end, and what then happens (running.go)
//	Streams        open streams of claims, by consumer (streams.go, streamframe.go)
//	Traces         who traces messages (trace.go)
//	Waiters        consumers and readers that wait (waiters.go)
//
// Each call has its own value: SendTx (send.go, post.go, route.go), claimCall (claim.go), SettleTx (settle.go, acks.go), and one run
// of dispatch in dispatchRun (dispatch.go).
package broker

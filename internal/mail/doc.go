// Package mail has what all packages around messages share: messages, mailboxes and deliveries, as types and as reads
// of their rows. It also makes mailboxes and channels.
//
// # Messages and deliveries
//
// A message is immutable. Each mailbox that it goes to has a delivery of it, with a state (State). The package router
// sends messages, and the package broker delivers them.
//
// # Mailboxes
//
// Every agent has a mailbox, and so has every role and channel that was sent a message for ONE of them. A message has
// one target, so a caller can see at most one delivery of it: a copy in its own mailbox, or the one in a queue. That is
// why message and claim number are enough to name a claim ("4711.2").
//
// # Order
//
// A mailbox delivers by rank: the time of sending minus priority × ageing, smallest first, ties by revision. All
// deliveries age alike, so a rank never changes and is one indexed column. With ageing 0 the rank is the priority
// alone. Receive goes by arrival instead: the revision at which a delivery became visible. Directives have ranks in
// front of all others.
//
// # Notices
//
// A notice is a message with which the broker informs an agent (package notices). Its delivery starts in state NOTICE
// and not in PENDING, so claims, attempts, breakers and the counts of waiting mail need no exception for it:
//
//	Notify ─► NOTICE ── the agent reads it ───────► ACKED
//	             ├───── it is no longer true ─────► CANCELLED
//	             └───── no agent reads it for 24 h ► EXPIRED
//
// The column about of its message has the revision of the grant or question that the notice is about. The change that
// makes the notice untrue withdraws it by that, in the same transaction.
package mail

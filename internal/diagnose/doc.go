// Package diagnose explains why messages are stuck, and counts the messages in mailboxes. It reads, and changes
// nothing.
//
// # Findings
//
// Explain answers a question about a message, an agent, a role, a channel or a whole session with findings. A
// finding is a fact with its severity, its reasons, and the calls that free the messages (package finding has
// the type and its form in the API). Each subject has a list of checks: see checks. The checks of one answer share
// an explanation, which remembers which agents have a finding already. It is built of three
// parts, each of which embeds the one before:
//
//   - a rowReader reads rows, and keeps the first error;
//   - a roster reads the agents of the session once, and says why they get no work;
//   - a deliveryExplainer explains one delivery of a message.
//
// A fact appears once. The finding of an agent that gets no work covers the mailboxes and the overdue questions
// that wait for this agent alone. The finding of a queue covers its agents, so queues come first.
//
// # Takers
//
// A message that could be delivered waits for an agent. takers.go finds the agents that may take from a mailbox,
// and the reason why each does not: it has failed or stopped, it is halted, its circuit breaker is open, or it
// does not ask for work. The reason decides the severity and the calls.
//
// # Limits
//
// An answer must stay quick with any number of messages, so each statement uses an index and has a limit: the
// fullest 200 mailboxes, 20 findings of each kind, 10,000 messages before another. A text says "or more" where a
// count has reached its limit.
//
// # What it relies on
//
// The package mail says which mailboxes an agent takes from and how channels are named; the core (package broker)
// whether the agent's consumers ask for work, and when a running claim ends. Crew supplies the health of agents, and
// Sessions the settings of sessions. The locks and the decisions call Condition for a sentence about an agent.
package diagnose

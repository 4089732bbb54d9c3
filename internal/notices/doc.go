// Package notices sends the messages that no client sends: the broker and its features report changes with them.
//
//	Notify    a notice      informs an agent, or all agents of a role; an agent reads it and owes nothing
//	Post      a letter      asks agents to act, in the name of an agent; it is claimed and acknowledged as all mail
//	Announce  an event      goes to the agents that subscribe to the channel of its type
//
// # Part of a change
//
// Each message belongs to the change that it reports, and is sent in the same transaction: if the change fails, no
// message remains. A message must not undo the change, and must not make it much larger. So a notice to an agent that
// does not exist is no error, notices and letters go into full mailboxes, and none of the checks of a client's message
// applies. A router.PartTx sends such messages.
//
// If many agents are to receive a copy, the function of the change sends as many copies as CopiesAtOnce allows. The
// package backlog sends the others (CopyLater), a page in each function, to the agents that have the role or
// subscribe at that time.
//
// # After it is sent
//
// The core keeps the state of all deliveries. The column about of a message has the revision of the grant, question or
// piece of work that the message is about. When that changes, its feature calls Withdraw of the backlog with this
// revision, which ends the deliveries of the messages about it. The core also marks notices read, and offers
// them to coding agents.
//
// # What it relies on
//
// The directory of sessions and agents, and the router. The log of events calls Announce for each event that may go
// to channels; mail.Audiences keeps in memory who receives the events of each type.
package notices

// Package channels has the calls about channels: agents subscribe to them, and agents and operators configure and list
// them.
//
// # A channel
//
// A channel is a named topic of a session. It has a mailbox of the kind 3, with a row in the table channels:
//
//	mailboxes ─┬─ channels       the default time to live of its messages, and how long they are kept
//	           └─ subscriptions  the agents that receive what is sent to it
//
// The first subscription, configuration or message makes the channel. It stays until its session is deleted.
//
// A message to a channel goes to the mailbox of each subscriber. A message for ONE of the subscribers waits in the
// channel's own mailbox, from which all of them take. The package router does both. The package mail reads these
// tables for it, and makes the row of a channel; the core (package broker) removes the subscriptions of an agent that
// deregisters.
//
// A channel whose name begins with event/ receives events of the log as messages. It is configured like any other.
//
// # What a change does
//
// Subscribe and Unsubscribe change one row. SubscriptionsChanged then clears what the core keeps in memory about
// subscribers, and moves the open streams of the agent, so that a stream takes from a new channel at once. Configure
// writes the two settings, each only if it is given. Each change appends one event to the log, and returns the same
// answer if its request is sent again.
//
// OnRekept has the feature retention run again when a call changes how long a channel's messages are kept.
//
// # What it relies on
//
// The core, for who acts and for mailboxes; the log; the catalog of types, for a warning about events of an unknown
// type. It has no goroutine and keeps nothing in memory.
package channels

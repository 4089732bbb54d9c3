// Package agentmessages is the format agent-messages of the bridge: a folder .agent-messages with an inbox for each
// agent, into which the senders write their messages themselves. One file is thus both the send and the delivery.
package agentmessages

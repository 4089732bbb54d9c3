// Package hook handles the events of coding agents: their hooks call brokerctl hook NAME.
//
// A hook passes new messages to the model, locks the files that a tool writes, and reports what the session does. It must
// not hinder the coding agent: without an answer of the broker in time, tools run, unless --fail says otherwise.
package hook

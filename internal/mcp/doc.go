// Package mcp has the tools of the Model Context Protocol. `brokerctl mcp` serves them on standard input and
// output, and the daemon serves them at /mcp.
//
//	model ─► tool call ─► row (rows.go) ─► calls of the API ─► text in frames (package prompt)
//	                                          │
//	           brokerctl: its connection ─────┤
//	           daemon: handlers in process ───┘
//
// A tool has actions. One table has a row for each way to carry out an action: the arguments that it takes, the fields
// of the request that they set, and a function that makes the calls. Within an action, the first row applies that takes
// all given arguments and needs no other.
//
// # Next calls
//
// Work items and findings of the broker propose calls of the API (package calls). The table turns such a call into the
// call of a tool with the same effect. A call that no row makes is a line for a person with a shell.
//
// # Who calls
//
// An Agent is the connection of one client, bound to one agent. A tool takes no name of the calling agent, so a
// model cannot act as another one.
//
// # Results
//
// Every fault is a result that says what to do. Text of others stands in frames with a new mark for each result. A
// result has at most 64 KiB. A call waits at most 50 s, because many clients end it after 60 s.
//
// # Receipts
//
// A result that shows unread mail or notices offers them (OfferMessages), since the model may never see it: its user
// may have stopped the turn. The agent's next call of a tool is the evidence that the model has continued, and accepts
// the offers. A claim is the agent's own act, and stays one.
package mcp

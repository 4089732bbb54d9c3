// Package toolcall translates between the tools of `brokerctl mcp` and command lines of brokerctl.
//
// A language model calls a tool with JSON arguments. Command turns them into the words of a command
// line, which brokerctl runs in its own process. The output of brokerctl suggests further command
// lines. Call turns such a command line into the tool call that has the same effect, for a model
// that has no shell.
//
// One table (rows.go) serves both directions: each row has a tool, an action and a template of a
// command line. Within an action, the first row applies that takes all given arguments and needs no
// other.
package toolcall

// Package client is the Go client of brokerd.
//
//	c, err := client.FromEnvironment(ctx) // or client.Dial(ctx, client.WithAddress("unix:///path"), …)
//	if err != nil { … }
//	defer c.Close()
//	c = c.As("builder-1")
//
// A Client is one connection together with the identity that its calls carry: session, agent and
// incarnation. As and In return further clients on the same connection. Every RPC is at hand through the
// generated stubs (Messages, Agents, Channels, Locks, Tokens, State, Events, Sessions, Admin); what
// takes more than a call stands beside them:
//
//   - Join registers the agent, keeps its lease, and reports at the end that it has stopped. It registers the agent
//     again after a loss, unless another process has taken it over.
//   - Sender sends messages, pipelined, and sends again after a lost connection what was not yet
//     confirmed, without duplicates.
//   - Locker locks over one stream, for who locks often.
//   - Follow reads the mailbox of the agent and FollowEvents the event log, as iterators that reconnect and
//     resume where they stopped.
//   - UploadArtifact and DownloadArtifact transfer contents. They repeat or resume a transfer that breaks.
//   - Work claims messages and gives each to a handler, whose returned error says what becomes of it.
//
// Paths turns the names of files into the paths of locks: one file, one lock, whatever it is called and in whichever git worktree it lies.
//
// Members, Sender, Locker, Follow and Work outlive the broker: they reconnect, waiting longer from try to try (at most 3 s), until
// their context ends or the broker answers with an error that trying again does not heal.
//
// Errors of calls are gRPC statuses; Reason, Fields and RetryDelay read what the broker says beyond the code.
package client

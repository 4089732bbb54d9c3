package bridge

import (
	"context"

	pb "brokerd/gen/brokerd/v1"
)

// A format is the layout of one kind of folder. The goroutine of Run calls its methods.
type format interface {
	// prepare creates the format's folders and takes over what was there before the first start.
	prepare(ctx context.Context) error
	// agents returns the names of the agents that the folder shows.
	agents() ([]string, error)
	// dirs returns the folders whose changes matter, relative to the folder of the bridge.
	dirs() ([]string, error)
	// part returns the part of the folder that belongs to one agent, or for "" to no agent; nil if
	// there is none. receives says that the bridge delivers the agent's mail to the folder; an agent
	// that another client has registered only has its files read.
	part(agent string, receives bool) part
}

// A part is what one goroutine works on. Its methods are not called concurrently. An error makes
// the goroutine try again later.
type part interface {
	// open resumes what an earlier run has left. It is called before the other methods.
	open(ctx context.Context) error
	// collect sends a few of the new messages of the files and acknowledges mail that the agent has
	// finished. more says that there is more to do.
	collect(ctx context.Context) (more bool, err error)
	// deliver writes messages to the files. A message can come again, and is then not written again.
	deliver(ctx context.Context, messages []*pb.Message) error
}

// A kind is an entry of the table of formats.
type kind struct {
	name string
	// root returns the folder to synchronise for the folder that the user names.
	root func(dir string) (string, error)
	make func(*bridge) format
	// queue says that the agents take messages to one agent of their role. The folder must show when
	// an agent has finished a message.
	queue bool
	// parts says that a pattern that matches no name means the agents with a matching part in their names.
	parts bool
}

// kinds returns the table of formats.
func kinds() []kind {
	return []kind{
		{name: "jsonl", root: teamFolder, make: newJSONL},
		{name: "maildir", root: func(dir string) (string, error) { return dir, nil }, make: newMaildir,
			queue: true, parts: true},
		{name: "agent-messages", root: agentMessagesRoot, make: newAgentMessages, queue: true},
	}
}

// Formats returns the names of the formats.
func Formats() []string {
	var names []string
	for _, k := range kinds() {
		names = append(names, k.name)
	}
	return names
}

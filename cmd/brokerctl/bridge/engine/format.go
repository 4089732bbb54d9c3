package engine

import (
	"context"

	pb "brokerd/gen/brokerd/v1"
)

// A Format is the layout of one kind of folder. The goroutine of Run calls its methods.
type Format interface {
	// Prepare creates the format's folders and takes over what was there before the first start.
	Prepare(ctx context.Context) error
	// Agents returns the names of the agents that the folder shows.
	Agents() ([]string, error)
	// Dirs returns the folders whose changes matter, relative to the folder of the bridge.
	Dirs() ([]string, error)
	// Part returns the part of the folder that belongs to one agent, or for "" to no agent; nil if
	// there is none. receives says that the bridge delivers the agent's mail to the folder; an agent
	// that another client has registered only has its files read.
	Part(agent string, receives bool) Part
}

// A Part is what one goroutine works on. Its methods are not called concurrently. An error makes
// the goroutine try again later.
type Part interface {
	// Open resumes what an earlier run has left. It is called before the other methods.
	Open(ctx context.Context) error
	// Collect sends a few of the new messages of the files and acknowledges mail that the agent has
	// finished. more says that there is more to do.
	Collect(ctx context.Context) (more bool, err error)
	// Deliver writes messages to the files. A message can come again, and is then not written again.
	Deliver(ctx context.Context, messages []*pb.Message) error
}

// A Kind is what the engine needs to know of a format.
type Kind struct {
	Name string
	// Root returns the folder to synchronise for the folder that the user names.
	Root func(dir string) (string, error)
	Make func(*Bridge) Format
	// Queue says that the agents take messages to one agent of their role. The folder must show when
	// an agent has finished a message.
	Queue bool
	// Parts says that a pattern that matches no name means the agents with a matching part in their names.
	Parts bool
}

// Batch is how many files or lines a part handles before it reads the mail.
const Batch = 20

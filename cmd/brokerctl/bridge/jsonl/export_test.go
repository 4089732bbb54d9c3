package jsonl

import (
	"context"
	"os"

	"brokerd/client"
	"brokerd/cmd/brokerctl/bridge/engine"
	pb "brokerd/gen/brokerd/v1"
)

// A Mailbox is the mailbox file of an agent, without a bridge that runs.
type Mailbox struct{ *mailbox }

// OpenMailbox opens the mailbox file of an agent in a folder.
func OpenMailbox(ctx context.Context, c *client.Client, root *os.Root, agent string) (*Mailbox, error) {
	b := engine.New(engine.Options{Client: c, Log: func(string) {}}, Kind(), root, "test")
	p := newFormat(b).Part(agent, true).(*mailbox)
	return &Mailbox{p}, p.Open(ctx)
}

// Append appends messages to an open file.
func (m *Mailbox) Append(ctx context.Context, file *os.File, messages []*pb.Message) error {
	return m.write(ctx, file, messages)
}

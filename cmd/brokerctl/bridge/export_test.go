package bridge

import (
	"context"
	"os"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
)

// Edit changes a file in a folder as the bridge does.
func Edit(root *os.Root, name string, change func([]byte) ([]byte, error)) error {
	if err := root.MkdirAll(editing, 0o755); err != nil {
		return err
	}
	return (&bridge{root: root}).edit(name, change)
}

// ResumeEdits finishes the changes in a folder that a kill has interrupted.
func ResumeEdits(root *os.Root) error { return (&bridge{root: root}).resumeEdits() }

// WithField returns a JSON object with a new value of a field.
func WithField(object, name, value string) (string, error) {
	text, err := withField([]byte(object), name, []byte(value))
	return string(text), err
}

// Take takes a file as an outbox does before it sends it.
func Take(root *os.Root, name, owner string) error {
	_, err := (&bridge{root: root}).take(name, owner)
	return err
}

// A Mailbox is the mailbox file of an agent, without a bridge that runs.
type Mailbox struct{ p *mailbox }

// OpenMailbox opens the mailbox file of an agent in a folder.
func OpenMailbox(ctx context.Context, c *client.Client, root *os.Root, agent string) (*Mailbox, error) {
	b := &bridge{Options: Options{Log: func(string) {}}, broker: c.As(""), root: root, id: "test"}
	p := newJSONL(b).part(agent, true).(*mailbox)
	return &Mailbox{p}, p.open(ctx)
}

// Collect sends the new lines.
func (m *Mailbox) Collect(ctx context.Context) error {
	_, err := m.p.collect(ctx)
	return err
}

// Deliver appends messages.
func (m *Mailbox) Deliver(ctx context.Context, messages []*pb.Message) error {
	return m.p.deliver(ctx, messages)
}

// Append appends messages to an open file.
func (m *Mailbox) Append(ctx context.Context, file *os.File, messages []*pb.Message) error {
	return m.p.write(ctx, file, messages)
}

// An Inbox is the inbox of an agent, without a bridge that runs. It has the file m.json for the message with an id.
type Inbox struct{ box *agentBox }

// NewInbox returns the inbox of an agent in a folder.
func NewInbox(c *client.Client, root *os.Root, agent, id string) *Inbox {
	b := &bridge{Options: Options{Settle: maxAbsence}, broker: c.As(""), root: root, id: "test"}
	box := &agentBox{inbox: newInbox(b, agent, "inbox"), seen: map[string]fileVersion{}}
	box.entries[id] = "m.json"
	return &Inbox{box}
}

// Settle acknowledges the messages whose files are gone, and returns how many.
func (in *Inbox) Settle(ctx context.Context) (int, error) { return in.box.settle(ctx) }

// Status returns the status that the file has, if it has changed.
func (in *Inbox) Status() (string, error) {
	status, _, _, err := in.box.status("m.json")
	return status, err
}

// NewArchive returns a function that moves a file of a folder to the archive of today.
func NewArchive(root *os.Root) func(dir, name string) error {
	return newAgentMessages(&bridge{root: root}).(*agentMessages).archive
}

// Reject moves a file to rejected/, whose event it publishes as a client.
func Reject(ctx context.Context, c *client.Client, root *os.Root, name, reason string) error {
	b := &bridge{Options: Options{Log: func(string) {}}, broker: c.As(""), root: root, id: "test"}
	return b.reject(ctx, name, name, reason)
}

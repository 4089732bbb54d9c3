package agentmessages

import (
	"context"
	"os"
	"time"

	"brokerd/client"
	"brokerd/cmd/brokerctl/bridge/engine"
)

// Edit changes a file in a folder as the bridge does.
func Edit(root *os.Root, name string, change func([]byte) ([]byte, error)) error {
	if err := root.MkdirAll(editing, 0o755); err != nil {
		return err
	}
	return edit(&engine.Folder{Root: root}, name, change)
}

// ResumeEdits finishes the changes in a folder that a kill has interrupted.
func ResumeEdits(root *os.Root) error { return resumeEdits(&engine.Folder{Root: root}) }

// WithField returns a JSON object with a new value of a field.
func WithField(object, name, value string) (string, error) {
	text, err := withField([]byte(object), name, []byte(value))
	return string(text), err
}

// An Inbox is the inbox of an agent, without a bridge that runs. It has the file m.json for the message with an id.
type Inbox struct{ box *box }

// NewInbox returns the inbox of an agent in a folder.
func NewInbox(c *client.Client, root *os.Root, agent, id string) *Inbox {
	b := engine.New(engine.Options{Client: c, Settle: time.Second}, Kind(), root, "test")
	box := &box{Inbox: engine.NewInbox(b, agent, "inbox"), b: b, seen: map[string]fileVersion{}}
	box.Entries[id] = "m.json"
	return &Inbox{box}
}

// Settle acknowledges the messages whose files are gone, and returns how many.
func (in *Inbox) Settle(ctx context.Context) (int, error) { return in.box.Settle(ctx) }

// Status returns the status that the file has, if it has changed.
func (in *Inbox) Status() (string, error) {
	status, _, _, err := in.box.status("m.json")
	return status, err
}

// NewArchive returns a function that moves a file of a folder to the archive of today.
func NewArchive(root *os.Root) func(dir, name string) error {
	return (&format{b: &engine.Bridge{Folder: &engine.Folder{Root: root}}}).archive
}

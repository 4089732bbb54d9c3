package maildir

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"path"
	"time"

	"brokerd/cmd/brokerctl/bridge/engine"
	"brokerd/cmd/brokerctl/bridge/mailfile"
	pb "brokerd/gen/brokerd/v1"
)

// Folders of the format maildir.
const (
	inboxDir   = "messages/inbox"
	outboxDir  = "messages/outbox"
	contextDir = "context"
)

// format is the format maildir: one file per message, an inbox and an outbox for each agent.
type format struct{ b *engine.Bridge }

// Kind returns the kind of the format maildir.
func Kind() engine.Kind {
	return engine.Kind{Name: "maildir", Root: func(dir string) (string, error) { return dir, nil }, Make: newFormat,
		Queue: true, Parts: true}
}

func newFormat(b *engine.Bridge) engine.Format { return &format{b} }

func (f *format) Prepare(context.Context) error {
	for _, dir := range []string{inboxDir, outboxDir, contextDir} {
		if err := f.b.Folder.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}

func (f *format) Agents() ([]string, error) {
	inboxes, err := f.b.Folder.Folders(inboxDir)
	outboxes, err2 := f.b.Folder.Folders(outboxDir)
	return append(inboxes, outboxes...), errors.Join(err, err2)
}

func (f *format) Dirs() ([]string, error) {
	dirs := []string{inboxDir, outboxDir}
	for _, parent := range dirs {
		names, err := f.b.Folder.Folders(parent)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			dirs = append(dirs, path.Join(parent, name))
		}
	}
	_ = f.b.Folder.Walk(contextDir, func(name string, info fs.FileInfo) { // sharedFiles reports its error
		if info.IsDir() {
			dirs = append(dirs, name)
		}
	})
	return dirs, nil
}

func (f *format) Part(agent string, receives bool) engine.Part {
	if agent == "" {
		return newSharedFiles(f.b, contextDir)
	}
	if !receives { // only the other client speaks for the agent: its files wait
		return nil
	}
	return &mailbox{agent: agent, inbox: engine.NewInbox(f.b, agent, path.Join(inboxDir, agent)),
		outbox: newOutbox(f.b, agent, path.Join(outboxDir, agent))}
}

// A mailbox is the inbox and the outbox of an agent.
type mailbox struct {
	agent  string
	inbox  *engine.Inbox
	outbox *outbox
}

func (p *mailbox) Open(ctx context.Context) error {
	return errors.Join(p.inbox.Open(ctx), p.outbox.open())
}

func (p *mailbox) Collect(ctx context.Context) (bool, error) {
	settled, err := p.inbox.Settle(ctx)
	if err != nil {
		return false, err
	}
	sent, err := p.outbox.send(ctx, p.read)
	return sent+settled > 0, err
}

func (p *mailbox) Deliver(ctx context.Context, messages []*pb.Message) error {
	var letters []engine.Letter
	for _, m := range messages {
		data, err := render(m, p.agent)
		if err != nil {
			return err
		}
		letters = append(letters, engine.Letter{Message: m, Data: data})
	}
	return p.inbox.Deliver(ctx, letters)
}

// read makes a message of a file of the outbox.
func (p *mailbox) read(data []byte) (sender string, m *pb.Message, err error) {
	f, err := mailfile.Parse(data)
	if err != nil {
		return "", nil, err
	}
	var id, from, to, timestamp string
	var priority json.RawMessage
	m = &pb.Message{}
	labels := map[string]string{}
	var file struct {
		File string `json:"file"`
		Line int32  `json:"line"`
	}
	err = errors.Join(f.Take("id", &id), f.Take("from", &from), f.Take("to", &to), f.Take("timestamp", &timestamp),
		f.Take("type", &m.Type), f.Take("subject", &m.Subject), f.Take("body", &m.Body),
		f.Take("requires_response", &m.RequiresResponse),
		f.Take("thread_id", &m.ThreadId), f.Take("in_reply_to", &m.InReplyTo), f.Take("labels", &labels),
		f.Take("priority", &priority))
	if err != nil {
		return "", nil, err
	}
	if from != "" && from != p.agent {
		return "", nil, mailfile.Refusalf("from is %q; the outbox belongs to %s", mailfile.OneLine(from, 128), p.agent)
	}
	if m.Target, err = mailfile.Target(to); err != nil {
		return "", nil, err
	}
	if context := f["context"]; context != nil && exactly(context, &file) {
		m.Files = []*pb.FileReference{{Path: file.File, Line: file.Line}}
		delete(f, "context")
	}
	if err := f.TakePriority(priority, m); err != nil {
		return "", nil, err
	}
	if m.ThreadId == "" && len(id) <= 128 {
		m.ThreadId = id // the sender knows the message by this id
	}
	f.Set("original_id", id)
	f.Set("original_timestamp", timestamp)
	return p.agent, m, f.Keep(m, labels)
}

// exactly reads a JSON value that has no other fields than into.
func exactly(raw json.RawMessage, into any) bool {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	return d.Decode(into) == nil
}

// render writes a message as a file of an inbox.
func render(m *pb.Message, agent string) ([]byte, error) {
	labels, f, payload := mailfile.Kept(m)
	out := mailfile.Fields{}
	out.Set("id", m.GetId())
	out.Set("timestamp", m.GetCreatedAt().AsTime().Format(time.RFC3339Nano))
	out.Set("from", m.GetSender())
	out.Set("to", mailfile.Recipient(m.GetTarget(), "all"))
	out.Set("type", mailfile.TypeName(m))
	out.Set("subject", m.GetSubject())
	out["body"] = mailfile.Quote(cmp.Or(m.GetBody(), m.GetSubject())) // readers expect one
	out.Set("priority", mailfile.PriorityWord(m.GetPriority()))
	out.Set("thread_id", m.GetThreadId())
	out.Set("in_reply_to", m.GetInReplyTo())
	out.Set("task_id", m.GetTaskId())
	out.Set("requires_response", m.GetRequiresResponse())
	out.Set("labels", labels)
	if payload != "" {
		out["payload"] = json.RawMessage(payload)
	}
	for i, file := range m.GetFiles() {
		if i == 0 {
			out.Set("context", map[string]any{"file": file.GetPath(), "line": file.GetLine()})
		}
	}
	for name, value := range f {
		out[name] = value
	}
	text, err := json.MarshalIndent(out, "", "  ")
	return append(text, '\n'), err
}

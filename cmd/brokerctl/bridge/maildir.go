package bridge

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"time"

	pb "brokerd/gen/brokerd/v1"
)

// Folders of the format maildir.
const (
	maildirInbox   = "messages/inbox"
	maildirOutbox  = "messages/outbox"
	maildirContext = "context"
)

// batch is how many files or lines a part handles before it looks at the mail.
const batch = 20

// maildir is the format maildir: one file per message, an inbox and an outbox for each agent.
type maildir struct{ b *bridge }

func newMaildir(b *bridge) format { return &maildir{b} }

func (f *maildir) prepare(context.Context) error {
	for _, dir := range []string{maildirInbox, maildirOutbox, maildirContext} {
		if err := f.b.root.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}

func (f *maildir) agents() ([]string, error) {
	inboxes, err := f.b.folders(maildirInbox)
	outboxes, err2 := f.b.folders(maildirOutbox)
	return append(inboxes, outboxes...), errors.Join(err, err2)
}

func (f *maildir) dirs() ([]string, error) {
	dirs := []string{maildirInbox, maildirOutbox}
	for _, parent := range dirs {
		names, err := f.b.folders(parent)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			dirs = append(dirs, path.Join(parent, name))
		}
	}
	_ = f.b.walk(maildirContext, func(name string, info fs.FileInfo) { // sharedFiles reports its error
		if info.IsDir() {
			dirs = append(dirs, name)
		}
	})
	return dirs, nil
}

func (f *maildir) part(agent string, receives bool) part {
	if agent == "" {
		return newSharedFiles(f.b, maildirContext)
	}
	if !receives { // only the other client speaks for the agent: its files wait
		return nil
	}
	return &maildirPart{b: f.b, agent: agent, inbox: newInbox(f.b, agent, path.Join(maildirInbox, agent)),
		outbox: newOutbox(f.b, agent, path.Join(maildirOutbox, agent))}
}

// A maildirPart is the inbox and the outbox of an agent.
type maildirPart struct {
	b      *bridge
	agent  string
	inbox  *inbox
	outbox *outbox
}

func (p *maildirPart) open(ctx context.Context) error {
	return errors.Join(p.inbox.open(ctx), p.outbox.open())
}

func (p *maildirPart) collect(ctx context.Context) (bool, error) {
	settled, err := p.inbox.settle(ctx)
	if err != nil {
		return false, err
	}
	sent, err := p.outbox.send(ctx, p.read)
	return sent+settled > 0, err
}

func (p *maildirPart) deliver(ctx context.Context, messages []*pb.Message) error {
	var letters []letter
	for _, m := range messages {
		data, err := maildirText(m, p.agent)
		if err != nil {
			return err
		}
		letters = append(letters, letter{message: m, data: data})
	}
	return p.inbox.deliver(ctx, letters)
}

// read makes a message of a file of the outbox.
func (p *maildirPart) read(data []byte) (sender string, m *pb.Message, err error) {
	f, err := parse(data)
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
	err = errors.Join(f.take("id", &id), f.take("from", &from), f.take("to", &to), f.take("timestamp", &timestamp),
		f.take("type", &m.Type), f.take("subject", &m.Subject), f.take("body", &m.Body),
		f.take("requires_response", &m.RequiresResponse),
		f.take("thread_id", &m.ThreadId), f.take("in_reply_to", &m.InReplyTo), f.take("labels", &labels),
		f.take("priority", &priority))
	if err != nil {
		return "", nil, err
	}
	if from != "" && from != p.agent {
		return "", nil, refusal(fmt.Sprintf("from is %q; the outbox belongs to %s", oneLine(from, 128), p.agent))
	}
	if m.Target, err = target(to); err != nil {
		return "", nil, err
	}
	if context := f["context"]; context != nil && exactly(context, &file) {
		m.Files = []*pb.FileReference{{Path: file.File, Line: file.Line}}
		delete(f, "context")
	}
	if err := f.takePriority(priority, m); err != nil {
		return "", nil, err
	}
	if m.ThreadId == "" && len(id) <= 128 {
		m.ThreadId = id // the sender knows the message by this id
	}
	f.set("original_id", id)
	f.set("original_timestamp", timestamp)
	return p.agent, m, f.keep(m, labels)
}

// takePriority reads a priority. A word for which another one is written is kept as a field.
func (f fields) takePriority(raw json.RawMessage, m *pb.Message) error {
	text := string(bytes.Trim(raw, `"`))
	if text == "" || text == "null" {
		return nil
	}
	var err error
	if m.Priority, err = priorityNumber(text); err == nil && priorityWord(m.Priority) != text {
		f["priority"] = raw
	}
	return err
}

// exactly reads a JSON value that has no other fields than into.
func exactly(raw json.RawMessage, into any) bool {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	return d.Decode(into) == nil
}

// maildirText writes a message as a file of an inbox.
func maildirText(m *pb.Message, agent string) ([]byte, error) {
	labels, f, payload := kept(m)
	out := fields{}
	out.set("id", m.GetId())
	out.set("timestamp", m.GetCreatedAt().AsTime().Format(time.RFC3339Nano))
	out.set("from", m.GetSender())
	out.set("to", recipient(m.GetTarget(), "all"))
	out.set("type", typeName(m))
	out.set("subject", m.GetSubject())
	out["body"] = quote(cmp.Or(m.GetBody(), m.GetSubject())) // readers expect one
	out.set("priority", priorityWord(m.GetPriority()))
	out.set("thread_id", m.GetThreadId())
	out.set("in_reply_to", m.GetInReplyTo())
	out.set("task_id", m.GetTaskId())
	out.set("requires_response", m.GetRequiresResponse())
	out.set("labels", labels)
	if payload != "" {
		out["payload"] = json.RawMessage(payload)
	}
	for i, file := range m.GetFiles() {
		if i == 0 {
			out.set("context", map[string]any{"file": file.GetPath(), "line": file.GetLine()})
		}
	}
	for name, value := range f {
		out[name] = value
	}
	text, err := json.MarshalIndent(out, "", "  ")
	return append(text, '\n'), err
}

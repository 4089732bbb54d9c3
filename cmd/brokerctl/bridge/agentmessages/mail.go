package agentmessages

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"

	"brokerd/cmd/brokerctl/bridge/engine"
	"brokerd/cmd/brokerctl/bridge/mailfile"
	pb "brokerd/gen/brokerd/v1"
)

// A mail is the inbox of an agent that has joined through the folder.
type mail struct {
	f     *format
	agent string
	box   *box
	ended map[string]bool // acknowledged messages whose files are to be archived
	asked map[string]bool // messages that are read and require a response
}

func (p *mail) Open(ctx context.Context) (err error) {
	p.ended, p.asked = map[string]bool{}, map[string]bool{}
	p.f.mu.Lock()
	defer p.f.mu.Unlock()
	if p.box, err = p.f.box(ctx, path.Join(inboxesDir, p.agent)); err == nil {
		clear(p.box.seen)
	}
	return err
}

// Deliver writes the messages whose files are not in the inbox already: a local sender has written
// its file there itself.
func (p *mail) Deliver(ctx context.Context, messages []*pb.Message) error {
	p.f.mu.Lock()
	defer p.f.mu.Unlock()
	var letters []engine.Letter
	there := map[string]string{}
	taken := p.box.names()
	for _, m := range messages {
		if p.box.Entries[m.GetId()] != "" || p.box.Entries[keyPrefix+engine.KeyOf(m)] != "" {
			continue
		}
		id, data, err := p.render(ctx, m)
		if err != nil {
			return err
		}
		name := fileName(id, m)
		switch same, err := p.same(name, id); {
		case err != nil:
			return err
		case same && !taken[name]:
			there[m.GetId()] = name
		case taken[name] || p.exists(name):
			name = fileName("", m)
			fallthrough
		default:
			letters = append(letters, engine.Letter{Message: m, Data: data, Name: name})
		}
		taken[name] = true
	}
	if err := p.box.Change(ctx, nil, there); err != nil {
		return err
	}
	return p.box.Deliver(ctx, letters)
}

// render writes a message as a file. It returns the message_id or event_id as well.
func (p *mail) render(ctx context.Context, m *pb.Message) (id string, data []byte, err error) {
	if m.GetType() == "event" && strings.HasPrefix(m.GetTarget().GetChannel(), "event/") {
		if id, data, err := renderEvent(m); err == nil {
			return id, data, nil
		}
	}
	answers := ""
	if m.GetInReplyTo() != "" {
		question, err := engine.Message(ctx, p.f.b.Broker, m.GetInReplyTo())
		if err != nil {
			return "", nil, err
		}
		if question != nil {
			answers = messageID(question.GetMessage())
		}
	}
	data, err = renderFile(m, p.agent, answers)
	return messageID(m), data, err
}

// fileName returns the name of the file with an id. An id that cannot be a name is replaced by the
// revision of the message.
func fileName(id string, m *pb.Message) string {
	if id == "" || len(id) > 200 || strings.ContainsAny(id, "/\x00") || id[0] == '.' {
		id = revisionID(m)
	}
	return id + ".json"
}

func (p *mail) exists(name string) bool {
	_, err := p.f.b.Folder.Lstat(path.Join(p.box.Dir, name))
	return !errors.Is(err, fs.ErrNotExist)
}

// same reports whether the inbox has a file with an id under a name: a copy that a broadcaster or a
// publisher has made.
func (p *mail) same(name, id string) (bool, error) {
	data, err := p.f.b.Folder.Read(path.Join(p.box.Dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil && !mailfile.Rejected(err) {
		return false, err
	}
	f, err := mailfile.Parse(data)
	if err != nil {
		return false, nil
	}
	found, ok := mailfile.JSONString(f["message_id"])
	if !ok {
		found, ok = mailfile.JSONString(f["event_id"])
	}
	return ok && found == id, nil
}

// Collect acknowledges the messages whose files say acknowledged or resolved, and those whose files the agent has
// removed. A message that the agent has read is acknowledged too, unless it requires a response that the agent has not
// sent.
func (p *mail) Collect(ctx context.Context) (more bool, err error) {
	p.f.mu.Lock()
	defer p.f.mu.Unlock()
	if err := p.box.Place(); err != nil {
		return false, err
	}
	if !p.exists("") { // perhaps not mounted: no sign of what the agent has done
		return false, nil
	}
	var ended, read []string
	for id, name := range p.box.Entries {
		if strings.HasPrefix(id, keyPrefix) || p.ended[id] {
			continue
		}
		status, question, changed, err := p.box.status(name)
		if err != nil {
			return false, err
		}
		if changed {
			p.asked[id] = status == statusRead && question
		}
		if changed && p.asked[id] { // the reply may be older than the mark, or of an earlier run
			read = append(read, id)
			if p.f.replies[id], err = p.answered(ctx, id); err != nil {
				delete(p.box.seen, name)
				return false, err
			}
		}
		if changed && !p.asked[id] && statusRank(status) >= statusRank(statusRead) || p.asked[id] && p.f.replies[id] {
			ended = append(ended, id)
		}
	}
	err = p.markRead(ctx, read)
	if err != nil {
		p.unseen(read)
	}
	return false, errors.Join(err, p.acknowledge(ctx, ended), p.finish(ctx))
}

// unseen makes the next Collect read the files of messages again.
func (p *mail) unseen(ids []string) {
	for _, id := range ids {
		delete(p.box.seen, p.box.Entries[id])
	}
}

// answered reports whether the agent has answered a message.
func (p *mail) answered(ctx context.Context, id string) (bool, error) {
	if p.f.replies[id] {
		return true, nil
	}
	out, err := engine.Message(ctx, p.f.b.Broker, id)
	if err != nil || out == nil {
		return false, err
	}
	return p.replied(ctx, out.GetMessage())
}

// acknowledge acknowledges messages, whose files then wait for finish.
func (p *mail) acknowledge(ctx context.Context, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	if err := engine.Acknowledge(ctx, p.f.b.Broker, p.agent, ids...); err != nil {
		p.unseen(ids)
		return err
	}
	for _, id := range ids {
		p.ended[id] = true
		delete(p.asked, id)
		delete(p.f.replies, id)
	}
	return nil
}

// finish archives the files of acknowledged messages that have settled, and removes them from the ledger.
func (p *mail) finish(ctx context.Context) error {
	var gone []string
	var failed error
	for id := range p.ended {
		finished, err := p.f.finish(p.box, p.box.Entries[id])
		failed = errors.Join(failed, err)
		if finished && err == nil {
			gone = append(gone, id)
		}
	}
	for ids := range slices.Chunk(gone, 500) {
		if err := p.box.End(ctx, ids); err != nil {
			return errors.Join(failed, err)
		}
		for _, id := range ids {
			delete(p.ended, id)
		}
	}
	return failed
}

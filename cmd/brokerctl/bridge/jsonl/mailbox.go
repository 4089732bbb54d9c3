package jsonl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"

	"brokerd/cmd/brokerctl/bridge/engine"
	"brokerd/cmd/brokerctl/bridge/mailfile"
	pb "brokerd/gen/brokerd/v1"
)

// A mailbox is the file of an agent. The bridge sends the lines that it has not written, and appends
// the agent's mail.
type mailbox struct {
	b       *engine.Bridge
	agent   string
	file    string
	sent    position           // the lines before it have been sent, rejected or skipped
	saved   position           // what the session's state has of sent
	scanned position           // the lines before it are in seen
	seen    map[uuid.UUID]bool // ids of the messages that the bridge has written, keys of the other lines
	waiting []waitingCopy      // broadcasts of the folder
}

// A waitingCopy is a message to everyone from a sender of the folder. A sender that appends it to
// every mailbox may be about to append it to this one.
type waitingCopy struct {
	message *pb.Message
	until   time.Time
}

func (p *mailbox) Open(ctx context.Context) error {
	found, err := p.b.State.List(ctx, positionKey(p.b.ID, p.agent))
	if err != nil {
		return err
	}
	if p.sent, err = parsePosition(found[positionKey(p.b.ID, p.agent)]); err != nil {
		return err
	}
	p.saved, p.scanned, p.waiting = p.sent, position{restarts: p.sent.restarts}, nil
	file, err := p.b.Folder.Open(p.file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // it is only read
	return p.scan(file)
}

// scan adds the complete lines that follow scanned to seen.
func (p *mailbox) scan(file *os.File) error {
	return eachLine(file, p.scanned, func(text []byte, next position) error {
		if l, err := parseLine(text); err == nil {
			p.seen[l.identity(p.agent, p.scanned, text)] = true
		}
		p.scanned = next
		return nil
	})
}

func (p *mailbox) Collect(ctx context.Context) (bool, error) {
	file, err := p.b.Folder.Open(p.file)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer file.Close() //nolint:errcheck // it is only read
	info, err := file.Stat()
	if err != nil {
		return false, err
	}
	lines := 0
	if info.Size() < p.sent.offset { // its readers have emptied or replaced it
		p.b.Log(fmt.Sprintf("%s has become shorter; the bridge reads it from its start", p.file))
		p.sent = position{restarts: p.sent.restarts + 1}
		p.scanned = p.sent
	}
	err = eachLine(file, p.sent, func(text []byte, next position) error {
		if lines == engine.Batch {
			return io.EOF
		}
		lines++
		if err := p.sendLine(ctx, text); err != nil {
			return err
		}
		p.sent = next
		return nil
	})
	if p.sent != p.saved {
		err2 := p.b.State.Change(ctx, []*pb.StateChange{engine.PutChange(positionKey(p.b.ID, p.agent), p.sent.String())})
		if err2 == nil {
			p.saved = p.sent
		}
		err = errors.Join(err, err2)
	}
	if err == nil && p.sent.offset < info.Size() && lines < engine.Batch {
		err = p.terminate(info)
	}
	if err == nil && len(p.waiting) > 0 {
		err = p.deliverWaiting(ctx)
	}
	return lines == engine.Batch, err
}

// sendLine sends a line, unless the bridge has written it. A line that is not a message is rejected.
func (p *mailbox) sendLine(ctx context.Context, text []byte) error {
	if len(strings.TrimSpace(string(text))) == 0 {
		return nil
	}
	l, err := parseLine(text)
	if err == nil && l.fromBridge() {
		return nil
	}
	if len(text) >= engine.MaxFile {
		err = mailfile.Refusalf("it has more than %d bytes; a message has at most that many", engine.MaxFile)
	}
	if err == nil {
		var earlier *pb.Message
		_, earlier, err = p.b.Sender.SendOnce(ctx, l.key(p.agent, p.sent, text), l.from, l.message)
		if m := l.message; earlier != nil && (earlier.GetBody() != m.GetBody() || earlier.GetSubject() != m.GetSubject()) {
			err = mailfile.Refusalf("another message of %s to %s has the MessageId %s",
				l.from, l.to, mailfile.OneLine(l.id, 128))
		}
	}
	if !mailfile.Rejected(err) {
		return err
	}
	number := p.sent.line + 1
	return p.b.Rejects.Copy(ctx, append(text, '\n'), fmt.Sprintf("%s-%s-line-%d", mailboxDir, p.agent+mailboxExt, number),
		fmt.Sprintf("%s, line %d", p.file, number), err.Error())
}

// terminate ends the last line, which has no line feed, when its writer has not continued it for a
// while. Another writer would otherwise append to it.
func (p *mailbox) terminate(info fs.FileInfo) error {
	if p.b.Folder.ChangedWithin(p.file, info, p.b.Settle) {
		return nil
	}
	return p.locked(func(file *os.File) error {
		if now, err := file.Stat(); err != nil || now.Size() != info.Size() {
			return err
		}
		_, err := file.Write([]byte{'\n'})
		return err
	})
}

func (p *mailbox) Deliver(ctx context.Context, messages []*pb.Message) error {
	return p.locked(func(file *os.File) error {
		if err := p.scan(file); err != nil {
			return err
		}
		var now []*pb.Message
		for _, m := range messages {
			if engine.KeyOf(m) != "" && !p.has(m) && m.GetTarget().GetAgent() == "" && p.b.Roster.Owns(m.GetSender()) {
				p.waiting = append(p.waiting, waitingCopy{m, time.Now().Add(p.b.Settle)})
				continue
			}
			now = append(now, m)
		}
		return p.write(ctx, file, now)
	})
}

// deliverWaiting writes the broadcasts that their sender has not written itself.
func (p *mailbox) deliverWaiting(ctx context.Context) error {
	return p.locked(func(file *os.File) error {
		if err := p.scan(file); err != nil {
			return err
		}
		var now []*pb.Message
		var later []waitingCopy
		for _, w := range p.waiting {
			if p.has(w.message) || time.Now().After(w.until) {
				now = append(now, w.message)
			} else {
				later = append(later, w)
			}
		}
		if err := p.write(ctx, file, now); err != nil {
			return err
		}
		p.waiting = later
		return nil
	})
}

// has reports whether the file has a message. The key in a reply of another client is that of the
// message that it answers.
func (p *mailbox) has(m *pb.Message) bool {
	return p.seen[seenKey(m.GetId())] || p.seen[seenKey(engine.KeyOf(m))] && p.fromFiles(m)
}

// fromFiles reports whether a bridge has sent a message.
func (p *mailbox) fromFiles(m *pb.Message) bool {
	return engine.KeyOf(m) != "" && (m.GetInReplyTo() == "" || p.b.Roster.Owns(m.GetSender()))
}

// write appends the messages that the file does not have, and acknowledges all. The file is locked,
// and scan has read its complete lines.
func (p *mailbox) write(ctx context.Context, file *os.File, messages []*pb.Message) error {
	if len(messages) == 0 {
		return nil
	}
	tail, err := io.ReadAll(io.NewSectionReader(file, p.scanned.offset, engine.MaxFile))
	if err != nil {
		return err
	}
	var text []byte
	var ids []string
	added := map[uuid.UUID]bool{}
	for _, m := range messages {
		ids = append(ids, m.GetId())
		id := seenKey(m.GetId())
		if added[id] || p.has(m) {
			continue
		}
		added[id] = true
		line, err := lineOf(m, p.fromFiles(m))
		if err != nil {
			return err
		}
		text = append(text, line...)
	}
	if len(text) > 0 {
		switch {
		case strings.HasPrefix(string(text), string(tail)): // an earlier run was killed while it wrote this line
			text = text[len(tail):]
		case len(tail) > 0:
			text = append([]byte{'\n'}, text...)
		}
		_, err := file.Write(text)
		if err = errors.Join(err, file.Sync()); err != nil {
			return err // scan finds the lines that are complete
		}
		maps.Copy(p.seen, added)
	}
	return engine.Acknowledge(ctx, p.b.Broker, p.agent, ids...)
}

// locked opens the file for appending and locks it as writers do.
func (p *mailbox) locked(fn func(*os.File) error) error {
	file, err := p.b.Folder.OpenFile(p.file, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // closing releases the lock; write has synced
	if err := lockFile(file); err != nil {
		return err
	}
	return fn(file)
}

package jsonl

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"brokerd/cmd/brokerctl/bridge/engine"
	"brokerd/cmd/brokerctl/bridge/mailfile"
	pb "brokerd/gen/brokerd/v1"
)

// originMark is the key of the metadata with which the bridge marks its lines. Its value is the
// MessageId of the line, so a reply that copies the metadata does not count as the bridge's.
const originMark = "brokerd"

// lockPatience is how long the bridge waits for the lock of a file before it tries again later.
const lockPatience = 5 * time.Second

// A position is the start of a line: its offset in bytes and the number of lines before it, and how
// often the file has become shorter before.
type position struct{ offset, line, restarts int64 }

func positionKey(id, agent string) string { return id + "/position/" + agent }

// String returns the form that parsePosition reads.
func (p position) String() string { return fmt.Sprintf("%d %d %d", p.offset, p.line, p.restarts) }

func parsePosition(text string) (position, error) {
	var p position
	if text == "" {
		return p, nil
	}
	_, err := fmt.Sscanf(text, "%d %d %d", &p.offset, &p.line, &p.restarts)
	return p, err
}

// eachLine calls fn with the complete lines of a file from a position on, without their line feed,
// and the position of the next line. io.EOF from fn ends the iteration. A line has at most maxFile
// bytes: fn gets the beginning of a longer one.
func eachLine(file *os.File, at position, fn func(text []byte, next position) error) error {
	r := bufio.NewReaderSize(io.NewSectionReader(file, at.offset, 1<<62), 64<<10)
	for {
		var text []byte
		length := int64(0)
		for {
			piece, err := r.ReadSlice('\n')
			length += int64(len(piece))
			if len(text) < engine.MaxFile {
				text = append(text, piece...)
			}
			if err == nil {
				break
			}
			if errors.Is(err, io.EOF) {
				return nil
			}
			if !errors.Is(err, bufio.ErrBufferFull) {
				return err
			}
		}
		at = position{at.offset + length, at.line + 1, at.restarts}
		if err := fn(bytes.TrimSuffix(text, []byte{'\n'}), at); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

// lockFile takes the exclusive lock of a file.
func lockFile(file *os.File) error {
	for end := time.Now().Add(lockPatience); ; {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(end) {
			return fmt.Errorf("lock %s: %w", file.Name(), err)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// A line is a line of a mailbox file that has been read.
type line struct {
	id      string // MessageId
	from    string
	to      string // ToAgentId
	time    string // Timestamp
	mark    string // the metadata originMark
	message *pb.Message
}

// parseLine reads a line. The error is mailfile.ErrIncomplete or a refusal.
func parseLine(text []byte) (*line, error) {
	f, err := mailfile.Parse(text)
	if err != nil {
		return nil, err
	}
	l, m, metadata := &line{}, &pb.Message{}, map[string]string{}
	err = errors.Join(f.Take("MessageId", &l.id), f.Take("FromAgentId", &l.from), f.Take("ToAgentId", &l.to),
		f.Take("Content", &m.Body), f.Take("Timestamp", &l.time), f.Take("Metadata", &metadata))
	if err != nil {
		return nil, err
	}
	if l.from == "" {
		return nil, mailfile.Refusal("it has no FromAgentId")
	}
	l.mark, l.message = metadata[originMark], m
	if l.fromBridge() {
		return l, nil
	}
	if err := takeLineType(f, m, metadata); err != nil {
		return nil, err
	}
	if m.Target, err = mailfile.Target(l.to); err != nil {
		return nil, err
	}
	for key, into := range map[string]*string{"thread_id": &m.ThreadId, "task_id": &m.TaskId,
		"subject": &m.Subject, "in_reply_to": &m.InReplyTo} {
		*into = metadata[key]
		delete(metadata, key)
	}
	if text, ok := metadata["priority"]; ok {
		if m.Priority, err = mailfile.PriorityNumber(text); err != nil {
			return nil, err
		}
		if mailfile.PriorityWord(m.Priority) == text {
			delete(metadata, "priority")
		}
	}
	if m.RequiresResponse, err = strconv.ParseBool(metadata["requires_response"]); err == nil {
		delete(metadata, "requires_response")
	}
	if m.ThreadId == "" && len(l.id) <= 128 {
		m.ThreadId = l.id // the sender knows the message by this id
	}
	for key, value := range map[string]string{"original_id": l.id, "original_timestamp": l.time} {
		if value != "" {
			metadata[key] = value
		}
	}
	return l, f.Keep(m, metadata)
}

// fromBridge reports whether the bridge has written the line.
func (l *line) fromBridge() bool { return l.mark != "" && l.mark == l.id }

// key returns the key of a line that the bridge has not written. Copies of a line, in any file, have the same
// key: lines with the sender, the recipient and the MessageId of another one, or without a MessageId those that
// also have its Timestamp, Type and Content. A line with neither is known by its place.
func (l *line) key(agent string, at position, text []byte) uuid.UUID {
	parts := []string{"id", l.from, l.to, l.id}
	switch {
	case l.id != "":
	case l.time != "":
		parts = []string{"time", l.from, l.to, l.time, l.message.GetType(), l.message.GetBody()}
	default:
		parts = []string{"place", agent, fmt.Sprintf("%d/%d", at.restarts, at.offset), string(text)}
	}
	return uuid.NewHash(sha256.New(), uuid.NameSpaceOID, []byte(strings.Join(parts, "\x00")), 8)
}

// identity returns what a mailbox remembers of a line.
func (l *line) identity(agent string, at position, text []byte) uuid.UUID {
	if l.fromBridge() {
		return seenKey(l.id)
	}
	return l.key(agent, at, text)
}

// seenKey returns what a mailbox remembers of an id or a key, which is shorter than its text. A text that is no UUID,
// such as one that a sender has made up, is hashed.
func seenKey(text string) uuid.UUID {
	if key, err := uuid.Parse(text); err == nil {
		return key
	}
	return uuid.NewSHA1(uuid.Nil, []byte(text))
}

// lineOf writes a message as a line. The same message always gives the same line. fromFolder says that a line of the
// folder is the message.
func lineOf(m *pb.Message, fromFolder bool) ([]byte, error) {
	metadata, f, payload := mailfile.Kept(m)
	for key, value := range map[string]string{
		originMark: m.GetId(), "thread_id": m.GetThreadId(), "in_reply_to": m.GetInReplyTo(), "task_id": m.GetTaskId(),
		"subject": m.GetSubject(), "payload": payload,
	} {
		if value != "" {
			metadata[key] = value
		}
	}
	if m.GetPriority() != 5 && metadata["priority"] == "" {
		metadata["priority"] = mailfile.PriorityWord(m.GetPriority())
	}
	facts := mailfile.Facts(m)
	for _, name := range []string{"decision_id", "handoff_id"} { // an answer may have the metadata of what it answers
		if facts[name] != "" {
			metadata[name] = facts[name]
		}
	}
	if m.GetRequiresResponse() {
		metadata["requires_response"] = "true"
	}
	kind := f["Type"] // of a message that an earlier version has sent
	if kind == nil {
		kind = lineType(m, metadata, fromFolder)
	}
	content := m.GetBody()
	switch {
	case content == "":
		content = cmp.Or(m.GetSubject(), payload)
	case m.GetSubject() != "" && !fromFolder:
		content = m.GetSubject() + "\n" + content
	}
	known := struct {
		MessageId, FromAgentId, ToAgentId string //nolint:staticcheck // the names of the format
		Type                              json.RawMessage
		Content                           string
		Metadata                          map[string]string
		Timestamp                         string
	}{m.GetId(), m.GetSender(), mailfile.Recipient(m.GetTarget(), "*"), kind, content, metadata,
		m.GetCreatedAt().AsTime().Format(time.RFC3339Nano)}
	text, err := json.Marshal(known)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"MessageId", "FromAgentId", "ToAgentId", "Type", "Content", "Metadata", "Timestamp"} {
		delete(f, name)
	}
	if len(f) > 0 {
		rest, err := json.Marshal(f)
		if err != nil {
			return nil, err
		}
		text = append(append(text[:len(text)-1], ','), rest[1:]...)
	}
	return append(text, '\n'), nil
}

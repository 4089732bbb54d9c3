package events

import (
	"fmt"
	"strconv"
	"strings"

	"brokerd/internal/content"
	"brokerd/internal/store"
)

// The row of a message is also the event that it was sent. Its texts are made when the event is read. A message of an
// older version has no recipients, and its event is a row of events.

// sentType is the type of the events that are rows of messages.
const sentType = "message.sent"

// ofSent is the note of such an event.
func ofSent(session int64) note { return note{session, kind{Message, Info, sentType}} }

// Flags in the row of a message.
const (
	moreFollow = 1 << iota
	awaited
)

// SentFlags returns the flags of a message's row. more says that further recipients follow, and waits that a call waits
// for the message.
func SentFlags(more, waits bool) (flags int) {
	if more {
		flags |= moreFollow
	}
	if waits {
		flags |= awaited
	}
	return flags
}

// Sent is Append for a message that was sent. The caller inserts its row with the returned revision in the same
// function.
func (l *Log) Sent(tx *store.Tx, session int64) (revision int64) {
	l.note(ofSent(session))
	tx.OnCommit(l.sent)
	return tx.NextRevision()
}

// KeepSent adds the events of messages from one revision to another to the events, in the transaction that removes these
// messages. It leaves out events that were removed already. It returns how many rows it has added.
func (l *Log) KeepSent(tx *store.Tx, first, last int64) (int, error) {
	sent, err := store.Collect(tx.Query(selectSentBetween, first, last), scanRecord)
	if err != nil {
		return 0, fmt.Errorf("keep the events of messages: %w", err)
	}
	for i := range sent {
		e := &sent[i]
		tx.Exec(insertEvent, e.category, e.severity, e.kind, nil, e.Revision, e.Session, e.At, e.source, orNull(e.role),
			e.summary, e.details, orNull(e.related), orNull(e.task))
	}
	return len(sent), nil
}

// A sent has the columns that the row of a message has and an event has not.
type sent struct {
	recipients int64 // -1 in a row of events, which has none of the others
	refused    int64
	flags      int64
	priority   int64
	content    []byte
}

// is reports whether the row is that of a message.
func (s *sent) is() bool { return s.recipients >= 0 }

// summary is one line about a message of a type, with its subject or the first line of its body.
func (s *sent) summary(messageType string) string {
	line := messageType + " to " + content.Target(s.content)
	if about := content.Title(s.content); about != "" {
		line += ": " + about
	}
	return line
}

// details is what the log says of a message of a type, as JSON.
func (s *sent) details(messageType string) string {
	var b strings.Builder
	b.Grow(96)
	b.WriteString(`{"target":`)
	WriteJSON(&b, content.Target(s.content))
	b.WriteString(`,"type":`)
	WriteJSON(&b, messageType)
	writeNumber(&b, `,"priority":`, s.priority)
	writeNumber(&b, `,"recipients":`, s.recipients)
	if s.refused > 0 {
		writeNumber(&b, `,"refused":`, s.refused)
	}
	if s.flags&moreFollow != 0 {
		b.WriteString(`,"more_follow":true`)
	}
	if s.flags&awaited != 0 {
		b.WriteString(`,"awaited":true`)
	}
	b.WriteByte('}')
	return b.String()
}

func writeNumber(b *strings.Builder, field string, n int64) {
	b.WriteString(field)
	b.WriteString(strconv.FormatInt(n, 10))
}

package broker

import (
	"time"

	"brokerd/internal/directory"
	"brokerd/internal/mail"
	"brokerd/internal/msgtype"
	"brokerd/internal/store"
)

// An Observer measures what happens to messages. Its methods are called concurrently, after the
// commit, and must be quick.
type Observer interface {
	// Acked reports how long a claim had lasted when it was finished.
	Acked(after time.Duration)
	// Full reports how many copies of a message were refused because the mailbox was full.
	Full(copies int)
	// Message counts a fate of a message of a session, or of one of its copies. Its class is the
	// family of a built-in type, or "custom".
	Message(fate, session, class string)
}

// A Crew counts the messages of agents. Its method may be called concurrently and uses no transaction.
type Crew interface {
	// Worked counts messages that an agent has sent, received and processed. The broker calls it in
	// the writer, after the commit.
	Worked(session, agent string, sent, received, processed int)
}

// Counters reports what happens to messages to the observer and the crew.
type Counters struct {
	dir      *directory.Directory
	observer Observer // may be nil
	crew     Crew     // may be nil
}

// Observe sets the observer. Call it before Start.
func (c *Counters) Observe(o Observer) { c.observer = o }

// UseCrew sets the crew. Call it before the broker is used.
func (c *Counters) UseCrew(crew Crew) { c.crew = crew }

// The fates of messages. A copy is delivered when an agent receives it for the first time, and fails once for each
// attempt that failed or ran out.
const (
	isSent      = "sent"
	isDelivered = "delivered"
	isAcked     = "acked"
	hasFailed   = "failed"
	isDead      = "dead"
	hasExpired  = "expired"
)

// Sent counts a message of a session that was sent.
func (c *Counters) Sent(tx *store.Tx, session directory.Session, kind string) error {
	return c.countOf(tx, session, isSent, classOf(kind))
}

// Full counts copies of a message that were refused because mailboxes are full.
func (c *Counters) Full(tx *store.Tx, copies int) {
	if copies > 0 && c.observer != nil {
		tx.OnCommit(func() { c.observer.Full(copies) })
	}
}

// count reports a fate of messages to the observer after the commit. Without an observer it does
// nothing. It must be called before the messages can be removed.
func (c *Counters) count(tx *store.Tx, session directory.Session, fate string, messages ...int64) error {
	if c.observer == nil {
		return nil
	}
	for _, message := range messages {
		if err := c.countOne(tx, session, fate, message, ""); err != nil {
			return err
		}
	}
	return nil
}

// countOne is count for one message whose class may be known; else it is empty.
func (c *Counters) countOne(tx *store.Tx, session directory.Session, fate string, message int64, class string) error {
	if c.observer == nil {
		return nil
	}
	if class == "" {
		var kind string
		if err := tx.QueryRow(selectType, message).Scan(&kind); err != nil {
			return err
		}
		class = classOf(kind)
	}
	return c.countOf(tx, session, fate, class)
}

// classOf returns the class under which the observer counts messages of a type: the family of a built-in one, or
// custom.
func classOf(kind string) string {
	if t := msgtype.BuiltIn(kind); t != nil {
		return t.Family
	}
	return "custom"
}

// countOf is count for one message of a known class.
func (c *Counters) countOf(tx *store.Tx, session directory.Session, fate, class string) error {
	if c.observer == nil {
		return nil
	}
	name := session.Name
	if name == "" { // the broker itself acts
		of, err := c.dir.ByID(tx, session.ID)
		if err != nil {
			return err
		}
		name = of.Name
	}
	tx.OnCommit(func() { c.observer.Message(fate, name, class) })
	return nil
}

// Worked counts messages of an agent. It runs after the commit.
func (c *Counters) Worked(a mail.Actor, sent, received, processed int) {
	if c.crew != nil && !a.System() {
		c.crew.Worked(a.Session.Name, a.Name, sent, received, processed)
	}
}

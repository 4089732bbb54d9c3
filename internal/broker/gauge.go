package broker

import (
	"context"
	"time"

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
	dir      Directory
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

// count reports a fate of messages to the observer after the commit. Without an observer it does
// nothing. It must be called before the messages can be removed.
func (c *Counters) count(tx *store.Tx, session Session, fate string, messages ...int64) error {
	if c.observer == nil {
		return nil
	}
	for _, message := range messages {
		var kind string
		if err := tx.QueryRow(selectType, message).Scan(&kind); err != nil {
			return err
		}
		if err := c.countOf(tx, session, fate, kind); err != nil {
			return err
		}
	}
	return nil
}

// countOf is count for one message of a known type.
func (c *Counters) countOf(tx *store.Tx, session Session, fate string, kind string) error {
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
	class := "custom"
	if t := msgtype.BuiltIn(kind); t != nil {
		class = t.Family
	}
	tx.OnCommit(func() { c.observer.Message(fate, name, class) })
	return nil
}

// worked counts messages of an agent. It runs after the commit.
func (c *Counters) worked(a Actor, sent, received, processed int) {
	if c.crew != nil && !a.System() {
		c.crew.Worked(a.Session.Name, a.Name, sent, received, processed)
	}
}

// MostDead is up to how many dead letters Gauges counts.
const MostDead = 100_000

// A Gauge says what lies in all mailboxes of one kind, in all sessions.
type Gauge struct {
	Kind    string // agent, role or channel
	Waiting int64
	Claimed int64
	Largest int64     // messages that wait in the fullest mailbox
	Oldest  time.Time // when the oldest was sent that could be handed out; zero if there is none
}

// Gauges returns what lies in the mailboxes, by kind, and how many dead letters there are.
//
// The time that it takes does not depend on how much waits. Of an agent's mailbox it reads the first arrival that is not
// claimed. Of a role's or channel's it reads the first thousand in the order in which they are delivered, and returns the
// oldest of them.
func Gauges(ctx context.Context, st *store.Store) (gauges []Gauge, dead int64, err error) {
	err = st.Read(ctx, func(s *store.Snapshot) error {
		gauges = []Gauge{
			AgentMailbox - 1: {Kind: "agent"}, RoleMailbox - 1: {Kind: "role"}, ChannelMailbox - 1: {Kind: "channel"},
		}
		oldest := make([]int64, len(gauges))
		rows := s.Query(selectGauges)
		for rows.Next() {
			var kind int
			var waiting, largest, revision int64
			if err := rows.Scan(&kind, &waiting, &largest, &revision); err != nil {
				return err
			}
			gauges[kind-1].Waiting, gauges[kind-1].Largest, oldest[kind-1] = waiting, largest, revision
		}
		if err := rows.Err(); err != nil {
			return err
		}
		for i, revision := range oldest {
			if revision == 0 {
				continue
			}
			if err := s.QueryRow(selectSentAt, revision).Scan(&gauges[i].Oldest); err != nil {
				return err
			}
		}
		rows = s.Query(countClaimedByKind)
		for rows.Next() {
			var kind int
			var n int64
			if err := rows.Scan(&kind, &n); err != nil {
				return err
			}
			gauges[kind-1].Claimed = n
		}
		if err := rows.Err(); err != nil {
			return err
		}
		return s.QueryRow(countDead, MostDead).Scan(&dead)
	})
	return gauges, dead, err
}

package broker

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"brokerd/internal/directory"
	"brokerd/internal/msgtype"
	"brokerd/internal/store"
)

// String returns the state as the API spells it.
func (s State) String() string {
	names := [...]string{"UNKNOWN", "PENDING", "CLAIMED", "DELAYED", "BLOCKED", "ACKED", "DEAD", "EXPIRED", "CANCELLED", "NOTICE"}
	if s < 0 || int(s) >= len(names) {
		return names[0]
	}
	return names[s]
}

// MostCounted is the highest number that counts of deliveries reach: 1,000 stands for 1,000 or
// more. So the time that a count takes does not depend on how much waits.
const MostCounted = 1000

// Counts returns how many of the newest 1,000 unfinished deliveries in the agent's own mailbox it
// has not read, notices aside, and how many deliveries it could claim now, up to MostCounted.
func (b *Broker) Counts(q store.Querier, session int64, agent directory.Agent) (unread, claimable int64, err error) {
	a := Actor{Agent: agent, Session: directory.Session{ID: session}}
	if a.Mailbox, err = b.Mailboxes.Find(q, session, MailboxRef{AgentMailbox, agent.Name}); err != nil {
		return 0, 0, err
	}
	if err := q.QueryRow(countUnread, a.Mailbox, MostCounted).Scan(&unread); err != nil {
		return 0, 0, err
	}
	boxes, err := b.Mailboxes.Reachable(q, a)
	if err != nil {
		return 0, 0, err
	}
	for _, box := range boxes {
		if claimable == MostCounted {
			break
		}
		n, err := CountReady(q, box.ID, MostCounted-claimable)
		if err != nil {
			return 0, 0, err
		}
		claimable += n
	}
	return unread, claimable, nil
}

// CountReady returns how many deliveries of a mailbox could be claimed now, at most most.
func CountReady(q store.Querier, mailbox, most int64) (n int64, err error) {
	err = q.QueryRow(countReady, mailbox, most).Scan(&n)
	return n, err
}

// Checks returns what looks the tables of this package over, one function for each invariant. Each returns what is
// wrong, one line each, at most most, and may be called while the broker runs.
func Checks(most int) []func(q store.Querier) ([]string, error) {
	checks := make([]func(store.Querier) ([]string, error), 0, len(invariants))
	for _, i := range invariants {
		checks = append(checks, func(q store.Querier) ([]string, error) { return i.check(q, most) })
	}
	return checks
}

// Totals counts what the tables hold.
func Totals(q store.Querier) (messages, deliveries int64, err error) {
	err = q.QueryRow(countTotals).Scan(&messages, &deliveries)
	return messages, deliveries, err
}

// An invariant is a query for deliveries that must not be, and what it means that they are.
type invariant struct{ says, query string }

func (i invariant) check(q store.Querier, most int) (problems []string, err error) {
	rows := q.Query(i.query)
	for len(problems) < most && rows.Next() {
		var message, mailbox int64
		if err := rows.Scan(&message, &mailbox); err != nil {
			return nil, err
		}
		problems = append(problems, fmt.Sprintf("delivery of message %d in mailbox %d: %s", message, mailbox, i.says))
	}
	return problems, rows.Close()
}

var invariants = [...]invariant{
	{"it has no message", `
		SELECT d.message, d.mailbox FROM deliveries d LEFT JOIN messages m ON m.revision = d.message WHERE m.revision IS NULL`},
	{"it has no mailbox", `
		SELECT d.message, d.mailbox FROM deliveries d LEFT JOIN mailboxes b ON b.id = d.mailbox WHERE b.id IS NULL`},
	{"it is in no known state", `
		SELECT message, mailbox FROM deliveries WHERE state NOT BETWEEN 1 AND 9`},
	{"it is claimed by nobody, or was never claimed", `
		SELECT message, mailbox FROM deliveries WHERE state = 2 AND (holder IS NULL OR claims < 1 OR claimed_at IS NULL)`},
	{"it is finished without a time, or unfinished with one", `
		SELECT message, mailbox FROM deliveries WHERE (state BETWEEN 5 AND 8) <> (finished_at IS NOT NULL)`},
	{"it is delayed without a due time", `
		SELECT message, mailbox FROM deliveries WHERE state = 3 AND due_at IS NULL`},
	{"more attempts were counted than claims were made", `
		SELECT message, mailbox FROM deliveries WHERE attempts > claims`},
	{"it has used up its attempts and is no dead letter", `
		SELECT message, mailbox FROM deliveries WHERE state <= 4 AND attempts >= max_attempts`},
	{"Receive would not show it, or show what is finished", `
		SELECT d.message, d.mailbox FROM deliveries d JOIN mailboxes b ON b.id = d.mailbox
		WHERE d.arrival IS NOT NULL AND (d.arrival > 0) <> (b.kind = 1 AND d.state IN (1, 2, 3, 4, 9))`},
	{"it is blocked and nothing is in front of it", `
		SELECT d.message, d.mailbox FROM deliveries d
		WHERE d.state = 4 AND NOT EXISTS (
			SELECT 1 FROM deliveries h
			WHERE h.mailbox = d.mailbox AND h.ordering_key = d.ordering_key AND h.state <= 3)`},
	{"another delivery with its ordering key is handed out at the same time", `
		SELECT d.message, d.mailbox FROM deliveries d
		WHERE d.ordering_key IS NOT NULL AND d.state <= 3 AND EXISTS (
			SELECT 1 FROM deliveries h
			WHERE h.mailbox = d.mailbox AND h.ordering_key = d.ordering_key AND h.state <= 3 AND h.message < d.message)`},
	{"its mailbox has miscounted what waits (message stands for the difference)", `
		SELECT b.waiting - COUNT(d.message), b.id FROM mailboxes b
		LEFT JOIN deliveries d ON d.mailbox = b.id AND d.state IN (1, 3, 4)
		GROUP BY b.id HAVING b.waiting <> COUNT(d.message)`},
	{"a failed attempt is missing in its history, or one too many is there", `
		SELECT d.message, d.mailbox FROM deliveries d
		WHERE d.attempts > (
			SELECT COUNT(*) FROM attempts a WHERE a.message = d.message AND a.mailbox = d.mailbox AND a.claim > 0)`},
}

// OldestReady returns the times at which the oldest messages were sent that a claim could take, by the id of the
// mailbox. It examines 1,000 deliveries of each mailbox: see CaseOldestReady.
func OldestReady(q store.Querier, mailboxes []int64) (map[int64]time.Time, error) {
	list, err := json.Marshal(mailboxes)
	if err != nil {
		return nil, fmt.Errorf("list mailboxes: %w", err)
	}
	oldest := map[int64]time.Time{}
	rows := q.Query(selectOldest, string(list))
	for rows.Next() {
		var id int64
		var at time.Time
		if err := rows.Scan(&id, &at); err != nil {
			return nil, err
		}
		oldest[id] = at
	}
	return oldest, rows.Err()
}

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

// count reports a fate of messages to the observer after the commit. Without an observer it does
// nothing. It must be called before the messages can be removed.
func (c *Counters) count(tx *store.Tx, session directory.Session, fate string, messages ...int64) error {
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
func (c *Counters) countOf(tx *store.Tx, session directory.Session, fate string, kind string) error {
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

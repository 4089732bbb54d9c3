package admin

import (
	"context"
	"fmt"
	"time"

	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Facts are what is known of the daemon without its database.
type Facts struct {
	Version   string
	StartedAt time.Time
	Sync      store.Sync
	DataDir   string
	Listen    func() []string // addresses as clients dial them
}

// A Mailbox is one that has something in it.
type Mailbox struct {
	Name    string // an agent's, role:NAME or channel:NAME
	Waiting int64  // pending, delayed and blocked deliveries
	Claimed int64
	Dead    int64
}

// Mail is what lies in the mailboxes of a session.
type Mail struct {
	Fullest []Mailbox // at most 20, fullest first
	Waiting int64     // in all of them, and so on
	Claimed int64
	Dead    int64

	Operators int64 // unfinished messages in the operators' mailbox; for an operator
}

// Totals count the rows of the whole database.
type Totals struct {
	Messages   int64
	Deliveries int64
	Events     int64
	Revision   int64 // that they are true at
}

// A Head counts the registered agents of a session.
type Head struct {
	Agents  int
	Late    int // of these, silent for a third of their lease
	Failed  int // of these, with a lease that has expired
	Stopped int // of these
}

// Own is an agent, with the number of locks, tokens and tickets that it holds and of its open
// questions.
type Own struct {
	Agent, Role            string
	Locks, Tokens, Tickets int
	Asked, ToAnswer        int
}

// Coordination counts what agents share in a session.
type Coordination struct {
	Locks   int64
	Tokens  int64 // held
	Tickets int64 // requests that wait for locks and tokens
	Keys    int64 // of the state
	Work    []work.Count
}

// Agents knows the health of agents, and what they hold.
type Agents interface {
	// Head counts the registered agents of a session.
	Head(session string) Head
	// Own returns the agent that calls, and counts what it holds.
	Own(q store.Querier, who identity.Caller) (Own, error)
}

// Commons tells what agents share in a session.
type Commons interface {
	Coordination(q store.Querier, session int64) (Coordination, error)
}

// Mailboxes knows the mailboxes of a session.
type Mailboxes interface {
	// Mail counts the messages in all mailboxes, or in those that an agent takes from.
	Mail(q store.Querier, session int64, agent *Own) (Mail, error)
}

// A Post moves messages between mailboxes.
type Post interface {
	Move(ctx context.Context, who identity.Caller, req idempotency.Request, m Move) (Moved, error)
}

// A Move names messages that wait in a mailbox, and the mailbox that they go to.
type Move struct {
	From, To string
	IDs      []string // empty = all
	Reason   string
}

// A Moved counts the deliveries that were moved, and those that still wait in the old mailbox.
type Moved struct {
	Moved    int
	Left     int64
	Revision int64
}

// Tables are those of messages and deliveries.
type Tables interface {
	// Checks returns what looks them over, each in a snapshot of its own. A check returns what is wrong,
	// one line each for people.
	Checks() []func(q store.Querier) (problems []string, err error)
	// SleepingMailboxes returns one line, for people, for each mailbox whose ready deliveries a running broker does not
	// give to the consumers that wait for them.
	SleepingMailboxes(ctx context.Context) (problems []string, err error)
	// Count counts the messages and deliveries of all sessions.
	Count(q store.Querier) (messages, deliveries int64, err error)
}

// Log knows the events.
type Log interface {
	// Count counts the events.
	Count(q store.Querier) (int64, error)
}

// Traffic counts what goes on at the server.
type Traffic interface {
	// Streams returns how many streams are open.
	Streams() int
}

// MostProblems bounds what a check returns.
const MostProblems = 1000

// An Inspector looks over the database. It may be used concurrently.
type Inspector struct {
	store  *store.Store
	tables Tables
	log    Log
}

// NewInspector returns an inspector of the store with these tables and this log in it.
func NewInspector(s *store.Store, t Tables, l Log) *Inspector {
	return &Inspector{store: s, tables: t, log: l}
}

// Check reads the whole database and returns what is wrong with it, at most MostProblems lines, and what
// it counted. It may take minutes, and slows nobody.
func (i *Inspector) Check(ctx context.Context) (problems []string, counted Totals, err error) {
	problems, err = i.store.Check(ctx)
	if err != nil {
		return nil, Totals{}, err
	}
	for _, check := range i.tables.Checks() {
		err = i.store.Read(ctx, func(s *store.Snapshot) error {
			found, err := check(s)
			problems = append(problems, found...)
			return err
		})
		if store.IsDamage(err) {
			return bounded(append(problems, "the invariants cannot be checked in a damaged database")), counted, nil
		}
		if err != nil {
			return nil, Totals{}, fmt.Errorf("check invariants: %w", err)
		}
	}
	sleeping, err := i.tables.SleepingMailboxes(ctx)
	if err != nil {
		return nil, Totals{}, fmt.Errorf("check for sleeping mailboxes: %w", err)
	}
	problems = append(problems, sleeping...)
	err = i.store.Read(ctx, func(s *store.Snapshot) (err error) {
		counted.Revision = s.Revision()
		if counted.Messages, counted.Deliveries, err = i.tables.Count(s); err != nil {
			return err
		}
		counted.Events, err = i.log.Count(s)
		return err
	})
	if store.IsDamage(err) {
		return bounded(append(problems, "the rows cannot be counted in a damaged database")), counted, nil
	}
	if err != nil {
		return nil, Totals{}, fmt.Errorf("count rows: %w", err)
	}
	return bounded(problems), counted, nil
}

// bounded cuts a list of problems to MostProblems lines.
func bounded(problems []string) []string {
	if len(problems) <= MostProblems {
		return problems
	}
	more := len(problems) - MostProblems + 1
	return append(problems[:MostProblems-1], fmt.Sprintf("and %d more", more))
}

package admin

import (
	"context"
	"fmt"
	"time"

	"brokerd/internal/directory"
	"brokerd/internal/identity"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Facts are what is known of the daemon without its database.
type Facts struct {
	Version   string
	StartedAt time.Time
	Sync      store.Sync

	// Here returns the data folder of the broker, or replica, to which the caller has connected, and where it listens, as
	// clients dial it.
	Here func(ctx context.Context) (dir string, listen []string)

	// Replicas returns the address of the replica to which the caller has connected, and all replicas. It is nil without
	// others.
	Replicas func(ctx context.Context) (through string, all []Replica)
}

// A Replica is one of several brokerd on the same database.
type Replica struct {
	Address string
	Version string
	Leads   bool
	Since   time.Duration // for which it has led
	Silent  time.Duration // since its last sign
}

// Totals count the rows of the whole database.
type Totals struct {
	Messages   int64
	Deliveries int64
	Events     int64
	Revision   int64 // that they are true at
}

// Agents knows what agents hold.
type Agents interface {
	// Own returns the agent that calls, with what it holds.
	Own(q store.Querier, who identity.Caller) (directory.Agent, work.Holdings, error)
}

// Presence knows the health of agents.
type Presence interface {
	// Pulse counts the registered agents of a session.
	Pulse(session string) directory.Pulse
}

// Commons knows what agents share in a session.
type Commons interface {
	Coordination(q store.Querier, session int64) (work.Coordination, error)
}

// Mailboxes knows the mailboxes of a session.
type Mailboxes interface {
	// Status counts the deliveries in the mailboxes with something in them, or in those that an agent
	// takes from, fullest first, and in all of them.
	Status(q store.Querier, session int64, agent *directory.Agent, most int) ([]work.Mailbox, work.Mailbox, error)
	// Waiting counts the deliveries that wait in the mailboxes of some agents.
	Waiting(q store.Querier, session int64, agents []string) (map[string]int64, error)
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
	var checks []func(*store.Snapshot) error
	for _, check := range i.tables.Checks() {
		checks = append(checks, func(s *store.Snapshot) error {
			found, err := check(s)
			problems = append(problems, found...)
			return err
		})
	}
	checks = append(checks, func(s *store.Snapshot) (err error) {
		counted.Revision = s.Revision()
		if counted.Messages, counted.Deliveries, err = i.tables.Count(s); err != nil {
			return err
		}
		counted.Events, err = i.log.Count(s)
		return err
	})
	err = i.store.Inspect(ctx, checks...)
	if store.IsDamage(err) {
		return bounded(append(problems, "not all invariants and rows can be checked in a damaged database")), counted, nil
	}
	if err != nil {
		return nil, Totals{}, fmt.Errorf("check invariants and count rows: %w", err)
	}
	sleeping, err := i.tables.SleepingMailboxes(ctx)
	if err != nil {
		return nil, Totals{}, fmt.Errorf("check for sleeping mailboxes: %w", err)
	}
	return bounded(append(problems, sleeping...)), counted, nil
}

// bounded cuts a list of problems to MostProblems lines.
func bounded(problems []string) []string {
	if len(problems) <= MostProblems {
		return problems
	}
	more := len(problems) - MostProblems + 1
	return append(problems[:MostProblems-1], fmt.Sprintf("and %d more", more))
}

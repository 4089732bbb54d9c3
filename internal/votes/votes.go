package votes

import (
	"errors"
	"fmt"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Limits of votes.
const (
	MaxOpen         = 1000 // open votes of a session
	MaxElectors     = 1000 // of a vote
	MinOptions      = 2
	MaxOptions      = 50
	maxDescription  = 64 << 10 // bytes
	maxReason       = 4 << 10  // bytes, of a ballot
	longest         = 365 * 24 * time.Hour
	defaultDuration = 24 * time.Hour
)

// kind is the kind of work, letter that of its ids.
const (
	kind   = "vote"
	letter = "v"
)

// An End is the cause for which a vote closed. The numbers are those of the API and of the table; 0 is
// open.
type End int

// The causes.
const (
	AllVoted      End = iota + 1
	DeadlineEnd       // its deadline passed
	ByHand            // its opener or an operator closed it
	SessionClosed     // an operator closed the session
)

// A Vote is a question put to an electorate.
type Vote struct {
	Key         int64 // of its id
	Session     int64
	Title       string
	Description string
	Options     []Option // in the order of the opener
	Opener      string
	Rule        Rule
	Quorum      Quorum
	Task        string
	OpenedAt    time.Time
	Deadline    time.Time
	Electors    int // that remain, or have left with a ballot
	Ballots     int
	Outcome     Outcome
	Winner      string // empty = none
	End         End
	ClosedBy    string // agent or system; empty = the broker
	CloseReason string
	ClosedAt    time.Time // zero = open
	Revision    int64     // of its last change
}

// An Option is an option with the ballots that name it.
type Option struct {
	Text    string
	Ballots int
}

// ID returns the id of the vote, such as v-4711.
func (v *Vote) ID() string { return work.ID(letter, v.Key) }

// Open reports whether ballots can be cast.
func (v *Vote) Open() bool { return v.ClosedAt.IsZero() }

// Required returns how many ballots the quorum requires.
func (v *Vote) Required() int { return v.Quorum.Required(v.Electors) }

// counts returns the ballots per option.
func (v *Vote) counts() []int {
	counts := make([]int, len(v.Options))
	for i, o := range v.Options {
		counts[i] = o.Ballots
	}
	return counts
}

// position returns the position of an option, -1 if there is none.
func (v *Vote) position(option string) int {
	for i, o := range v.Options {
		if o.Text == option {
			return i
		}
	}
	return -1
}

// A Ballot is the choice of an elector.
type Ballot struct {
	Agent   string
	Option  string // empty = it has not voted
	Reason  string
	CastAt  time.Time // of the last change
	Changes int
	Left    bool // it has deregistered
}

// Votes keeps the votes of all sessions. Its methods may be called concurrently.
type Votes struct {
	store *store.Store
	log   *events.Log
	dir   *directory.Directory
	post  work.Post

	observer  work.Observer    // nil = no metrics
	hub       *work.Hub[int64] // calls that wait for the end of a vote
	deadlines *work.Calendar
	backlog   *work.Backlog
}

// New returns the votes of a store that was opened with Migrations.
func New(
	s *store.Store, log *events.Log, dir *directory.Directory, post work.Post, clock clockwork.Clock, logger *zap.Logger,
) *Votes {
	v := &Votes{store: s, log: log, dir: dir, post: post, hub: work.NewHub[int64](clock)}
	v.deadlines = work.NewItemCalendar(s, clock, logger, deadlines, v.closeDue)
	v.backlog = work.NewBacklog(s, "votes", clock, logger, v.page)
	return v
}

// Observe makes the votes report outcomes. It is called before Start.
func (v *Votes) Observe(o work.Observer) { v.observer = o }

// Start begins to close votes at their deadlines, and resumes the backlog.
func (v *Votes) Start() {
	v.deadlines.Start()
	v.backlog.Start()
}

// Drain ends waiting calls.
func (v *Votes) Drain() { v.hub.Drain() }

// Stop ends what Start has begun. Stopping twice is fine.
func (v *Votes) Stop() {
	v.deadlines.Stop()
	v.backlog.Stop()
}

// find returns a vote of a session with its options. Errors: fault.NotFound.
func find(q store.Querier, session int64, id string) (Vote, error) {
	key, err := work.ParseID(kind, letter, id)
	if err != nil {
		return Vote{}, err
	}
	v, err := scan(q.QueryRow(selectVote, key, session))
	if errors.Is(err, store.ErrNoRows) {
		return Vote{}, work.Missing(kind, id)
	}
	if err == nil {
		err = readOptions(q, &v)
	}
	if err != nil {
		return Vote{}, fmt.Errorf("look up vote %s: %w", id, err)
	}
	return v, nil
}

// all returns the votes of a query with their options.
func all(q store.Querier, query string, args ...any) ([]Vote, error) {
	var found []Vote
	rows := q.Query(query, args...)
	defer rows.Close()
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, err
		}
		found = append(found, v)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	for i := range found {
		if err := readOptions(q, &found[i]); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// scan reads voteColumns and the description.
func scan(row interface{ Scan(to ...any) error }) (v Vote, err error) {
	var rule, outcome, ending int
	err = row.Scan(&v.Key, &v.Session, &v.Title, &v.Opener, &rule, &v.Quorum.Ballots, &v.Quorum.Share, &v.Task,
		&v.OpenedAt, &v.Deadline, &v.Electors, &v.Ballots, &outcome, &v.Winner, &ending, &v.ClosedBy, &v.CloseReason,
		&v.ClosedAt, &v.Revision, &v.Description)
	v.Rule, v.Outcome, v.End = Rule(rule), Outcome(outcome), End(ending)
	return v, err
}

func readOptions(q store.Querier, v *Vote) error {
	rows := q.Query(selectOptions, v.Key)
	defer rows.Close()
	for rows.Next() {
		var o Option
		if err := rows.Scan(&o.Text, &o.Ballots); err != nil {
			return err
		}
		v.Options = append(v.Options, o)
	}
	return rows.Err()
}

// ballots returns the ballots of a vote by the names of its electors.
func ballots(q store.Querier, key int64) ([]Ballot, error) {
	var found []Ballot
	rows := q.Query(selectBallots, key)
	defer rows.Close()
	for rows.Next() {
		b, err := scanBallot(rows)
		if err != nil {
			return nil, err
		}
		found = append(found, b)
	}
	return found, rows.Err()
}

func scanBallot(row interface{ Scan(to ...any) error }) (b Ballot, err error) {
	err = row.Scan(&b.Agent, &b.Option, &b.Reason, &b.CastAt, &b.Changes, &b.Left)
	return b, err
}

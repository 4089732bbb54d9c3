package blockers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/identity"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Limits.
const (
	MaxReason        = 64 << 10 // bytes
	MaxNote          = 4 << 10  // bytes
	MaxRecipients    = 20
	mostUnresolved   = 1000 // per session
	mostAcknowledged = 50   // acknowledgements per blocker, those before it was reopened included
	mostEscalations  = 10   // per blocker
)

// The limits above bound the timeline of a blocker. A timeline that is older than they are can be
// longer: of such a one, the broker reads the first and the last entries.
const (
	mostEntries  = 200
	mostNotes    = 512 << 10             // bytes
	firstEntries = 1 + MaxRecipients + 1 // with the awaited agent
	lastEntries  = 150                   // with at most mostNotes / 2
)

// A State is that of a blocker. The numbers are those of the API and of the table.
type State int

// The states.
const (
	Open State = iota + 1
	Acknowledged
	Resolved
)

// String returns the state as events and brokerctl spell it.
func (s State) String() string { return [...]string{"any", "open", "acknowledged", "resolved"}[s] }

// A Severity says how urgent a blocker is. The numbers are those of the API and of the table.
type Severity int

// The severities.
const (
	Low Severity = iota + 1
	Medium
	High
	Critical
)

var severities = [...]string{"any", "low", "medium", "high", "critical"}

// String returns the severity as events and brokerctl spell it.
func (s Severity) String() string { return severities[s] }

// ParseSeverity returns the severity of a word that String returns, Medium for any other text.
func ParseSeverity(word string) Severity {
	if i := slices.Index(severities[:], word); i >= int(Low) {
		return Severity(i)
	}
	return Medium
}

// priority returns the priority of the notifications.
func (s Severity) priority() int { return 1 + 2*int(s) }

// An AwaitedKind says what kind of object an agent waits for. The numbers are those of the table.
type AwaitedKind int

// The kinds. The zero value is no object.
const (
	Agent AwaitedKind = iota + 1
	Role
	Task
	Lock
	Text
)

// String returns the kind as payloads spell it.
func (k AwaitedKind) String() string {
	return [...]string{"", "agent", "role", "task", "lock", "text"}[k]
}

// Awaited is the object that an agent waits for; the zero value is none.
type Awaited struct {
	Kind AwaitedKind
	Name string
}

// A Recipient is an agent, or one agent of a role.
type Recipient struct {
	Agent string `json:"agent,omitempty"`
	Role  string `json:"role,omitempty"`
}

// String returns the recipient as brokerctl spells it.
func (r Recipient) String() string {
	if r.Agent == "" {
		return "role:" + r.Role
	}
	return r.Agent
}

// A Step is the kind of an entry of a timeline. The numbers are those of the API and of the table.
type Step int

// The steps. The zero value stands for entries that are left out.
const (
	Raised Step = iota + 1
	Notified
	WasAcknowledged
	Escalated
	WasResolved
	Reopened
)

// String returns the step as exports spell it.
func (s Step) String() string {
	return [...]string{"left_out", "raised", "notified", "acknowledged", "escalated", "resolved", "reopened"}[s]
}

// An Entry is one change in a timeline.
type Entry struct {
	Step      Step      `json:"step"`
	At        time.Time `json:"at"`
	Agent     string    `json:"agent"`              // that made the change, or caller.System
	Recipient Recipient `json:"recipient,omitzero"` // of a notification
	Message   int64     `json:"message,omitempty"`  // revision of the notification
	Note      string    `json:"note,omitempty"`
	Revision  int64     `json:"revision"`
}

// A Blocker is an obstacle that stops an agent.
type Blocker struct {
	ID          int64 // the revision that raised it
	Session     int64 // row id
	Revision    int64 // of its last change
	State       State
	Agent       string // that raised it, or caller.System
	Reason      string
	Severity    Severity
	Awaited     Awaited
	Task        string
	TaskBlocked bool // the broker has set the task to blocked for it
	AutoResolve bool
	RaisedAt    time.Time
	EscalatesAt time.Time // zero = never
	Escalations int
	NextRole    int       // the position in escalate_to at which the next escalation begins
	ResolvedAt  time.Time // zero = not yet
	Timeline    []Entry

	quiet bool // the event of this change goes to no channels; not kept
}

// Name returns the id as callers know it.
func (b *Blocker) Name() string { return work.ID(letter, b.ID) }

// acknowledgements returns how often agents have acknowledged the blocker since it was raised.
func (b *Blocker) acknowledgements() (n int) {
	for _, e := range b.Timeline {
		if e.Step == WasAcknowledged {
			n++
		}
	}
	return n
}

// Acknowledgements returns the entries of the agents that work on the blocker.
func (b *Blocker) Acknowledgements() []Entry {
	var list []Entry
	for _, e := range b.Timeline {
		switch e.Step {
		case WasAcknowledged:
			list = append(list, e)
		case Reopened:
			list = nil
		default:
		}
	}
	return list
}

// Resolution returns the entry of the resolution; the zero value if there is none.
func (b *Blocker) Resolution() Entry {
	if n := len(b.Timeline); n > 0 && b.Timeline[n-1].Step == WasResolved {
		return b.Timeline[n-1]
	}
	return Entry{}
}

// TimeBlocked returns the time from the raising until the resolution, or until now.
func (b *Blocker) TimeBlocked(now time.Time) time.Duration {
	if b.State == Resolved {
		now = b.ResolvedAt
	}
	return max(now.Sub(b.RaisedAt), 0)
}

// acknowledgedBy reports whether an agent works on the blocker.
func (b *Blocker) acknowledgedBy(agent string) bool {
	return slices.ContainsFunc(b.Acknowledgements(), func(e Entry) bool { return e.Agent == agent })
}

// asks reports whether a notification of the blocker went to an agent or its role.
func (b *Blocker) asks(a directory.Agent) bool {
	return slices.ContainsFunc(b.Timeline, func(e Entry) bool {
		return e.Message != 0 && (e.Recipient.Agent == a.Name || a.Role != "" && e.Recipient.Role == a.Role)
	})
}

// The noun and the letter of ids.
const (
	noun   = "blocker"
	letter = "b"
)

// Tasks blocks and unblocks tasks. Its methods run in the transaction of the blocker's change.
type Tasks interface {
	// Block makes a task BLOCKED if the agent holds it, or if it is claimed and an operator calls. It
	// reports whether the task is BLOCKED now; a task that it does not block, or that does not exist,
	// is no error.
	Block(tx *store.Tx, session int64, task string, by directory.Agent, reason string) (bool, error)
	// Unblock returns a task to its holder if it is still BLOCKED.
	Unblock(tx *store.Tx, session int64, task string, by directory.Agent, reason string) error
	// Done reports whether a task is DONE.
	Done(q store.Querier, session int64, task string) (bool, error)
}

// A Board keeps the blockers of all sessions. Its methods may be called concurrently.
type Board struct {
	store *store.Store
	log   *events.Log
	dir   *directory.Directory
	post  work.Post
	clock clockwork.Clock
	zap   *zap.Logger

	tasks    Tasks         // nil = there are no tasks
	observer work.Observer // nil = outcomes are not counted
	hub      *work.Hub[int64]
	calendar *work.Calendar
	backlog  *work.Backlog
}

// New returns the blockers of a store that was opened with Migrations. They do not escalate before Start.
func New(
	st *store.Store, log *events.Log, dir *directory.Directory, post work.Post, clock clockwork.Clock,
	logger *zap.Logger,
) *Board {
	b := &Board{store: st, log: log, dir: dir, post: post, clock: clock, zap: logger, hub: work.NewHub[int64](clock)}
	b.calendar = work.NewItemCalendar(st, clock, logger, escalations, b.escalateDue)
	b.backlog = work.NewBacklog(st, "blockers", clock, logger, b.page)
	return b
}

// UseTasks plugs in the tasks. It is called before Start.
func (b *Board) UseTasks(t Tasks) { b.tasks = t }

// Observe counts outcomes from now on. It is called before Start.
func (b *Board) Observe(o work.Observer) { b.observer = o }

// Start begins the escalations, and resumes the backlog.
func (b *Board) Start() {
	b.calendar.Start()
	b.backlog.Start()
}

// Drain ends the calls that wait. It may be called more than once.
func (b *Board) Drain() { b.hub.Drain() }

// Stop ends what Start has begun. It may be called more than once.
func (b *Board) Stop() {
	b.calendar.Stop()
	b.backlog.Stop()
}

// find returns a blocker by the id that a caller gives.
func find(q store.Querier, session int64, id string) (Blocker, error) {
	revision, err := work.ParseID(noun, letter, id)
	if err != nil {
		return Blocker{}, err
	}
	found, err := read(q.Query(selectBlocker, session, revision))
	if err == nil && len(found) == 0 {
		return Blocker{}, work.Missing(noun, id)
	}
	if err != nil {
		return Blocker{}, fmt.Errorf("look up blocker %s: %w", id, err)
	}
	return found[0], nil
}

// one returns a blocker of any session.
func one(q store.Querier, id int64) (x Blocker, found bool, err error) {
	list, err := read(q.Query(selectAny, id))
	if err != nil || len(list) == 0 {
		return x, false, err
	}
	return list[0], true, nil
}

func scanID(rows *store.Rows) (id int64, err error) { return id, rows.Scan(&id) }

// read reads the blockers of a query of blockerColumns.
func read(rows *store.Rows) ([]Blocker, error) {
	var list []Blocker
	defer rows.Close()
	for rows.Next() {
		b, err := scan(rows)
		if err != nil {
			return nil, err
		}
		list = append(list, b)
	}
	return list, rows.Err()
}

func scan(rows *store.Rows) (Blocker, error) {
	var b Blocker
	var state, severity, kind int
	var timeline []byte
	err := rows.Scan(&b.ID, &b.Session, &b.Revision, &state, &b.Agent, &b.Reason, &severity, &kind, &b.Awaited.Name, &b.Task, &b.TaskBlocked,
		&b.AutoResolve, &b.RaisedAt, &b.EscalatesAt, &b.Escalations, &b.NextRole, &b.ResolvedAt, &timeline)
	if err != nil {
		return b, err
	}
	b.State, b.Severity, b.Awaited.Kind = State(state), Severity(severity), AwaitedKind(kind)
	if err := json.Unmarshal(timeline, &b.Timeline); err != nil {
		return b, fmt.Errorf("read the timeline of blocker %d: %w", b.ID, err)
	}
	b.Timeline = clipTimeline(b.Timeline)
	return b, nil
}

// clipTimeline leaves out entries in the middle of a timeline that is too long. An entry without a
// step says how many. The next change of the blocker stores the clipped timeline.
func clipTimeline(list []Entry) []Entry {
	notes := 0
	for _, e := range list {
		notes += len(e.Note)
	}
	if len(list) <= mostEntries && notes <= mostNotes {
		return list
	}
	first, rest := list[:min(firstEntries, len(list))], list[min(firstEntries, len(list)):]
	from := len(rest)
	for notes = 0; from > 0 && len(rest)-from < lastEntries; from-- {
		if notes += len(rest[from-1].Note); notes > mostNotes/2 {
			break
		}
	}
	if from == 0 {
		return list
	}
	left := Entry{
		At: rest[from-1].At, Agent: identity.System, Revision: rest[from-1].Revision,
		Note: strconv.Itoa(from) + " entries are left out here",
	}
	return slices.Concat(first, []Entry{left}, rest[from:])
}

// save stores the fields of a blocker that changes alter, and wakes the calls that wait for it.
func (b *Board) save(tx *store.Tx, x *Blocker) error {
	timeline, err := json.Marshal(x.Timeline)
	if err != nil {
		return err
	}
	tx.Exec(updateBlocker, x.Revision, int(x.State), x.EscalatesAt, x.Escalations, x.NextRole, x.ResolvedAt, string(timeline), x.ID)
	b.calendar.Expect(tx, x.EscalatesAt)
	tx.OnCommit(func() { b.hub.Wake(x.ID) })
	return nil
}

// acting returns the session and agent of a call that changes something.
func (b *Board) acting(tx *store.Tx, c identity.Caller) (directory.Session, directory.Agent, error) {
	s, err := b.dir.Session(tx, c.Session)
	if err != nil {
		return s, directory.Agent{}, err
	}
	a, err := b.dir.Acting(tx, s.ID, c)
	return s, a, err
}

// Get returns a blocker, and waits up to wait until it is resolved. Errors: fault.NotFound.
func (b *Board) Get(ctx context.Context, c identity.Caller, id string, wait time.Duration) (Blocker, error) {
	var found Blocker
	look := func() (bool, error) {
		err := b.store.Read(ctx, func(snap *store.Snapshot) error {
			s, err := b.dir.Session(snap, c.Session)
			if err != nil {
				return err
			}
			found, err = find(snap, s.ID, id)
			return err
		})
		return found.State == Resolved, err
	}
	revision, err := work.ParseID(noun, letter, id)
	if err == nil {
		err = b.hub.Await(ctx, wait, []int64{revision}, look)
	}
	return found, err
}

// A Selection says which blockers to list; empty fields do not restrict.
type Selection struct {
	States   []State
	Agent    string // that raised it
	Task     string
	Severity Severity // or a higher one
	Awaited  string   // an agent
	After    int64    // id
	Limit    int
}

// A Page is a part of a list.
type Page struct {
	Blockers []Blocker
	Next     int64 // the id to continue after; 0 = there are no more
	Revision int64 // at which it is true
}

// pageBytes bounds the texts of a page, below the 4 MiB that a client accepts.
const pageBytes = 2 << 20

// List returns the blockers of a selection, oldest first. Errors: fault.NotFound for the session.
func (b *Board) List(ctx context.Context, c identity.Caller, sel Selection) (Page, error) {
	if err := b.store.CheckResume(sel.After); err != nil {
		return Page{}, err
	}
	var p Page
	err := b.store.Read(ctx, func(snap *store.Snapshot) error {
		p = Page{Revision: snap.Revision()}
		s, err := b.dir.Session(snap, c.Session)
		if err != nil {
			return err
		}
		query := listAll
		if len(sel.States) > 0 && !slices.Contains(sel.States, Resolved) {
			query = listUnresolved
		}
		var states int
		for _, s := range sel.States {
			states |= 1 << s
		}
		edge := int64(math.MaxInt64)
		if query == listAll { // a limit bounds the others
			err = snap.QueryRow(selectEdge, s.ID, sel.After, work.MostRead-1).Scan(&edge)
			if err == nil {
				p.Next = edge
			} else if !errors.Is(err, store.ErrNoRows) {
				return err
			}
		}
		rows := snap.Query(query, s.ID, sel.After, edge, states, states, sel.Agent, sel.Agent, sel.Task, sel.Task, int(sel.Severity), sel.Awaited, sel.Awaited,
			sel.Limit+1)
		defer rows.Close()
		for size := 0; rows.Next(); {
			x, err := scan(rows)
			if err != nil {
				return err
			}
			if len(p.Blockers) == sel.Limit || size > pageBytes {
				p.Next = p.Blockers[len(p.Blockers)-1].ID
				break
			}
			p.Blockers = append(p.Blockers, x)
			size += x.size()
		}
		return errors.Join(rows.Err(), rows.Close())
	})
	return p, err
}

// size is about how many bytes a blocker takes in an answer.
func (b *Blocker) size() int {
	n := 1024 + len(b.Reason) + 384*len(b.Timeline)
	for _, e := range b.Timeline {
		n += 2 * len(e.Note) // a resolution is in the answer twice
	}
	return n
}

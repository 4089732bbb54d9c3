package tasks

import (
	"context"
	"fmt"
	"sync"
	"time"

	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Kind is the kind of a task in items, counts, losses and metrics.
const Kind = "task"

// A State is the state of a task. The numbers are those of the API and of the table.
type State int

// The states.
const (
	Waiting State = iota + 1
	Ready
	Claimed
	Blocked
	Done
	Failed
	Cancelled
)

// String returns the name of the state as brokerctl shows it.
func (s State) String() string {
	names := [...]string{"unspecified", "waiting", "ready", "claimed", "blocked", "done", "failed", "cancelled"}
	if s < 0 || int(s) >= len(names) {
		return names[0]
	}
	return names[s]
}

// held reports whether a task in this state has a holder.
func (s State) held() bool { return s == Claimed || s == Blocked }

// finished reports whether a task in this state has ended.
func (s State) finished() bool { return s >= Done }

// A Task is a piece of work.
type Task struct {
	Created      int64 // the revision that created it; its key
	Session      int64 // row id
	ID           string
	Title        string
	Labels       map[string]string
	Priority     int
	Role         string
	Assignee     string
	Capabilities []string
	Parent       int64 // key; 0 = none
	ParentID     string
	MaxAttempts  int
	StaleAfter   time.Duration // 0 = never
	Creator      string
	CreatorRole  string

	State      State
	Revision   int64 // of its last change
	Entered    int64 // revision of its last change of state
	Missing    int   // dependencies that are not DONE
	Holder     string
	Fence      int64
	Attempts   int // that have failed
	Progress   float64
	Note       string
	Error      string
	Reason     string // BLOCKED
	Unblocked  bool   // the last change of state was from BLOCKED to CLAIMED
	CreatedAt  time.Time
	ReadyAt    time.Time
	ClaimedAt  time.Time
	UpdatedAt  time.Time
	BlockedAt  time.Time
	FinishedAt time.Time
	DueAt      time.Time // READY: no claim before; CLAIMED: when it becomes stale

	queue   int64
	texts   bool // it has long texts
	needs   int  // dependencies
	indexed bool // its labels are in task_labels

	// Not in every list.
	Description     string
	Artifacts       []string
	Result          string
	ResultArtifacts []string
	DependsOn       []string
	WaitsFor        *Brief
}

// A Brief is a task in short.
type Brief struct {
	ID       string
	Title    string
	State    State
	Holder   string `json:",omitempty"`
	Revision int64
}

func (t *Task) brief() Brief {
	b := Brief{ID: t.ID, Title: t.Title, State: t.State, Revision: t.Revision}
	if t.State.held() {
		b.Holder = t.Holder
	}
	return b
}

// An Attempt is a claim that has failed or ended early.
type Attempt struct {
	Number    int
	Agent     string
	ClaimedAt time.Time
	EndedAt   time.Time
	Error     string
}

// A Reference is an object that carries the id of a task.
type Reference struct {
	Kind     string
	ID       string
	Title    string
	Revision int64
}

// Related finds objects that carry the id of a task.
type Related interface {
	// Related returns the newest ones, at most limit of each kind.
	Related(q store.Querier, session int64, task string, limit int) ([]Reference, error)
}

// Gates knows which agents get no tasks.
type Gates interface {
	// Halted reports whether a halt is in force for an agent.
	Halted(tx *store.Tx, session int64, agent string) (bool, error)
	// Draining reports whether the broker delivers no new work to any agent.
	Draining(tx *store.Tx) (bool, error)
}

// Blockers knows the blockers that stop tasks.
type Blockers interface {
	// Stopping returns the ids of the unresolved blockers for which a task is BLOCKED, oldest first, at
	// most limit.
	Stopping(q store.Querier, session int64, task string, limit int) ([]string, error)
	// Freed records that a task is no longer BLOCKED for any blocker, because its claim has ended.
	Freed(tx *store.Tx, session int64, task string) error
}

// Tasks keeps the tasks. Its methods may be called concurrently.
type Tasks struct {
	*work.Desk
	related []Related
	gates   Gates    // nil = every agent gets tasks
	stops   Blockers // nil = there are no blockers
	done    []func(tx *store.Tx, session int64, task string) error

	hub      *work.Hub[key]
	calendar *work.Calendar
	backlog  *work.Backlog
	draining sync.Once
	stopping chan struct{} // closed when waiting calls are to end

	// Used by the writer alone.
	queues     store.Memory[int64, *sessionQueues] // by session, once read
	waiters    store.Memory[int64, []*waiter]      // by session, in order of arrival; no list is empty
	searches   store.Memory[int64, *search]        // for READY tasks that have not ended, by the number of the waiter
	numbers    int64                               // of the last waiter
	unfinished store.Memory[int64, int]            // tasks, by session; Start reads them
	damaged    map[int64]bool                      // keys of tasks and queues that were found damaged; see skip
}

// made is called with all that New returns. It is for tests of what the writer keeps in memory.
var made = func(*Tasks) {}

// A key is a task, or an agent, for whose change calls wait.
type key struct {
	session int64
	task    int64
	agent   string
}

// New returns the tasks of a store that was opened with Migrations. Nothing is due before Start.
func New(d *work.Desk) *Tasks {
	own := *d
	own.Log = d.Log.Named("tasks")
	t := &Tasks{Desk: &own, hub: work.NewHub[key](d.Clock), stopping: make(chan struct{}), damaged: map[int64]bool{}}
	t.calendar = work.NewItemCalendar(d.Store, d.Clock, own.Log, entries, t.due)
	t.backlog = work.NewBacklog(d.Store, "tasks", d.Clock, own.Log, t.doChore)
	made(t)
	return t
}

// UseRelated adds a source of objects that carry the id of a task. Call it before Start.
func (t *Tasks) UseRelated(r Related) { t.related = append(t.related, r) }

// UseGates sets the source of halts and drains. Call it before Start.
func (t *Tasks) UseGates(g Gates) { t.gates = g }

// UseBlockers sets the source of blockers. Call it before Start.
func (t *Tasks) UseBlockers(b Blockers) { t.stops = b }

// OnDone adds a function that runs in the transaction in which a task becomes DONE. Call it before
// Start.
func (t *Tasks) OnDone(hook func(tx *store.Tx, session int64, task string) error) {
	t.done = append(t.done, hook)
}

// Start makes the changes that became due while the broker was down, resumes its backlog, and waits
// for other changes. No client may create tasks before it has returned.
func (t *Tasks) Start(ctx context.Context) error {
	err := t.Store.Drain(ctx, func(tx *store.Tx) error {
		rows := tx.Query(countUnfinished)
		defer rows.Close()
		for rows.Next() {
			var session int64
			var n int
			if err := rows.Scan(&session, &n); err != nil {
				return err
			}
			t.unfinished.Set(tx, session, n)
		}
		return rows.Close()
	})
	if err != nil {
		return fmt.Errorf("count unfinished tasks: %w", err)
	}
	t.calendar.Start()
	t.backlog.Start()
	return nil
}

// Drain ends the waits: claims end as fault.Unavailable (SHUTTING_DOWN). It may be called more than
// once.
func (t *Tasks) Drain() {
	t.draining.Do(func() { close(t.stopping) })
	t.hub.Drain()
}

// Stop ends the calendar and the backlog. It may be called more than once.
func (t *Tasks) Stop() {
	t.calendar.Stop()
	t.backlog.Stop()
}

package locks

import (
	"context"
	"sync"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/deadline"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/store"
	"brokerd/internal/tracing"
	"brokerd/internal/work"
)

// Limits of a session.
const (
	maxPaths   = 1000 // of a request
	maxGlobs   = 64   // held or waited for
	maxTickets = 1000
	maxWaiting = 10_000 // paths and tokens of the tickets
	maxHeld    = 2000   // paths and tokens that one agent holds or waits for
)

// Notices sends notices.
type Notices interface {
	// Notify sends a notice in the transaction of the change that it reports. An agent that is not
	// registered receives none.
	Notify(tx *store.Tx, session int64, n work.Notice) error
	// Withdraw withdraws the unread notices that have become moot.
	Withdraw(tx *store.Tx, session int64, m work.Moot) error
}

// An Observer measures waits for locks and tokens. Its method must be quick.
type Observer interface {
	// Waited reports how long a request for a lock or a token ("lock", "token") waited for its grant.
	// It is called after the commit, for requests that could not be granted at once.
	Waited(kind string, d time.Duration)
}

// A Table is the table of locks and tokens. Its methods may be called concurrently; notices are plugged in
// before it is used.
type Table struct {
	store    *store.Store
	log      *events.Log
	dir      *directory.Directory
	clock    clockwork.Clock
	zap      *zap.Logger
	notices  Notices         // nil = no agent is notified
	crew     Crew            // nil = all agents are well
	tracer   *tracing.Tracer // nil = nothing is traced
	observer Observer        // nil = waits are not measured

	// The writer's memory.
	queues  store.Cache[int64, *queue] // by session
	broad   store.Cache[int64, bool]   // whether a session has grants of more than single files
	spots   spots                      // where paths and tokens are held
	pending store.Memory[int64, int64] // by session: the first place in its queue that settle has left
	callers callers                    // calls that wait, and answers
	alarms  *deadline.Queue[alarm]

	stopping chan struct{}      // closed when waiting calls are to end
	stop     context.CancelFunc // ends the runner
	runner   sync.WaitGroup
	once     sync.Once
}

// New returns the table of a store that was opened with Migrations. It does nothing by itself until Start.
func New(st *store.Store, log *events.Log, dir *directory.Directory, clock clockwork.Clock, logger *zap.Logger) *Table {
	t := &Table{
		store: st, log: log, dir: dir, clock: clock, zap: logger,
		stopping: make(chan struct{}),
	}
	t.alarms = deadline.New(clock, alarmRun{t}.due)
	return t
}

// UseNotices plugs in who sends messages; without it nobody is told of anything.
func (t *Table) UseNotices(n Notices) { t.notices = n }

// Observe sets the observer. Call it before Start.
func (t *Table) Observe(o Observer) { t.observer = o }

// Drain ends the calls that wait: they are told to come again, and their tickets stay.
func (t *Table) Drain() { t.once.Do(func() { close(t.stopping) }) }

// Stop ends waiting calls and the runner, and waits for the runner. Stopping twice is fine.
func (t *Table) Stop() {
	t.Drain()
	if t.stop != nil {
		t.stop()
	}
	t.runner.Wait()
}

// Holds reports whether an agent holds what was granted at a revision, whichever of its workers does.
func (t *Table) Holds(q store.Querier, session int64, agent string, fence int64) (bool, error) {
	rows := q.Query(selectHeld, fence, session, agent)
	held := rows.Next()
	return held, rows.Close()
}

// acting finds out who calls. Only registered agents hold anything.
func (t *Table) acting(q store.Querier, c identity.Caller) (directory.Session, directory.Agent, error) {
	session, err := t.dir.Session(q, c.Session)
	if err != nil {
		return directory.Session{}, directory.Agent{}, err
	}
	agent, err := t.dir.Acting(q, session.ID, c)
	if err == nil && agent.Name == identity.System {
		err = fault.AgentRequired()
	}
	return session, agent, err
}

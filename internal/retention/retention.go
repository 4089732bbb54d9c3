package retention

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/deadline"
	"brokerd/internal/events"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Folder is the folder of the archive, below the data folder, unless another one is named.
const Folder = "archive"

// A Session has the times for which its data is kept. 0 = without limit.
type Session struct {
	ID           int64
	Name         string
	KeepMessages time.Duration
	KeepEvents   time.Duration
	KeepDead     time.Duration
	Closed       bool
	Revision     int64                  // of its last change: the closing, if it is closed
	Record       func() ([]byte, error) // the session as a line of JSON
}

// Sessions knows the sessions.
type Sessions interface {
	// All returns all of them.
	All(q store.Querier) ([]Session, error)
	// Delete removes the row of a session with an event, and returns the revision of that.
	Delete(tx *store.Tx, session int64, source, archive string) (int64, error)
}

// Messages knows the messages.
type Messages interface {
	// Standings returns messages after a revision in the order of theirs, of one session or, for 0, of all. Those that are alike may be
	// returned as one, unless each is asked for. At most limit are read.
	Standings(q store.Querier, session, after int64, limit int, each bool) ([]work.Standing, error)
	// Records writes messages, found in the same snapshot, with their deliveries as lines of JSON, each with what Remove has to know. They are
	// good until to returns, which returns false for no more.
	Records(q store.Querier, messages []work.Standing, to func(m *work.Standing, line []byte) bool) error
	// Remove removes finished messages with all that belongs to them; fault.Conflict if one does not stand as it did.
	Remove(tx *store.Tx, messages []work.Standing) error
	// Erase removes messages whatever their standing: up to limit rows. It returns how many of the
	// list it has removed whole, and continues with the others when it is called again.
	Erase(tx *store.Tx, messages []work.Standing, limit int) (int, error)
	// ChannelsKept returns the channels, by session, that have a time of their own for which messages are kept.
	ChannelsKept(q store.Querier) (map[int64]map[string]time.Duration, error)
}

// Log is the log of events.
type Log interface {
	// After returns events after a revision, of one session or, for 0, of all: at most limit, and about that many bytes. It
	// has found all up to the revision looked, perhaps none; looked is 0 if no events follow.
	After(snap *store.Snapshot, session, after int64, limit, bytes int) (found []events.Record, looked int64, err error)
	// Remove removes a session's oldest events.
	Remove(tx *store.Tx, session int64, revisions []int64) error
	// RaiseFloor has all events of a session up to a revision count as removed.
	RaiseFloor(tx *store.Tx, session, revision int64)
	// Forget removes what is kept of a session beside its events.
	Forget(tx *store.Tx, session int64)
	// Append adds an event and returns its revision.
	Append(tx *store.Tx, e events.Entry) (int64, error)
}

// Options say what to keep and where. All are required but Log, Tidy and Archived.
type Options struct {
	Store    *store.Store
	Sessions Sessions
	Messages Messages
	Events   Log
	Parts    []work.Data
	// Closing functions do the rest of the closing of a session, and return when it is done. They run in
	// their order before the export of a closed session.
	Closing []func(ctx context.Context, session int64) error
	// Tidy checks up to limit rows of any session, removes those that are of no more use, and
	// returns how many it has checked: fewer than limit if there are no more.
	Tidy func(tx *store.Tx, limit int) (int64, error)
	Dir  string // the data folder
	// Archive is the folder of the archive, in a folder that exists. Empty = removed data is not archived.
	Archive string
	// Archived runs after a page of a kind was archived, and before it is removed. A test changes
	// something there. Nil = nothing.
	Archived func(kind string)
	Clock    clockwork.Clock
	Log      *zap.Logger
}

// A Keeper archives, exports and deletes. Its methods may be called concurrently.
type Keeper struct {
	Options
	ticks *deadline.Queue[struct{}]

	ctx    context.Context // of the runner
	stop   context.CancelFunc
	runner sync.WaitGroup

	failures int           // runs in a row that failed in part; used by the runner alone
	ran      atomic.Uint64 // changes of the store when it last rested
	seam     func() error  // called between an append and its transaction; for tests
	free     surplus       // of the database file; used by the runner alone

	walks    chan struct{} // has a value while a run or a prune walks through the data
	deleting sync.Mutex    // held during a deletion: one session at a time
	page     sync.Mutex    // held while a page is archived or a session is marked as at rest; guards pack
	pack     packer

	mu   sync.Mutex    // guards held
	held map[int64]int // sessions that are being exported: nothing of them moves into the archive
}

// New returns a keeper. It does nothing by itself until Start.
func New(o Options) *Keeper {
	k := &Keeper{
		Options: o, held: map[int64]int{}, walks: make(chan struct{}, 1),
		seam: func() error { return nil },
	}
	k.ctx, k.stop = context.WithCancel(context.Background())
	k.ticks = deadline.NewCalendar(o.Clock, func([]struct{}) { k.tick(k.ctx) })
	return k
}

// Start cuts the archive back to what was committed and begins to archive what is due.
func (k *Keeper) Start(context.Context) error {
	if err := k.cutBack(k.ctx); err != nil {
		return err
	}
	k.Wake()
	k.runner.Go(func() { k.ticks.Run(k.ctx) })
	return nil
}

// Stop ends the runner and waits for it. Stopping twice is fine.
func (k *Keeper) Stop() {
	k.stop()
	k.runner.Wait()
}

// Wake starts a run at once: a setting has changed.
func (k *Keeper) Wake() { k.ticks.Set(struct{}{}, k.Clock.Now()) }

// wakeBy has it look no later than that.
func (k *Keeper) wakeBy(at time.Time) {
	if planned, ok := k.ticks.Deadline(struct{}{}); !ok || at.Before(planned) {
		k.ticks.Set(struct{}{}, at)
	}
}

// hold keeps a session out of the archive until the returned function is called.
func (k *Keeper) hold(session int64) (release func()) {
	k.page.Lock() // a page that is under way is finished first
	defer k.page.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held[session]++
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.held[session]--; k.held[session] == 0 {
			delete(k.held, session)
			k.Wake()
		}
	}
}

func (k *Keeper) isHeld(session int64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.held[session] > 0
}

package retention

import (
	"context"
	"io"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/deadline"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Folder is the folder of the archive, below the data folder.
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
	// Erase ends up to limit credentials of a session that is being deleted, and reports whether
	// there may be more.
	Erase(tx *store.Tx, session int64, limit int) (bool, error)
	// Delete removes the row of a session with an event, and returns the revision of that.
	Delete(tx *store.Tx, session int64, source, archive string) (int64, error)
}

// A Message is what decides how long messages are kept that follow each other, with no others between them. Of times it has the latest.
type Message struct {
	First      int64 // revision
	Last       int64
	Messages   int
	Session    int64
	CreatedAt  time.Time
	Channel    string
	Deliveries int
	Finished   bool      // every delivery is
	FinishedAt time.Time // when the last one was that is no dead letter
	DeadAt     time.Time // when the last one died
	Follows    bool      // the one before it in the list, with no others between them
	Sums       [3]int64  // of the deliveries that were read: any change of one that is finished shows in them
}

// Messages knows the messages.
type Messages interface {
	// Standings returns messages after a revision in the order of theirs, of one session or, for 0, of all. Those that are alike may be
	// returned as one, unless each is asked for. At most limit are read.
	Standings(q store.Querier, session, after int64, limit int, each bool) ([]Message, error)
	// Records writes messages, found in the same snapshot, with their deliveries as lines of JSON, each with what Remove has to know. They are
	// good until to returns, which returns false for no more.
	Records(q store.Querier, messages []Message, to func(m *Message, line []byte) bool) error
	// Remove removes finished messages with all that belongs to them; fault.Conflict if one does not stand as it did.
	Remove(tx *store.Tx, messages []Message) error
	// Erase removes messages whatever their standing: up to limit rows. It returns how many of the
	// list it has removed whole, and continues with the others when it is called again.
	Erase(tx *store.Tx, messages []Message, limit int) (int, error)
	// AwaitClosed returns when the work that ends with a closed session is done: messages, tasks, votes,
	// decisions, locks and the like are finished.
	AwaitClosed(ctx context.Context, session int64) error
	// ChannelsKept returns the channels, by session, that have a time of their own for which messages are kept.
	ChannelsKept(q store.Querier) (map[int64]map[string]time.Duration, error)
}

// An Event is one entry of the log.
type Event struct {
	Revision int64
	Session  int64
	At       time.Time
	Line     Line
}

// A Line is what can be written as one.
type Line interface {
	// Append appends it as JSON.
	Append(to []byte, session string) ([]byte, error)
}

// Log is the log of events.
type Log interface {
	// After returns events after a revision, of one session or, for 0, of all: at most limit, and about that many bytes. It
	// has found all up to the revision looked, perhaps none; looked is 0 if no events follow.
	After(snap *store.Snapshot, session, after int64, limit, bytes int) (found []Event, looked int64, err error)
	// Remove removes a session's oldest events.
	Remove(tx *store.Tx, session int64, revisions []int64) error
	// RaiseFloor has all events of a session up to a revision count as removed.
	RaiseFloor(tx *store.Tx, session, revision int64)
	// Forget removes what is kept of a session beside its events.
	Forget(tx *store.Tx, session int64)
	// Pruned appends the event of a prune, of a session or, for 0, of the broker itself. It returns
	// the revision of the event.
	Pruned(tx *store.Tx, session int64, source string, s Selection, c Counts) (int64, error)
}

// A Part is another kind of data of a session.
type Part struct {
	File string // of an export
	// Lines returns the rows after a name as lines of JSON, and the name of the last one. No lines
	// are the end.
	Lines func(q store.Querier, session int64, after string, limit int) ([][]byte, string, error)
	// Contents passes the files that belong to the rows to a function, each with its name in the export,
	// in a folder such as artifacts/NAME; nil if there are none.
	Contents func(ctx context.Context, session int64, to func(file string, content io.Reader) error) error
	// Erase removes up to about limit rows of a session that is being deleted, and reports whether
	// there may be more; nil if another part removes them.
	Erase func(tx *store.Tx, session int64, limit int) (bool, error)
	// Forget removes the few rows that Erase leaves, and what is in memory; nil if there are none.
	Forget func(tx *store.Tx, session int64)

	// The fields below are for work that finishes, such as tasks. The keeper archives it when it has
	// been finished for as long as the session keeps messages, and removes it then.

	// Kind names the archive files, such as tasks in tasks-2026-01-02.jsonl.gz. Empty = the part has
	// no such work, and the fields below are nil.
	Kind string
	// Finished returns work of a session that finished at or before a time and that Remove can remove
	// now, the oldest end first: at most limit pieces. A piece stays out of the list as long as
	// unfinished work needs it: a task while an unfinished task depends on it or is its child. It may
	// return fewer pieces than limit, but none only if there are none. The lines are those that Lines
	// returns for the same pieces, JSON objects with at least one field.
	Finished func(q store.Querier, session int64, before time.Time, limit int) ([]work.Done, error)
	// Look is Finished for a part that needs several reads, in place of it. If it returns no pieces, next
	// is when the next piece that may be returned finished; zero if there is none.
	Look func(ctx context.Context, session int64, before time.Time, limit int) (done []work.Done, next time.Time, err error)
	// CountFinished counts the pieces that Finished returns without a limit. Nil = Prune leaves the
	// part out.
	CountFinished func(q store.Querier, session int64, before time.Time) (int64, error)
	// Remove removes pieces that Finished has returned, with all rows that belong to them, and adds no
	// event. Errors: fault.Conflict if Finished would no longer return one of them as it did; the
	// keeper then keeps them all and tries again later.
	Remove func(tx *store.Tx, session int64, done []work.Done) error
}

// Options say what to keep and where. All are required but Log, Tidy and Archived.
type Options struct {
	Store    *store.Store
	Sessions Sessions
	Messages Messages
	Events   Log
	Parts    []Part
	// Tidy checks up to limit rows of any session, removes those that are of no more use, and
	// returns how many it has checked: fewer than limit if there are no more.
	Tidy func(tx *store.Tx, limit int) (int64, error)
	Dir  string // the data folder
	// Archived runs after a page of a kind was archived, and before it is removed. A test changes
	// something there. Nil = nothing.
	Archived func(kind string)
	Clock    clockwork.Clock
	Log      *zap.Logger
}

// A Keeper archives, exports and deletes. Its methods may be called concurrently.
type Keeper struct {
	Options
	root  string // of the archive
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
		Options: o, root: filepath.Join(o.Dir, Folder), held: map[int64]int{}, walks: make(chan struct{}, 1),
		seam: func() error { return nil },
	}
	k.ctx, k.stop = context.WithCancel(context.Background())
	k.ticks = deadline.NewCalendar(o.Clock, func([]struct{}) { k.tick(k.ctx) })
	return k
}

// Start cuts the archive back to what was committed and begins to archive what is due.
func (k *Keeper) Start() error {
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

package store

import (
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/fault"
)

// kickRetry is how long functions at the end of a batch rest after they have failed, and those asked for by Kick after
// a batch that was lost.
const kickRetry = time.Second

// ReasonNoLeader is the reason of the errors of a replica while no other leads, or none that it can reach.
const ReasonNoLeader = "NO_LEADER"

// leaderRetry is how long a caller waits for the next leader.
const leaderRetry = 100 * time.Millisecond

// patience is how long a batch that nobody waits for waits for more work.
const patience = time.Millisecond

// The writer is the one goroutine that changes the database.
type writer struct {
	conn         *conn
	clock        clockwork.Clock
	log          *zap.Logger
	fatal        func(error)
	full         func()       // see Options.Full
	commit       func() error // COMMIT, unless a test lets it fail
	committed    func(Commit) // observes commits; may be nil
	excess       func(Excess) // see Options; may be nil
	ran          func(Work)   // see Options; may be nil
	queued       func(any)    // see Options; may be nil
	drop         func() error // see Options; may be nil
	replicated   bool         // see Options
	opened       time.Time
	uptimeBefore time.Duration // of the runs before this one
	checkpointer *checkpointer
	answers      *answerer

	wake     chan struct{}         // capacity 1: there may be something to do
	stopped  chan struct{}         // closed when the goroutine has ended
	revision atomic.Int64          // of the last commit
	failed   atomic.Bool           // a sync has failed: nothing is run any more
	held     atomic.Int32          // readers that use one snapshot for long
	lost     atomic.Pointer[error] // the callers' error if the last batch could not be committed, else nil
	began    atomic.Int64          // when the batch at hand began on a server, Unix nanoseconds; 0 = there is none

	mu      sync.Mutex // guards the fields below
	lanes   [lanes]queue
	kicks   []round // in the order of Kick, each key once
	kicked  map[any]struct{}
	resting bool // kicks wait until kickRetry is over, or for other work
	closed  bool
	stats   Stats

	// Used by the writer goroutine alone.
	counter int64
	latest  int64 // Unix nanoseconds
	batch   batch
	grown   int   // commits since tidy last looked at the log
	copying bool  // the checkpointer is at work
	copyAt  int64 // bytes of log at which to copy it back next
	warnAt  int64 // bytes of log at which to warn of it next
}

func newWriter(c *conn, cp *checkpointer, m meta, o Options) *writer {
	w := &writer{
		conn: c, clock: o.Clock, log: o.Log, fatal: o.Fatal, full: o.Full, committed: o.Committed, excess: o.Excess, ran: o.Ran,
		queued: o.Queued, drop: o.Drop, replicated: o.Replicated,
		checkpointer: cp, answers: newAnswerer(),
		wake: make(chan struct{}, 1), stopped: make(chan struct{}),
		kicked: map[any]struct{}{}, counter: m.revision, latest: m.latest,
		copyAt: copyLog, warnAt: warnLog, opened: o.Clock.Now(), uptimeBefore: m.uptime,
	}
	for i := range w.lanes {
		w.lanes[i].lines = map[any]*line{}
	}
	w.commit = func() error { return c.do(StepCommit) }
	w.batch.asked = map[any]int{}
	w.revision.Store(m.revision)
	return w
}

// nudge lets the writer look whether there is something to do.
func (w *writer) nudge() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// stop lets the writer finish what it has accepted.
func (w *writer) stop() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.nudge()
	<-w.stopped
}

func (w *writer) run() {
	defer close(w.stopped)
	defer w.answers.stop()
	go w.answers.run(w.answer)
	for {
		for w.busy() {
			w.runBatch()
			w.tidy()
		}
		if w.finished() {
			return
		}
		<-w.wake
		w.tidy()
	}
}

func (w *writer) busy() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lanes[LaneFill].tasks > 0 || w.lanes[LaneDrain].tasks > 0 || len(w.kicks) > 0 && !w.resting
}

// atEase reports whether nothing asks for the end of a batch.
func (w *writer) atEase() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.closed && (len(w.kicks) == 0 || w.resting)
}

func (w *writer) finished() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.closed && w.lanes[LaneFill].tasks == 0 && w.lanes[LaneDrain].tasks == 0
}

// syncFailed ends all writing for good.
func (w *writer) syncFailed(err error) {
	if !w.failed.Swap(true) {
		w.fatal(err)
	}
}

func (w *writer) kickAll(endings []round) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range endings {
		w.kick(e)
	}
}

// kick notes an ending for the next batch. The caller holds mu.
func (w *writer) kick(e round) {
	if _, known := w.kicked[e.key]; !known {
		w.kicked[e.key] = struct{}{}
		w.kicks = append(w.kicks, e)
	}
}

// kickLater is kickAll in a second.
func (w *writer) kickLater(endings []round) {
	if len(endings) == 0 {
		return
	}
	w.kickAll(endings)
	w.mu.Lock()
	w.resting = true
	w.mu.Unlock()
	w.clock.AfterFunc(kickRetry, func() {
		w.mu.Lock()
		w.resting = false
		w.mu.Unlock()
		w.nudge()
	})
}

// guard keeps a panic in somebody else's function from ending the writer.
func (w *writer) guard(fn func()) {
	defer func() {
		if p := recover(); p != nil {
			_ = w.panicked(p)
		}
	}()
	fn()
}

func (w *writer) panicked(p any) error {
	w.log.Error("panic in the writer", zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
	return fault.New(fault.Internal, "PANIC", "a defect of the broker: see its log")
}

// errNoLeader is the error for calls of a replica that has lost the lead.
func errNoLeader() error {
	e := fault.New(fault.Unavailable, ReasonNoLeader, "this replica no longer leads: ask again, and another one answers")
	e.RetryAfter = leaderRetry
	return e
}

func errSyncFailed() error {
	return fault.New(fault.Unavailable, "SYNC_FAILED",
		"the broker does not know what its database has kept, and is going down: start it again")
}

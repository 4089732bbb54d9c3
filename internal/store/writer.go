package store

import (
	"context"
	"errors"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/fault"
)

const (
	batchTime = 4 * time.Millisecond
	batchRows = 1000
	kickRetry = time.Second // until functions asked for by Kick are tried again after a batch has failed
)

// The writer is the one goroutine that changes the database.
type writer struct {
	conn         *conn
	clock        clockwork.Clock
	log          *zap.Logger
	fatal        func(error)
	commit       func() error // COMMIT, unless a test lets it fail
	checkpointer *checkpointer

	wake     chan struct{} // room for one: there may be something to do
	stopped  chan struct{} // closed when the goroutine has ended
	revision atomic.Int64  // of the last commit
	failed   atomic.Bool   // a sync has failed: nothing is run any more

	mu      sync.Mutex // guards the fields below
	lanes   [lanes]queue
	kicks   []ending // in the order of Kick, each key once
	kicked  map[any]struct{}
	resting bool // kicks wait until kickRetry is over, or for other work
	closed  bool
	stats   Stats

	// Used by the writer goroutine alone.
	counter  int64
	latest   int64 // Unix nanoseconds
	batch    batch
	refusing bool  // the last batch was lost
	grown    bool  // something was committed since tidy last looked
	copying  bool  // the checkpointer is at work
	copyAt   int64 // bytes of log at which to copy it back next
	warnAt   int64 // bytes of log at which to warn of it next
}

// A batch is one transaction in the making.
type batch struct {
	tasks    []*task
	onCommit []func()
	endings  []ending
	ended    int         // how many of endings have run, or are running
	asked    map[any]int // where in endings a key stands
	later    []ending    // asked for after they had run: for the next batch
	kicks    []ending    // asked for by Kick: these do not get lost with the batch
	started  time.Time
	rows     int
	filled   bool  // a function of LaneFill has run
	dirty    bool  // there is something to commit
	lost     error // why the transaction is gone or cannot be committed
}

func newWriter(c *conn, cp *checkpointer, m meta, o Options) *writer {
	w := &writer{
		conn: c, clock: o.Clock, log: o.Log, fatal: o.Fatal, checkpointer: cp,
		wake: make(chan struct{}, 1), stopped: make(chan struct{}),
		kicked: map[any]struct{}{}, counter: m.revision, latest: m.latest,
		copyAt: copyLog, warnAt: warnLog,
	}
	w.commit = func() error { return c.run(`COMMIT`) }
	w.batch.asked = map[any]int{}
	w.revision.Store(m.revision)
	return w
}

// Write runs fn in the writer, in LaneFill, and returns when its outcome is on disk: nil, what fn
// returned, or fault.Unavailable if the whole batch could not be committed (reasons DISK_FULL,
// IO_ERROR, BUSY, SYNC_FAILED) or the store is closed (SHUTTING_DOWN). A panic in fn is
// fault.Internal. Until the writer picks the function up the caller may give up, and gets
// fault.Canceled or fault.Deadline; from then on Write waits.
//
// fn decides only on what it reads through its Tx. If it returns an error nothing of it remains. It
// must not call Write, Drain or Close.
func (s *Store) Write(ctx context.Context, fn func(*Tx) error) error {
	return s.write(ctx, LaneFill, fn)
}

// Drain is Write for work that empties mailboxes. It runs before the functions of Write that wait
// for the same batch; each batch runs at least one of those nevertheless.
func (s *Store) Drain(ctx context.Context, fn func(*Tx) error) error {
	return s.write(ctx, LaneDrain, fn)
}

func (s *Store) write(ctx context.Context, lane Lane, fn func(*Tx) error) error {
	if err := ctx.Err(); err != nil {
		return gaveUp(err)
	}
	t := s.tasks.Get().(*task)
	t.fn = fn
	t.state.Store(waiting)
	if !s.writer.push(lane, t) {
		return errClosed()
	}
	select {
	case err := <-t.answer:
		return s.recycle(t, err)
	case <-ctx.Done():
		if t.state.CompareAndSwap(waiting, givenUp) {
			return gaveUp(ctx.Err()) // the task still stands in its lane
		}
		return s.recycle(t, <-t.answer)
	}
}

func (s *Store) recycle(t *task, err error) error {
	t.fn, t.err = nil, nil
	s.tasks.Put(t)
	return err
}

// Submit is Write or Drain without waiting: done is called with the outcome. It runs in the writer
// after the functions of OnCommit and must be quick, must not block and must not call Write,
// Drain or Close. After Close, Submit calls done itself before it returns.
func (s *Store) Submit(lane Lane, fn func(*Tx) error, done func(error)) {
	if !s.writer.push(lane, &task{fn: fn, done: done}) {
		done(errClosed())
	}
}

// Kick asks the writer to run fn as an AtEnd function in the next batch, and to start one if it is
// idle. Until it has run, further calls with the same key do nothing. If the batch fails it is
// tried again; it is dropped if it fails by itself, and when the store closes.
func (s *Store) Kick(key any, fn func(*Tx) error) {
	w := s.writer
	w.mu.Lock()
	if !w.closed {
		w.kick(ending{key, fn})
	}
	w.mu.Unlock()
	w.nudge()
}

func (w *writer) push(lane Lane, t *task) bool {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return false
	}
	t.lane = lane
	w.lanes[lane].push(t)
	w.mu.Unlock()
	w.nudge()
	return true
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
	return w.lanes[LaneFill].len() > 0 || w.lanes[LaneDrain].len() > 0 || len(w.kicks) > 0 && !w.resting
}

func (w *writer) finished() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.closed && w.lanes[LaneFill].len() == 0 && w.lanes[LaneDrain].len() == 0
}

// runBatch makes one transaction of what is waiting, and answers.
func (w *writer) runBatch() {
	b := &w.batch
	b.started = w.clock.Now()
	if w.failed.Load() {
		b.lost = errSyncFailed()
	} else {
		b.lost = w.conn.run(`BEGIN IMMEDIATE`)
	}
	for t := w.next(); t != nil; t = w.next() {
		b.tasks = append(b.tasks, t)
		if b.lost == nil {
			t.err = w.function(t.fn)
		}
	}
	w.end()
	if b.lost == nil && b.dirty {
		b.lost = w.conn.run(`UPDATE meta SET revision = ?, latest = ? WHERE id = 1`, w.counter, w.latest)
	}
	begun := w.clock.Now()
	if b.lost == nil {
		b.lost = w.commit()
	}
	took := w.clock.Since(begun)
	if b.lost != nil {
		w.undo()
	} else {
		w.settle()
	}
	w.count(took)
	for _, t := range b.tasks {
		w.answer(t)
	}
	b.reset()
}

// next picks the next function of the batch up: those that empty mailboxes first, as long as the
// batch has room; but one that fills them in every batch. A batch that is lost takes what is there.
func (w *writer) next() *task {
	b := &w.batch
	room := b.lost != nil || b.rows < batchRows && w.clock.Since(b.started) < batchTime
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		var t *task
		switch {
		case room && w.lanes[LaneDrain].len() > 0:
			t = w.lanes[LaneDrain].pop()
		case w.lanes[LaneFill].len() > 0 && (room || !b.filled):
			t = w.lanes[LaneFill].pop()
		default:
			return nil
		}
		if !t.state.CompareAndSwap(waiting, pickedUp) {
			continue
		}
		b.filled = b.filled || t.lane == LaneFill
		return t
	}
}

// function runs one function of the batch.
func (w *writer) function(fn func(*Tx) error) error {
	tx := &Tx{writer: w, now: w.clock.Now()}
	w.latest = max(w.latest, tx.now.UnixNano())
	err := tx.call(fn)
	tx.over = true
	w.conn.closeRows()
	b := &w.batch
	if err != nil {
		w.look(err)
	}
	if b.lost != nil {
		return b.lost
	}
	if err != nil {
		if tx.saved {
			b.lost = w.conn.run(`ROLLBACK TO fn`)
			if b.lost == nil {
				b.lost = w.conn.run(`RELEASE fn`)
			}
		}
		return err
	}
	if tx.saved {
		if b.lost = w.conn.run(`RELEASE fn`); b.lost != nil {
			return b.lost
		}
	}
	b.rows += tx.rows
	b.dirty = b.dirty || tx.rows > 0 || tx.numbered
	b.onCommit = append(b.onCommit, tx.onCommit...)
	for _, e := range tx.endings {
		w.ask(e)
	}
	return nil
}

// look finds out whether an error has cost the whole transaction: a full disk or an I/O error may
// roll it back behind the savepoints' back, and the next savepoint would begin another.
func (w *writer) look(err error) {
	if w.batch.lost == nil && !w.conn.standing() {
		w.batch.lost = err
	}
}

// ask puts a function at the end of the batch, or into the next batch if its key has already run.
func (w *writer) ask(e ending) {
	b := &w.batch
	i, known := b.asked[e.key]
	switch {
	case !known:
		b.asked[e.key] = len(b.endings)
		b.endings = append(b.endings, e)
	case i < b.ended:
		b.later = append(b.later, e)
	}
}

// end runs the functions at the end of the batch, those that they ask for included.
func (w *writer) end() {
	b := &w.batch
	w.mu.Lock()
	b.kicks, w.kicks = w.kicks, b.kicks[:0]
	clear(w.kicked)
	w.resting = false
	w.mu.Unlock()
	for _, k := range b.kicks {
		w.ask(k)
	}
	for b.lost == nil && b.ended < len(b.endings) {
		e := b.endings[b.ended]
		b.ended++
		if err := w.function(e.fn); err != nil && b.lost == nil {
			w.log.Error("function at the end of a batch failed", zap.Any("key", e.key), zap.Error(err))
		}
	}
}

// settle makes known what has been committed.
func (w *writer) settle() {
	b := &w.batch
	if b.dirty {
		w.revision.Store(w.counter)
		w.grown = true
	}
	if w.refusing {
		w.refusing = false
		w.log.Info("writing works again")
	}
	for _, fn := range b.onCommit {
		w.guard(fn)
	}
	w.kickAll(b.later)
}

// undo gives a lost batch up: none of its functions counts, and none is run again but those that
// nobody waits for.
func (w *writer) undo() {
	b := &w.batch
	if w.conn.standing() {
		if err := w.conn.run(`ROLLBACK`); err != nil {
			w.log.Error("roll back", zap.Error(err))
		}
	}
	if !w.refusing {
		w.refusing = true
		w.log.Error("nothing can be written", zap.Error(b.lost), zap.NamedError("cause", errors.Unwrap(b.lost)))
	}
	if syncFailed(b.lost) {
		w.syncFailed(b.lost)
	}
	err := refusal(b.lost)
	for _, t := range b.tasks {
		t.err = err
	}
	if len(b.kicks) > 0 && !w.failed.Load() {
		w.kickAll(b.kicks)
		w.mu.Lock()
		w.resting = true
		w.mu.Unlock()
		w.clock.AfterFunc(kickRetry, w.retryKicks)
	}
}

// syncFailed ends all writing for good.
func (w *writer) syncFailed(err error) {
	if !w.failed.Swap(true) {
		w.fatal(err)
	}
}

func (w *writer) kickAll(endings []ending) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range endings {
		w.kick(e)
	}
}

// kick notes an ending for the next batch. The caller holds mu.
func (w *writer) kick(e ending) {
	if _, known := w.kicked[e.key]; !known {
		w.kicked[e.key] = struct{}{}
		w.kicks = append(w.kicks, e)
	}
}

func (w *writer) retryKicks() {
	w.mu.Lock()
	w.resting = false
	w.mu.Unlock()
	w.nudge()
}

// answer tells a caller the outcome.
func (w *writer) answer(t *task) {
	if t.done == nil {
		t.answer <- t.err
		return
	}
	w.guard(func() { t.done(t.err) })
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

// reset empties the batch and keeps its memory.
func (b *batch) reset() {
	clear(b.tasks)
	clear(b.onCommit)
	clear(b.endings)
	clear(b.asked)
	clear(b.kicks)
	clear(b.later)
	*b = batch{
		tasks: b.tasks[:0], onCommit: b.onCommit[:0], endings: b.endings[:0],
		asked: b.asked, kicks: b.kicks[:0], later: b.later[:0],
	}
}

// refusal is what the functions of a lost batch get.
func refusal(lost error) error {
	if fault.KindOf(lost) == fault.Unavailable {
		return lost
	}
	e := fault.New(fault.Unavailable, "IO_ERROR", "the broker cannot write")
	e.Cause = lost
	return e
}

func errSyncFailed() error {
	return fault.New(fault.Unavailable, "SYNC_FAILED", "the broker could not sync its disk and is going down")
}

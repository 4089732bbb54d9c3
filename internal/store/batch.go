package store

import (
	"errors"
	"slices"
	"time"

	"go.uber.org/zap"

	"brokerd/internal/fault"
)

const (
	batchTime = 4 * time.Millisecond
	batchRows = 1000
)

// A batch is one transaction in the making.
type batch struct {
	tasks    []*task
	deferred Deferred
	onCommit []func()
	drops    []func()
	rounds   []round // of the functions so far, to run before a function that does not only note
	endings  []round
	ended    int         // how many of endings have run, or are running
	asked    map[any]int // where in endings a key stands
	later    []round     // asked for after they had run: for the next batch
	failed   []round     // these run again when kickRetry is over
	kicks    []round     // asked for by Kick: these do not get lost with the batch
	waiting  *time.Timer // ends the wait for more work
	started  time.Time
	rows     int
	noted    int   // rows that rounds are still to change
	filled   bool  // a function of LaneFill has run
	hurried  bool  // somebody waits for the commit
	touched  bool  // a function that succeeded has asked for a statement that may change something
	dirty    bool  // something has changed
	lost     error // why the transaction is gone or cannot be committed
	defect   bool  // a defect has lost it, not the disk
	left     bool  // statements run together with the commit
	careful  bool  // the statements of a function are sent, in a savepoint, before the next function
}

// runBatch makes one transaction of what is waiting, and answers.
func (w *writer) runBatch() {
	b := &w.batch
	b.started = w.clock.Now()
	if w.conn.sqlite == nil {
		w.began.Store(b.started.UnixNano())
		defer w.began.Store(0)
	}
	if b.lost = w.halted(); b.lost == nil {
		b.lost = w.conn.do(StepBegin)
	}
	for !b.defect {
		t := w.next()
		if t == nil {
			if w.awaitMoreWork() {
				continue
			}
			break
		}
		b.tasks = append(b.tasks, t)
		if !t.notes {
			w.runRounds()
		}
		if b.lost == nil {
			before := b.rows + b.noted
			t.err = w.function(t.fn, false)
			w.charge(t.lane, b.rows+b.noted-before)
		}
	}
	w.end()
	took := w.finish()
	if b.defect {
		w.runAgain()
		took = w.finish()
	}
	if b.lost != nil {
		w.undo()
	} else {
		w.settle()
	}
	w.count(took)
	empty, taken := w.answers.take(b.tasks)
	if !taken {
		for _, t := range b.tasks {
			w.answer(t)
		}
		clear(b.tasks)
	}
	b.tasks = empty
	if b.waiting != nil {
		b.waiting.Stop()
	}
	b.reset()
}

// runAgain runs the functions of a batch that a defect has lost a second time, one by one, so that only the function
// with the defect fails.
func (w *writer) runAgain() {
	b := &w.batch
	w.log.Error("a statement failed after the end of its function: the functions of the batch run again, one by one", zap.Error(b.lost))
	w.putBack(b.drops)
	if b.lost = w.conn.do(StepRollback); b.lost == nil {
		b.lost = w.conn.do(StepBegin)
	}
	b.again()
	for _, t := range b.tasks {
		if b.lost != nil {
			return
		}
		t.err = w.function(t.fn, false)
	}
	w.end()
}

// finish ends the transaction, unless it is lost, and returns the time that this takes. Where nothing is left but what
// was undone it rolls back: SQLite would write, and sync, the pages that were changed and changed back.
func (w *writer) finish() time.Duration {
	b := &w.batch
	if b.lost != nil {
		return 0
	}
	if b.dirty {
		b.lost = w.conn.count(Counter{w.counter, w.latest, w.uptime()})
	}
	begun := w.clock.Now()
	if b.lost == nil {
		b.lost = w.halted()
	}
	switch {
	case b.lost != nil:
	case !b.touched && !b.dirty:
		b.lost = w.conn.do(StepRollback)
	default:
		b.lost = w.commit()
		b.defect = b.lost != nil && b.left && fault.KindOf(b.lost) != fault.Unavailable && !syncFailed(b.lost)
	}
	return w.clock.Since(begun)
}

// next picks the next function of the batch up: those that empty mailboxes first, as long as the
// batch has capacity; but one that fills them in every batch. A function that will probably be heavy
// begins the batch, or is the one that fills mailboxes. A batch that is lost takes all functions.
func (w *writer) next() *task {
	b := &w.batch
	w.mu.Lock()
	defer w.mu.Unlock()
	rows, limit := batchRows, batchTime
	if w.lanes[LaneFill].flooded() { // a caller with one function waits for the batch at hand and for the next
		rows, limit = rows/2, limit/2
	}
	capacity := b.lost != nil || b.rows+b.noted < rows && w.clock.Since(b.started) < limit
	for {
		var t *task
		switch {
		case capacity && w.lanes[LaneDrain].tasks > 0:
			t = w.lanes[LaneDrain].pop(b.lost == nil && len(b.tasks) > 0)
		case w.lanes[LaneFill].tasks > 0 && (capacity || !b.filled):
			t = w.lanes[LaneFill].pop(b.lost == nil && b.filled)
		}
		if t == nil {
			return nil
		}
		if !t.state.CompareAndSwap(waiting, pickedUp) {
			continue
		}
		b.filled = b.filled || t.lane == LaneFill
		return t
	}
}

// charge has the caller of the function that has just run pay for it.
func (w *writer) charge(lane Lane, rows int) {
	w.mu.Lock()
	w.lanes[lane].charge(rows)
	w.mu.Unlock()
}

// awaitMoreWork waits for further work if nobody waits for the batch, and reports whether there may be some.
func (w *writer) awaitMoreWork() bool {
	b := &w.batch
	if b.hurried || b.lost != nil || len(b.tasks) == 0 || !w.atEase() {
		return false
	}
	if b.waiting == nil {
		b.waiting = time.NewTimer(patience) //nolint:forbidigo // it spares the disk a sync, and nothing that anybody can see depends on it
	}
	select {
	case <-w.wake:
		return true
	case <-b.waiting.C:
		b.hurried = true
		return false
	}
}

// function runs one function of the batch. The failure of one that is whole loses the batch.
func (w *writer) function(fn func(*Tx) error, whole bool) (err error) {
	b := &w.batch
	tx := &Tx{writer: w, now: w.clock.Now(), first: len(b.deferred.statements), whole: whole}
	tx.drops = tx.memory[:0]
	w.latest = max(w.latest, tx.now.UnixNano())
	defer func() {
		if err != nil {
			w.putBack(tx.drops)
		}
	}()
	if b.careful && w.conn.sqlite == nil {
		err = tx.save() // a server refuses everything after a read that has failed, too
	}
	if err == nil {
		err = tx.call(fn)
	}
	if err == nil && b.careful {
		err = tx.runRounds()
	}
	w.conn.closeRows()
	if err == nil && tx.changing && w.drop != nil {
		err = w.drop()
	}
	if err == nil && b.careful {
		err = tx.send(false)
	}
	if tx.failed != nil {
		err = tx.failed
	}
	if failure := w.conn.failed(); failure != nil {
		if err == nil {
			err = failure
		}
		if !tx.saved {
			w.lose(err)
		}
	}
	tx.over = true
	if tx.excess != "" {
		w.exceeded(tx)
	}
	if w.ran != nil {
		tx.work.OnCommits, tx.work.Round = len(tx.onCommit), whole || b.ended > 0
		w.ran(tx.work)
	}
	if err != nil {
		w.look(err)
	}
	if b.lost != nil {
		return b.lost
	}
	if err != nil {
		b.deferred.cut(tx.first)
		if tx.saved {
			b.lost = w.conn.do(StepUndo)
		}
		b.hurried = true
		return err
	}
	if tx.saved {
		if b.lost = w.conn.do(StepRelease); b.lost != nil {
			return b.lost
		}
	}
	b.hurried = b.hurried || !tx.patient
	b.rows += tx.rows
	b.noted += tx.noted
	b.touched = b.touched || tx.changing
	b.dirty = b.dirty || tx.changed || tx.numbered
	b.onCommit = append(b.onCommit, tx.onCommit...)
	b.drops = append(b.drops, tx.drops...)
	for _, r := range tx.rounds {
		w.ask(r)
	}
	if n := len(b.deferred.statements); n > mostDeferredOnServer || n > mostDeferred && w.conn.sqlite != nil {
		w.sendAll()
	}
	return nil
}

// look finds out whether an error has cost the whole transaction: a full disk or an I/O error may
// roll it back behind the savepoints' back, and the next savepoint would begin another.
func (w *writer) look(err error) {
	if w.batch.lost == nil && w.conn.db.State() == StateEnded {
		w.batch.lost = err
	}
}

// ask puts a round among those that are to run, or an ending that has already run into the next batch.
func (w *writer) ask(e round) {
	b := &w.batch
	i, known := b.asked[e.key]
	switch {
	case !e.ending:
		if !slices.ContainsFunc(b.rounds, func(r round) bool { return r.key == e.key }) {
			b.rounds = append(b.rounds, e)
		}
	case !known:
		b.asked[e.key] = len(b.endings)
		b.endings = append(b.endings, e)
	case i < b.ended:
		b.later = append(b.later, e)
	}
}

// runRounds runs the rounds of the functions so far. The failure of a round is a defect, for which the batch is lost: its
// functions run again, each with its own round.
func (w *writer) runRounds() {
	b := &w.batch
	b.noted = 0
	for b.lost == nil && len(b.rounds) > 0 {
		r := b.rounds[0]
		b.rounds = slices.Delete(b.rounds, 0, 1)
		if err := w.function(r.run, true); err != nil {
			w.lose(err)
		}
	}
}

// runRounds runs the rounds of one function as parts of it.
func (tx *Tx) runRounds() error {
	for i := 0; i < len(tx.rounds); i++ {
		if r := tx.rounds[i]; !r.ending {
			if err := tx.call(r.run); err != nil {
				return err
			}
		}
	}
	tx.rounds = slices.DeleteFunc(tx.rounds, func(r round) bool { return !r.ending })
	return nil
}

// end runs the rounds that are left and the endings, those that they ask for included.
func (w *writer) end() {
	w.runRounds()
	b := &w.batch
	w.mu.Lock()
	b.kicks = append(b.kicks, w.kicks...)
	clear(w.kicks)
	w.kicks = w.kicks[:0]
	clear(w.kicked)
	w.resting = false
	w.mu.Unlock()
	for _, k := range b.kicks {
		w.ask(k)
	}
	for b.lost == nil && b.ended < len(b.endings) {
		e := b.endings[b.ended]
		b.ended++
		if err := w.function(e.run, false); err != nil && b.lost == nil {
			w.log.Error("function at the end of a batch failed", zap.Error(err))
			b.failed = append(b.failed, e)
		}
	}
	w.leave()
}

// settle makes known what has been committed.
func (w *writer) settle() {
	b := &w.batch
	if b.dirty {
		w.revision.Store(w.counter)
		w.grown++
		if w.lost.Load() != nil {
			w.lost.Store(nil)
			w.log.Info("writing works again")
		}
	}
	for _, fn := range b.onCommit {
		w.guard(fn)
	}
	w.kickAll(b.later)
	w.kickLater(b.failed)
}

// undo gives up a batch that the disk has lost: all its functions fail, and the writer runs none of
// them again except those of Kick.
func (w *writer) undo() {
	b := &w.batch
	w.putBack(b.drops)
	if w.conn.db.State() != StateEnded {
		if err := w.conn.do(StepRollback); err != nil {
			w.log.Error("roll back", zap.Error(err))
		}
	}
	err := refusal(b.lost)
	if syncFailed(b.lost) && w.replicated {
		err = errNoLeader()
	}
	if w.lost.Swap(&err) == nil {
		w.log.Error("nothing can be written", zap.Error(b.lost), zap.NamedError("cause", errors.Unwrap(b.lost)))
	}
	if isFull(b.lost) {
		w.full()
		w.copyAt, w.grown = 0, lookEvery // a log that starts over needs no more space
	}
	if syncFailed(b.lost) {
		w.syncFailed(b.lost)
	}
	for _, t := range b.tasks {
		t.err = err
	}
	if w.halted() == nil {
		w.kickLater(b.kicks)
	}
}

// putBack puts back what dropped functions have changed in memory, the newest change first.
func (w *writer) putBack(fns []func()) {
	for _, fn := range slices.Backward(fns) {
		w.guard(fn)
	}
}

// answer tells a caller the outcome.
func (w *writer) answer(t *task) {
	if t.done == nil {
		t.answer <- t.err
		return
	}
	w.guard(func() { t.done(t.err) })
}

// reset empties the batch and keeps its memory.
func (b *batch) reset() {
	b.again()
	clear(b.kicks)
	*b = batch{
		tasks: b.tasks[:0], deferred: b.deferred, onCommit: b.onCommit, drops: b.drops,
		rounds: b.rounds, endings: b.endings, asked: b.asked, kicks: b.kicks[:0], later: b.later, failed: b.failed,
	}
}

// again forgets the first run of the batch's functions.
func (b *batch) again() {
	b.deferred.empty()
	clear(b.onCommit)
	clear(b.drops)
	clear(b.rounds)
	clear(b.endings)
	clear(b.asked)
	clear(b.later)
	clear(b.failed)
	b.onCommit, b.drops, b.later, b.failed = b.onCommit[:0], b.drops[:0], b.later[:0], b.failed[:0]
	b.rounds, b.endings = b.rounds[:0], b.endings[:0]
	b.ended, b.rows, b.noted = 0, 0, 0
	b.touched, b.dirty, b.defect, b.left, b.careful = false, false, false, false, true
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

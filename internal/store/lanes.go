package store

import (
	"context"
	"sync/atomic"
)

// A Lane is where a function waits for the writer. Functions of one caller run in one lane in the
// order in which they came; callers take turns (see WithCaller).
type Lane int

const (
	// LaneFill is for work that may fill mailboxes.
	LaneFill Lane = iota
	// LaneDrain is for work that empties them: it goes first, so that a backlog never keeps itself
	// from shrinking.
	LaneDrain
	lanes
)

// Write runs fn in the writer, in LaneFill, and returns when its outcome is on disk: nil, what fn
// returned, or fault.Unavailable if the whole batch could not be committed (reasons DISK_FULL,
// IO_ERROR, BUSY, SYNC_FAILED) or the store is closed (SHUTTING_DOWN). A panic in fn is
// fault.Internal. Until the writer picks the function up the caller may give up, and gets
// fault.Canceled or fault.Deadline; from then on Write waits. Write also waits while its caller has
// too many functions queued.
//
// fn decides only on what it reads through its Tx. If it returns an error nothing of it remains. It
// must not call Write, Drain or Close.
//
// fn can run twice (see Tx.Exec), and must then have the same outcome as after one run: it sets
// its results at its start, and changes memory only in OnCommit or by the Tx (see Memory).
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
	if err := s.writer.push(ctx, lane, t); err != nil {
		return s.recycle(t, err)
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

// Submit is Write or Drain without waiting for the outcome: done is called with it. done runs after
// the functions of OnCommit, in the order of the functions, in the writer or beside it; it must be
// quick, must not block and must not call Write, Drain or Close. After Close, Submit calls done
// itself before it returns.
//
// size is how many bytes fn keeps in memory, about. While the caller of ctx has too much queued,
// Submit blocks; if ctx ends meanwhile, it calls done with fault.Canceled or fault.Deadline. It
// ignores the end of ctx otherwise, and without a caller it never blocks.
func (s *Store) Submit(ctx context.Context, lane Lane, size int, fn func(*Tx) error, done func(error)) {
	s.submit(ctx, lane, &task{fn: fn, size: size, done: done})
}

// SubmitNotes is Submit for a function that reads nothing that rounds of NewRound change. The rounds of the functions
// before it wait, and so serve several functions at once.
func (s *Store) SubmitNotes(ctx context.Context, lane Lane, size int, fn func(*Tx) error, done func(error)) {
	s.submit(ctx, lane, &task{fn: fn, size: size, done: done, notes: true})
}

func (s *Store) submit(ctx context.Context, lane Lane, t *task) {
	if err := s.writer.push(ctx, lane, t); err != nil {
		t.done(err)
	}
}

// push queues a task for the caller of ctx, once the caller has capacity for it.
func (w *writer) push(ctx context.Context, lane Lane, t *task) error {
	caller := ctx.Value(callerKey{})
	t.lane = lane
	q := &w.lanes[lane]
	w.mu.Lock()
	for !w.closed {
		full := q.full(caller)
		if full == nil {
			q.push(caller, t)
			if w.queued != nil {
				w.queued(caller)
			}
			w.mu.Unlock()
			w.nudge()
			return nil
		}
		w.mu.Unlock()
		select {
		case <-full:
		case <-ctx.Done():
			return gaveUp(ctx.Err())
		}
		w.mu.Lock()
	}
	w.mu.Unlock()
	return errClosed()
}

// A task is a function that waits for the writer.
type task struct {
	fn     func(*Tx) error
	lane   Lane
	size   int
	notes  bool        // see SubmitNotes
	next   *task       // in its line
	done   func(error) // for Submit
	answer chan error  // for Write and Drain, who wait for it; capacity 1
	err    error
	state  atomic.Int32
}

// States of a task: its caller and the writer both try to move it on from waiting, and one wins.
const (
	waiting int32 = iota
	pickedUp
	givenUp
)

package store

import (
	"context"
	"sync/atomic"
)

// A Lane is where a function waits for the writer. Functions of one lane run in the order in which
// they came.
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

// Submit is Write or Drain without waiting: done is called with the outcome. It runs after the
// functions of OnCommit, in the order of the functions, in the writer or beside it; it must be quick, must not block and
// must not call Write, Drain or Close. After Close, Submit calls done itself before it returns.
func (s *Store) Submit(lane Lane, fn func(*Tx) error, done func(error)) {
	if !s.writer.push(lane, &task{fn: fn, done: done}) {
		done(errClosed())
	}
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

// A task is a function that waits for the writer.
type task struct {
	fn     func(*Tx) error
	lane   Lane
	done   func(error) // for Submit
	answer chan error  // for Write and Drain, who wait for it; room for one
	err    error
	state  atomic.Int32
}

// States of a task: its caller and the writer both try to move it on from waiting, and one wins.
const (
	waiting int32 = iota
	pickedUp
	givenUp
)

// A queue is first in, first out, and keeps its memory.
type queue struct {
	tasks []*task
	head  int
}

func (q *queue) len() int { return len(q.tasks) - q.head }

func (q *queue) push(t *task) { q.tasks = append(q.tasks, t) }

func (q *queue) pop() *task {
	t := q.tasks[q.head]
	q.tasks[q.head] = nil
	q.head++
	switch {
	case q.head == len(q.tasks):
		q.tasks, q.head = q.tasks[:0], 0
	case q.head >= 1024 && q.head*2 >= len(q.tasks): // never quite empty: move down, or it grows for ever
		n := copy(q.tasks, q.tasks[q.head:])
		clear(q.tasks[n:])
		q.tasks, q.head = q.tasks[:n], 0
	}
	return t
}

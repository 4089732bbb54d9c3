package store

import "sync/atomic"

// A Lane is where a function waits for the writer. Functions of one lane run in the order in which
// they came.
type Lane int

const (
	LaneFill  Lane = iota // work that may fill mailboxes
	LaneDrain             // work that empties them: goes first, so that a backlog never keeps it from shrinking
	lanes
)

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

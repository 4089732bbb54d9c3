package store

import "sync/atomic"

// fewAnswers is up to how many callers the writer answers itself, if nobody is answering others.
const fewAnswers = 4

// An answerer tells callers their outcome beside the writer: waking a caller takes about as long as
// half a statement, and batches have many. One goroutine does it, so answers come in the order of the functions.
type answerer struct {
	batches chan []*task
	behind  atomic.Int32 // batches handed over and not yet answered
	stopped chan struct{}
	spare   chan []*task // emptied, to be used again
}

func newAnswerer() *answerer {
	return &answerer{batches: make(chan []*task, 16), stopped: make(chan struct{}), spare: make(chan []*task, 16)}
}

// run answers until stop.
func (a *answerer) run(tell func(*task)) {
	defer close(a.stopped)
	for tasks := range a.batches {
		for _, t := range tasks {
			tell(t)
		}
		a.behind.Add(-1)
		clear(tasks)
		select {
		case a.spare <- tasks[:0]:
		default:
		}
	}
}

// take takes the tasks of a batch to answer them, and returns an empty slice for those of the next. It returns false if the
// writer may as well answer them itself.
func (a *answerer) take(tasks []*task) ([]*task, bool) {
	if len(tasks) <= fewAnswers && a.behind.Load() == 0 {
		return tasks, false
	}
	a.behind.Add(1)
	a.batches <- tasks
	select {
	case empty := <-a.spare:
		return empty, true
	default:
		return nil, true
	}
}

func (a *answerer) stop() {
	close(a.batches)
	<-a.stopped
}

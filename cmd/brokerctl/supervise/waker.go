package supervise

import (
	"context"
	"time"
)

// wakeEvery is the least time between two starts of the command of --wake.
const wakeEvery = time.Minute

// A waker runs a command while mail waits for an agent: at most once per wakeEvery, and not twice at
// the same time.
type waker struct {
	mail  chan bool                              // with capacity 1: whether mail waits
	check func(context.Context) ([]int64, error) // returns the messages that wait
	run   func(context.Context) error            // runs the command until it ends; ends it with its context
	warn  func(error)
}

// work runs the command when it is due, until ctx ends and the command has ended.
func (w *waker) work(ctx context.Context) {
	waiting := false
	var last time.Time
	var ended chan error // nil while the command does not run
	for {
		var due <-chan time.Time
		if waiting && ended == nil {
			due = time.After(time.Until(last.Add(wakeEvery)))
		}
		select {
		case waiting = <-w.mail:
		case err := <-ended:
			if ended = nil; err != nil && ctx.Err() == nil {
				w.warn(err)
			}
		case <-due:
			if left, err := w.check(ctx); err != nil || len(left) == 0 {
				waiting = false // if the broker is away, the watch reports the mail again
				continue
			}
			last, ended = time.Now(), make(chan error, 1)
			go func(ended chan<- error) { ended <- w.run(ctx) }(ended)
		case <-ctx.Done():
			if ended != nil {
				<-ended //nolint:errcheck // the run has ended the command
			}
			return
		}
	}
}

// note notes whether mail waits.
func (w *waker) note(waiting bool) {
	for {
		select {
		case w.mail <- waiting:
			return
		case <-w.mail: // an older note
		}
	}
}

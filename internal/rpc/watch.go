package rpc

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/jonboulle/clockwork"
)

// requestTime is how long a client may take to send a request: all of a call with one request, from its
// headers on, and each message of a stream.
const requestTime = 30 * time.Second

// watchGap is the time between two checks.
const watchGap = time.Second

// A watch ends the calls whose clients do not complete a request. Its methods may be called concurrently.
// Time is measured at the checks, so that a message of a stream does not read the clock.
type watch struct {
	clock clockwork.Clock

	mu      sync.Mutex // guards the fields below, and those of every watched
	all     []expiring
	pending bool // a check is due
}

// An expiring is a call that a watch may end.
type expiring interface {
	state() *watched
	expire()
}

// A watched is the state of a call for a watch.
type watched struct {
	number atomic.Int64 // grows by one at the beginning and at the end of each message; -1 = the watch has ended the call

	index int       // in the watch
	seen  int64     // the number at the last check
	since time.Time // when seen was new
}

func (w *watched) state() *watched { return w }

// begin says that a part of a message has arrived.
func (w *watched) begin() { w.number.Add(1) }

// done says that the message is complete. It reports false if the watch has ended the call.
func (w *watched) done() bool {
	n := w.number.Load()
	return n > 0 && w.number.CompareAndSwap(n, n+1)
}

// ended reports whether the watch has ended the call.
func (w *watched) ended() bool { return w.number.Load() < 0 }

// incomplete reports whether a message with this number has begun and is not complete.
func incomplete(number int64) bool { return number%2 == 1 }

// add begins to watch a call. If it takes a single request, that has begun with the headers, at a time.
func (w *watch) add(e expiring, single bool, at time.Time) {
	s := e.state()
	if single {
		s.number.Store(1)
		s.seen, s.since = 1, at
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s.index = len(w.all)
	w.all = append(w.all, e)
	w.schedule()
}

// remove ends the watch of a call.
func (w *watch) remove(e expiring) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i, last := e.state().index, len(w.all)-1
	moved := w.all[last]
	w.all[i], moved.state().index = moved, i
	w.all[last] = nil
	w.all = w.all[:last]
}

// schedule makes a check due, unless one is or there is nothing to check. The caller holds the mutex.
func (w *watch) schedule() {
	if !w.pending && len(w.all) > 0 {
		w.pending = true
		w.clock.AfterFunc(watchGap, w.check)
	}
}

// check ends the calls whose message is incomplete for too long.
func (w *watch) check() {
	now := w.clock.Now()
	w.mu.Lock()
	var late []expiring
	for _, e := range w.all {
		s := e.state()
		n := s.number.Load()
		switch {
		case n != s.seen:
			s.seen, s.since = n, now
		case incomplete(n) && now.Sub(s.since) >= requestTime && s.number.CompareAndSwap(n, -1):
			late = append(late, e)
		}
	}
	w.pending = false
	w.schedule()
	w.mu.Unlock()
	for _, e := range late {
		e.expire()
	}
}

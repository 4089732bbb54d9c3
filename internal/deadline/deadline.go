// Package deadline keeps deadlines in memory and notifies their owner when they expire.
//
// There are two kinds. New returns a Queue for the time that a holder may keep a lease, a claim or a
// lock. It runs by the monotonic clock. If the process was suspended or its disk stalled, the queue
// extends all deadlines by that time. Otherwise holders would lose leases, claims and locks that they
// had no chance to renew. NewCalendar returns a Queue for times on the calendar, such as a delay or a
// time to live. It follows the wall clock, its jumps included, and extends nothing.
//
//	Set, Remove ──► heap ──► Run sleeps until the earliest ──► due(keys) ──► the owner's transaction
//	                                                                        checks Deadline again
//
// A key has left the queue when its owner is notified that it is due. A holder that sets it again
// before the owner's transaction runs has renewed it, so the transaction checks:
//
//	if _, renewed := queue.Deadline(key); renewed {
//		return nil
//	}
//
// If the transaction fails, the owner sets the key again.
//
// In tests with a fake clock, advance it to the deadline or up to a second beyond. A greater step
// looks like a process that was suspended.
package deadline

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/jonboulle/clockwork"
)

const (
	tolerance = time.Second // lateness that extends no deadline
	maxKeys   = 500         // told at a time
	maxNap    = time.Minute // of a calendar queue: the wall clock may jump while it sleeps
	never     = math.MaxInt64
)

// A Queue holds one deadline per key. All methods may be called concurrently; Set and Remove take
// time logarithmic in the number of keys, a Set to a later time than before, as of a lease that is renewed with every call, takes constant
// time: the key moves in the heap when its old time has come.
type Queue[K comparable] struct {
	clock    clockwork.Clock
	due      func([]K)
	calendar bool
	epoch    time.Time     // positions are nanoseconds since then; since 1970 on the calendar
	wake     chan struct{} // capacity 1: there is a deadline before planned

	mu      sync.Mutex // guards the fields below
	entries map[K]*entry[K]
	heap    []*entry[K]
	planned int64 // position at which Run wakes by itself
	seen    int64 // position at which the queue was last used, so that the process was alive
	pushed  int64 // by how much all deadlines were pushed back so far
}

// An entry is a deadline at position until+pushed.
type entry[K comparable] struct {
	key   K
	at    int64 // its place in the heap, never after until
	until int64
	index int // in the heap
}

// New returns a queue of deadlines of leases, claims and locks. Run calls due with keys whose deadline has expired, at
// most 500 at a time; it may block, and the slice is its own until it returns.
func New[K comparable](clock clockwork.Clock, due func([]K)) *Queue[K] {
	return &Queue[K]{
		clock: clock, due: due, epoch: clock.Now(), wake: make(chan struct{}, 1),
		entries: map[K]*entry[K]{}, planned: never,
	}
}

// NewCalendar returns a queue of times on the calendar.
func NewCalendar[K comparable](clock clockwork.Clock, due func([]K)) *Queue[K] {
	q := New(clock, due)
	q.calendar = true
	q.epoch = time.Unix(0, 0)
	return q
}

// Set gives the key a deadline, in place of any that it has. One in the past is due at once.
func (q *Queue[K]) Set(key K, at time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.observe()
	q.set(key, max(q.position(at), now))
	if q.heap[0].at+q.pushed < q.planned {
		q.planned = q.heap[0].at + q.pushed
		q.rouse()
	}
}

// Remove takes the key out, if it is there.
func (q *Queue[K]) Remove(key K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.observe()
	if e := q.entries[key]; e != nil {
		q.remove(e)
	}
}

// Deadline returns when the key is due. It returns false if the key is not in the queue.
func (q *Queue[K]) Deadline(key K) (time.Time, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.observe()
	e := q.entries[key]
	if e == nil {
		return time.Time{}, false
	}
	return q.epoch.Add(time.Duration(e.until + q.pushed)), true
}

// Len returns how many keys have a deadline.
func (q *Queue[K]) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.heap)
}

// Reset replaces all deadlines by the given ones.
func (q *Queue[K]) Reset(deadlines map[K]time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	clear(q.entries)
	clear(q.heap)
	q.heap = q.heap[:0]
	now := q.observe()
	for key, at := range deadlines {
		q.set(key, max(q.position(at), now))
	}
	q.rouse()
}

// Run notifies the owner of every deadline that has expired. It returns when ctx ends. Only one Run at a time.
func (q *Queue[K]) Run(ctx context.Context) {
	keys := make([]K, 0, maxKeys)
	for ctx.Err() == nil {
		var until int64
		keys, until = q.take(keys[:0])
		if len(keys) > 0 {
			q.due(keys)
			clear(keys)
			continue
		}
		q.sleep(ctx, until)
	}
}

// take removes the keys that are due. If there are none it says until when to sleep.
func (q *Queue[K]) take(keys []K) (due []K, until int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.observe()
	for len(keys) < maxKeys && q.over(now) {
		keys = append(keys, q.heap[0].key)
		q.remove(q.heap[0])
	}
	q.planned = never
	if len(q.heap) > 0 {
		q.planned = q.heap[0].at + q.pushed
	}
	return keys, q.planned
}

// sleep waits until then, until an earlier deadline comes, or ctx ends.
func (q *Queue[K]) sleep(ctx context.Context, until int64) {
	var over <-chan time.Time
	if until != never {
		timer := q.timer(until)
		defer timer.Stop()
		over = timer.Chan()
	}
	select {
	case <-over:
	case <-q.wake:
	case <-ctx.Done():
	}
}

// timer starts a timer. If the clock has moved on meanwhile, as it does when the process is suspended
// just then, the timer would run too long, and it starts another.
func (q *Queue[K]) timer(until int64) clockwork.Timer {
	for {
		now := q.position(q.clock.Now())
		nap := time.Duration(until - now)
		if q.calendar {
			nap = min(nap, maxNap)
		}
		timer := q.clock.NewTimer(nap)
		if q.position(q.clock.Now())-now < int64(time.Millisecond) {
			return timer
		}
		timer.Stop()
	}
}

func (q *Queue[K]) rouse() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// observe returns the present position. If the earliest deadline expired more than a second ago without a
// notification, the process has been suspended, at the longest since the last observation. observe then
// extends all deadlines by that time, before any of them counts as expired.
func (q *Queue[K]) observe() int64 {
	now := q.position(q.clock.Now())
	if !q.calendar && q.over(now) {
		late := now - (q.heap[0].at + q.pushed)
		if late > int64(tolerance) {
			q.pushed += max(late, now-q.seen)
		}
	}
	q.seen = now
	return now
}

// over reports whether the earliest deadline has expired. Those that were set to a later time move to it first.
func (q *Queue[K]) over(now int64) bool {
	for len(q.heap) > 0 && q.heap[0].at+q.pushed <= now {
		e := q.heap[0]
		if e.at == e.until {
			return true
		}
		e.at = e.until
		q.down(0)
	}
	return false
}

func (q *Queue[K]) position(t time.Time) int64 {
	if q.calendar {
		return t.UnixNano()
	}
	return int64(t.Sub(q.epoch))
}

func (q *Queue[K]) set(key K, position int64) {
	e := q.entries[key]
	if e == nil {
		e = &entry[K]{key: key, index: len(q.heap)}
		q.entries[key] = e
		q.heap = append(q.heap, e)
	} else if position-q.pushed >= e.at {
		e.until = position - q.pushed
		return
	}
	e.until = position - q.pushed
	e.at = e.until
	q.up(e.index)
	q.down(e.index)
}

func (q *Queue[K]) remove(e *entry[K]) {
	delete(q.entries, e.key)
	last := len(q.heap) - 1
	moved := q.heap[last]
	q.heap[last] = nil
	q.heap = q.heap[:last]
	if moved == e {
		return
	}
	moved.index = e.index
	q.heap[moved.index] = moved
	q.up(moved.index)
	q.down(moved.index)
}

// up moves an entry towards the root of the heap, where the earliest deadline is.
func (q *Queue[K]) up(i int) {
	e := q.heap[i]
	for i > 0 {
		parent := (i - 1) / 2
		if q.heap[parent].at <= e.at {
			break
		}
		q.place(q.heap[parent], i)
		i = parent
	}
	q.place(e, i)
}

// down moves an entry away from the root.
func (q *Queue[K]) down(i int) {
	e := q.heap[i]
	for {
		child := 2*i + 1
		if child >= len(q.heap) {
			break
		}
		if right := child + 1; right < len(q.heap) && q.heap[right].at < q.heap[child].at {
			child = right
		}
		if e.at <= q.heap[child].at {
			break
		}
		q.place(q.heap[child], i)
		i = child
	}
	q.place(e, i)
}

func (q *Queue[K]) place(e *entry[K], i int) {
	q.heap[i] = e
	e.index = i
}

package store

import "context"

// What one caller may have in one lane before its next function waits outside.
const (
	maxQueued      = 1000    // functions
	maxQueuedBytes = 4 << 20 // that they hold, as far as Submit was told
)

// WithCaller returns a context for the functions of one caller. key is any value that can be a map
// key. Write, Drain and Submit serve callers in turn. Without a key the broker itself is the caller.
func WithCaller(ctx context.Context, key any) context.Context {
	return context.WithValue(ctx, callerKey{}, key)
}

// callerKey is the key of a context's caller.
type callerKey struct{}

// A queue holds the functions that wait in one lane. It serves callers in turn, one function each,
// and a caller's own functions in their order. A caller that has just come is served before those
// that were served already, so a caller with many functions delays only itself. This is the
// scheduling of FQ-CoDel (RFC 8290) with one function as the quantum.
//
// A line whose functions have all run keeps its place until its turn comes, so that a caller with
// one function at a time cannot be new again and again and starve the others.
type queue struct {
	lines  map[any]*line // by caller
	fresh  ring          // not served yet
	served ring
	tasks  int   // in all lines
	spare  *line // lines to be used again
}

// A line holds the functions of one caller.
type line struct {
	caller      any
	first, last *task
	tasks       int
	bytes       int
	room        chan struct{} // closed when the line has room again; nil while no function waits for that
	next        *line         // in a ring, or among the spare ones
}

// A ring holds lines, the next one first.
type ring struct{ first, last *line }

func (r *ring) add(l *line) {
	if r.first == nil {
		r.first = l
	} else {
		r.last.next = l
	}
	r.last = l
}

func (r *ring) take() *line {
	l := r.first
	r.first, l.next = l.next, nil
	return l
}

// full returns a channel that is closed when the line of the caller has room; nil if it has some now.
func (q *queue) full(caller any) <-chan struct{} {
	l := q.lines[caller]
	if caller == nil || l == nil || l.tasks < maxQueued && l.bytes < maxQueuedBytes {
		return nil
	}
	if l.room == nil {
		l.room = make(chan struct{})
	}
	return l.room
}

func (q *queue) push(caller any, t *task) {
	l := q.lines[caller]
	if l == nil {
		if l = q.spare; l != nil {
			q.spare, l.next = l.next, nil
		} else {
			l = &line{}
		}
		l.caller = caller
		q.lines[caller] = l
		q.fresh.add(l)
	}
	if l.first == nil {
		l.first = t
	} else {
		l.last.next = t
	}
	l.last = t
	l.tasks++
	l.bytes += t.size
	q.tasks++
}

// pop returns the next function. There must be one.
func (q *queue) pop() *task {
	for {
		turn := &q.fresh
		if turn.first == nil {
			turn = &q.served
		}
		l := turn.take()
		if l.first == nil {
			q.forget(l)
			continue
		}
		t := l.pop()
		q.served.add(l)
		if q.tasks--; q.tasks == 0 {
			for q.served.first != nil {
				q.forget(q.served.take())
			}
		}
		return t
	}
}

// forget drops an empty line, so that a caller without functions takes no memory.
func (q *queue) forget(l *line) {
	delete(q.lines, l.caller)
	l.caller, l.next = nil, q.spare
	q.spare = l
}

func (l *line) pop() *task {
	t := l.first
	l.first, t.next = t.next, nil
	l.tasks--
	l.bytes -= t.size
	if l.room != nil && l.tasks <= maxQueued/2 && l.bytes <= maxQueuedBytes/2 {
		close(l.room)
		l.room = nil
	}
	return t
}

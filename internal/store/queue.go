package store

import "context"

// What one caller may have in one lane before its next function waits outside.
const (
	maxQueued      = 1000    // functions
	maxQueuedBytes = 4 << 20 // that they hold, as far as Submit was told
)

// floodedBy is how many functions callers have queued on average when the writer makes its batches
// half as large. A bystander's p99 in brokerctl bench --workloads flood falls by a quarter.
const floodedBy = 8

// heavyRows is how many rows a function changes for its caller's next function to begin a batch.
const heavyRows = batchRows / 2

// WithCaller returns a context for the functions of one caller. key is any value that can be a map
// key. Write, Drain and Submit serve callers in turn. Without a key the broker itself is the
// caller.
func WithCaller(ctx context.Context, key any) context.Context {
	return context.WithValue(ctx, callerKey{}, key)
}

// callerKey is the key of a context's caller.
type callerKey struct{}

// A queue holds the functions that wait in one lane, a line for each caller. It serves the caller
// that has used the least of the writer, and a caller's own functions in their order. So each
// caller gets its share, and one with many or large functions delays only itself.
//
// This is start-time fair queueing. A line has a tag, which grows with what its functions use: one,
// and one for each row that they change. A new line starts at the tag that is served now. A line
// without functions stays until its tag is served, so that a caller with one function at a time
// does not start anew with each.
type queue struct {
	lines   map[any]*line // by caller
	heap    []*line       // the next one first
	now     int64         // the tag that was served last
	order   int64         // of the line that was put into the heap last
	serving *line         // until charge; it is the first of the heap
	tasks   int           // in all lines
	spare   *line         // lines to be used again
}

// A line holds the functions of one caller.
type line struct {
	caller      any
	first, last *task
	tasks       int
	bytes       int
	tag         int64
	order       int64         // among lines with the same tag
	heavy       bool          // its last function changed many rows
	freed       chan struct{} // closed when the line has capacity again; nil while no function waits for that
	next        *line         // among the spare ones
}

// full returns a channel that is closed when the line of the caller has capacity; nil if it has some
// now.
func (q *queue) full(caller any) <-chan struct{} {
	l := q.lines[caller]
	if caller == nil || l == nil || l.tasks < maxQueued && l.bytes < maxQueuedBytes {
		return nil
	}
	if l.freed == nil {
		l.freed = make(chan struct{})
	}
	return l.freed
}

func (q *queue) push(caller any, t *task) {
	l := q.lines[caller]
	if l == nil {
		l = q.enter(caller)
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

// pop returns the next function; there must be one. With light it returns nil if that one will
// probably be heavy: the functions before it in the batch do not wait for it.
func (q *queue) pop(light bool) *task {
	for {
		l := q.heap[0]
		if l.first == nil {
			q.forget()
			continue
		}
		if light && l.heavy {
			return nil
		}
		q.now, q.serving = l.tag, l
		t := l.pop()
		if q.tasks--; q.tasks == 0 {
			for len(q.heap) > 0 {
				q.forget()
			}
		}
		return t
	}
}

// flooded reports whether callers have sent far ahead: they have many more functions queued than a
// caller that waits for its confirmations.
func (q *queue) flooded() bool { return q.tasks > floodedBy*len(q.lines) }

// charge notes how many rows the function has changed that was popped last.
func (q *queue) charge(rows int) {
	l := q.serving
	if l == nil {
		return
	}
	q.serving = nil
	q.order++
	l.tag, l.order = l.tag+1+int64(rows), q.order
	l.heavy = rows >= heavyRows
	q.sink()
}

// enter makes a line for a caller.
func (q *queue) enter(caller any) *line {
	l := q.spare
	if l == nil {
		l = &line{}
	} else {
		q.spare = l.next
	}
	q.order++
	*l = line{caller: caller, tag: q.now, order: q.order}
	q.lines[caller] = l
	i := len(q.heap)
	q.heap = append(q.heap, l)
	for i > 0 {
		parent := (i - 1) / 2
		if q.heap[parent].before(l) {
			break
		}
		q.heap[i] = q.heap[parent]
		i = parent
	}
	q.heap[i] = l
	return l
}

// forget drops the first line, which has no functions.
func (q *queue) forget() {
	l := q.heap[0]
	last := len(q.heap) - 1
	q.heap[0], q.heap[last] = q.heap[last], nil
	q.heap = q.heap[:last]
	q.sink()
	delete(q.lines, l.caller)
	if q.serving == l {
		q.serving = nil
	}
	*l = line{next: q.spare}
	q.spare = l
}

// sink moves the first line of the heap to its place.
func (q *queue) sink() {
	for i := 0; ; {
		child := 2*i + 1
		if child >= len(q.heap) {
			return
		}
		if other := child + 1; other < len(q.heap) && q.heap[other].before(q.heap[child]) {
			child = other
		}
		if q.heap[i].before(q.heap[child]) {
			return
		}
		q.heap[i], q.heap[child] = q.heap[child], q.heap[i]
		i = child
	}
}

func (l *line) before(other *line) bool {
	return l.tag < other.tag || l.tag == other.tag && l.order < other.order
}

func (l *line) pop() *task {
	t := l.first
	l.first, t.next = t.next, nil
	l.tasks--
	l.bytes -= t.size
	if l.freed != nil && l.tasks <= maxQueued/2 && l.bytes <= maxQueuedBytes/2 {
		close(l.freed)
		l.freed = nil
	}
	return t
}

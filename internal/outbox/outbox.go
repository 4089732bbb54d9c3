// Package outbox has the answers of a stream on their way from the writer, which decides the client's requests, to the
// goroutine that sends.
package outbox

import (
	"context"
	"sync"

	"brokerd/internal/fault"
)

// An Outbox has the frames of one stream that answer requests under way. Three goroutines use it:
//
//	reader ── Reserve, submit ──► writer ── Put ──► handler ── Next, send ──► client
//
// The reader calls Reserve before it submits a request, and Close after the last one. The writer, or any other
// goroutine, calls Put with the frame that answers the request. The handler of the stream sends what Next returns.
// Frames leave in the order of Put. So a slow client delays the reader, and never the writer.
type Outbox[F any] struct {
	limit    int
	stopping <-chan struct{}
	wake     chan struct{} // capacity 1: Next may have something to return
	space    chan struct{} // capacity 1: Reserve may succeed

	mu     sync.Mutex // guards the fields below
	due    int        // how many frames are reserved, and not put yet
	ready  []F
	taken  int   // how many frames Next has returned last
	closed bool  // no more frames are reserved
	err    error // why
}

// New returns the Outbox of a stream. Up to limit frames, at least 1, are reserved and not sent yet. stopping is closed
// when the broker stops.
func New[F any](limit int, stopping <-chan struct{}) *Outbox[F] {
	return &Outbox[F]{limit: limit, stopping: stopping, wake: make(chan struct{}, 1), space: make(chan struct{}, 1)}
}

// Reserve announces a frame, for which the caller has to cause one Put. It blocks while the stream has too many frames,
// and when it has ended or the broker stops. It returns the error of ctx if ctx ends first. One goroutine may call it.
func (o *Outbox[F]) Reserve(ctx context.Context) error {
	for !o.reserve() {
		select {
		case <-o.space:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (o *Outbox[F]) reserve() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || o.stops() || o.due+len(o.ready)+o.taken >= o.limit {
		return false
	}
	o.due++
	return true
}

// stops reports whether the broker stops.
func (o *Outbox[F]) stops() bool {
	select {
	case <-o.stopping:
		return true
	default:
		return false
	}
}

// Put enters a frame that was reserved. It never blocks.
func (o *Outbox[F]) Put(frame F) {
	o.mu.Lock()
	o.due--
	o.ready = append(o.ready, frame)
	o.mu.Unlock()
	signal(o.wake)
}

// Close ends the stream once all reserved frames were sent; err is what Next then returns. Only the first call counts.
func (o *Outbox[F]) Close(err error) {
	o.mu.Lock()
	if !o.closed {
		o.closed, o.err = true, err
	}
	o.mu.Unlock()
	signal(o.wake)
}

// Next waits for frames and returns them. Those that it has returned before count as sent. At the end of the stream it
// returns none: with the error of Close, which may be nil, or with fault.Unavailable if the broker stops and all
// requests have their answer. One goroutine may call it.
func (o *Outbox[F]) Next() ([]F, error) {
	stopping := o.stopping
	for {
		frames, ended, err := o.next()
		if ended || len(frames) > 0 {
			return frames, err
		}
		select {
		case <-o.wake:
		case <-stopping:
			stopping = nil // the requests under way are still answered
		}
	}
}

func (o *Outbox[F]) next() (frames []F, ended bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.taken > 0 {
		signal(o.space)
	}
	frames, o.ready = o.ready, nil
	o.taken = len(frames)
	switch {
	case o.taken > 0 || o.due > 0:
		return frames, false, nil
	case o.closed:
		return nil, true, o.err
	case o.stops():
		return nil, true, fault.Stopping()
	}
	return nil, false, nil
}

// signal leaves a signal in a channel of capacity 1.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

package client

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	firstDelay   = 50 * time.Millisecond
	longestDelay = 3 * time.Second
)

// A retry spaces out attempts to open a stream again: at once after a stream that had worked, then each time
// twice as long, with jitter so that many clients of a restarted broker do not come together.
type retry struct {
	link  *link
	delay time.Duration
}

// worked notes that the stream did its duty, so that the next failure is a first one again.
func (r *retry) worked() { r.delay = 0 }

// pause returns how long to wait before the next attempt after err.
func (r *retry) pause(err error) time.Duration {
	r.delay = min(max(2*r.delay, firstDelay), longestDelay)
	return max(r.delay/2+rand.N(r.delay/2), RetryDelay(err))
}

// wait waits before the next attempt after err, and returns false if the context ended.
func (r *retry) wait(ctx context.Context, err error) bool {
	pause := r.pause(err)
	if r.link.onRetry != nil {
		r.link.onRetry(err, pause)
	}
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

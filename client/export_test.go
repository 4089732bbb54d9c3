package client

import (
	"context"
	"time"
)

// WithTimer returns the options with another timer for the pauses between heartbeats.
func (o JoinOptions) WithTimer(timer func(time.Duration) (<-chan time.Time, func() bool)) JoinOptions {
	o.timer = timer
	return o
}

// KeptHold returns a hold that begins now and is kept by calls of extend, without a broker. A closed gone ends the
// extensions, as if the owner had released what it holds.
func KeptHold(ctx context.Context, lasts time.Duration, extend func() error) (h *Hold, gone chan struct{}) {
	h = &Hold{client: &Client{link: &link{}}, terms: terms{what: "it"}, o: HoldOptions{Margin: time.Minute}, lasts: lasts, gone: make(chan struct{})}
	h.terms.extend = func(context.Context, int64) error { return extend() }
	h.terms.release = func(context.Context) error { return nil }
	h.ctx, h.lose = context.WithCancelCause(ctx)
	since := time.Now()
	h.minded.Go(func() { h.keep(since) })
	return h, h.gone
}

// Gone is closed when the agent itself has given the hold away.
func (h *Hold) Gone() <-chan struct{} { return h.gone }

// Waited reports whether an attempt at a call may have waited at the broker before it was lost.
var Waited = waited

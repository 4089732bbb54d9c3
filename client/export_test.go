package client

import "time"

// WithTimer returns the options with another timer for the pauses between heartbeats.
func (o JoinOptions) WithTimer(timer func(time.Duration) (<-chan time.Time, func() bool)) JoinOptions {
	o.timer = timer
	return o
}

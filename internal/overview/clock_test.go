package overview_test

import (
	"runtime"
	"strings"
	"time"

	"github.com/jonboulle/clockwork"
)

// A restClock stands still until the test advances it. It reports each rest of a reader, so that the
// test advances it only while the reader rests: a snapshot that takes 10 s by the clock is refused.
type restClock struct {
	*clockwork.FakeClock
	rests chan time.Duration
}

func newRestClock() *restClock {
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	return &restClock{clockwork.NewFakeClockAt(at), make(chan time.Duration, 1000)}
}

// NewTimer implements clockwork.Clock.
func (c *restClock) NewTimer(d time.Duration) clockwork.Timer {
	timer := c.FakeClock.NewTimer(d)
	if pc, _, _, ok := runtime.Caller(1); ok {
		frame, _ := runtime.CallersFrames([]uintptr{pc}).Next()
		if strings.HasSuffix(frame.Function, "(*reader).wait") {
			c.rests <- d
		}
	}
	return timer
}

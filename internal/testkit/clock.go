package testkit

import (
	"fmt"
	"sync"
	"time"

	"github.com/jonboulle/clockwork"
)

// A JumpClock is a fake clock whose wall time can jump. As with a change of the system's clock, a
// jump changes Now, but neither timers nor Since. Each time that Now returns carries the jumps
// before it as its location.
type JumpClock struct {
	*clockwork.FakeClock

	mu     sync.Mutex // guards the fields below
	zone   *time.Location
	jumped map[*time.Location]time.Duration // in all, at the times of a location
}

// NewJumpClock returns a clock that stands at a time.
func NewJumpClock(at time.Time) *JumpClock {
	return &JumpClock{FakeClock: clockwork.NewFakeClockAt(at), zone: time.UTC, jumped: map[*time.Location]time.Duration{}}
}

// Jump changes the wall time.
func (c *JumpClock) Jump(by time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	total := c.jumped[c.zone] + by
	c.zone = time.FixedZone(fmt.Sprintf("jump %d", len(c.jumped)+1), 0)
	c.jumped[c.zone] = total
}

// Now implements clockwork.Clock.
func (c *JumpClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.FakeClock.Now().Add(c.jumped[c.zone]).In(c.zone)
}

// Since implements clockwork.Clock.
func (c *JumpClock) Since(t time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.FakeClock.Now().Sub(t.Add(-c.jumped[t.Location()]))
}

package main

import (
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/jonboulle/clockwork"
)

// A jumpingClock is the real clock, whose wall time can jump as at a change of the system's clock:
// the monotonic reading of its times does not jump. Its methods may be called concurrently.
type jumpingClock struct {
	clockwork.Clock
	seconds atomic.Int64
}

func newJumpingClock() *jumpingClock { return &jumpingClock{Clock: clockwork.NewRealClock()} }

// jump adds whole seconds to the wall time.
func (c *jumpingClock) jump(by time.Duration) { c.seconds.Add(int64(by / time.Second)) }

// Now implements clockwork.Clock.
func (c *jumpingClock) Now() time.Time { return jumped(c.Clock.Now(), c.seconds.Load()) }

// jumped changes the wall time of a time that has a monotonic reading, and keeps the reading. Package
// time offers no way to do this: Add changes both. The first word of such a time has the wall's
// seconds from bit 30 on, below bit 63 (see time.Time); the test of this function notices if a
// version of Go changes that.
func jumped(t time.Time, seconds int64) time.Time {
	*(*uint64)(unsafe.Pointer(&t)) += uint64(seconds) << 30
	return t
}

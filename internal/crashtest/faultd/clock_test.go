package main

import (
	"testing"
	"time"
)

func TestJumpingClock_ChangesTheWallTimeAlone(t *testing.T) {
	for _, by := range []time.Duration{24 * time.Hour, -24 * time.Hour} {
		c := newJumpingClock()
		before := c.Now()
		c.jump(by)
		after := c.Now()
		if took := after.Sub(before); took < 0 || took > time.Hour {
			t.Errorf("the monotonic time jumped by %v", took)
		}
		if moved := after.Round(0).Sub(before.Round(0)); moved < by || moved > by+time.Hour {
			t.Errorf("the wall time moved by %v, want %v", moved, by)
		}
		if since := c.Since(before); since < 0 || since > time.Hour {
			t.Errorf("%v have passed", since)
		}
	}
}

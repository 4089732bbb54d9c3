package main

import (
	"runtime"
	"testing"
	"time"
)

func TestGarbage_IsBounded(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		used    uint64
		percent int
		limit   int64
	}{
		{1, 400, 80 << 20}, {20 << 20, 400, 180 << 20}, {40 << 20, 200, 200 << 20}, {80 << 20, 100, 240 << 20},
		{160 << 20, 50, 320 << 20}, {1 << 40, 50, 2 << 40},
	} {
		percent, limit := garbage(c.used)
		if percent != c.percent || limit>>20 < c.limit>>20-1 || limit>>20 > c.limit>>20 {
			t.Errorf("%d MiB: %d %%, %d MiB; want %d %%, %d MiB", c.used>>20, percent, limit>>20, c.percent, c.limit>>20)
		}
	}
}

// Not parallel: the heap is that of the whole process.
func TestPace_FollowsWhatIsUsed(t *testing.T) {
	set := make(chan int, 100)
	pace(func(percent int, _ int64) {
		select {
		case set <- percent:
		default: // the test is over
		}
	})
	until := func(what string, fits func(percent int) bool) {
		t.Helper()
		for deadline := time.After(patience); ; {
			runtime.GC()
			select {
			case percent := <-set:
				if fits(percent) {
					return
				}
			case <-deadline:
				t.Fatalf("%s: the percentage stays", what)
			default:
			}
		}
	}
	until("at the start", func(percent int) bool { return percent > 300 })
	held := make([]byte, 100<<20)
	until("with 100 MiB more", func(percent int) bool { return percent < 100 })
	runtime.KeepAlive(held)
	until("without them", func(percent int) bool { return percent > 300 })
}

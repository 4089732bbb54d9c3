package main

import (
	"runtime"
	"testing"
	"time"
)

func TestGarbage_IsBounded(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		used uint64
		want int
	}{
		{1, 400}, {20 << 20, 400}, {40 << 20, 200}, {80 << 20, 100}, {160 << 20, 50}, {1 << 40, 50},
	} {
		if got := garbage(c.used); got != c.want {
			t.Errorf("%d MiB: %d %%, want %d", c.used>>20, got, c.want)
		}
	}
}

// Not parallel: the heap is that of the whole process.
func TestPace_FollowsWhatIsUsed(t *testing.T) {
	set := make(chan int, 100)
	pace(func(percent int) {
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

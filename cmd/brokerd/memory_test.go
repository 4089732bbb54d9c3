package main

import "testing"

func TestMemoryLimit_LeavesRoomForGarbage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ used, want int64 }{{0, 64}, {40, 104}, {128, 192}, {400, 600}} {
		if got := memoryLimit(c.used << 20); got != c.want<<20 {
			t.Errorf("with %d MiB in use, the limit is %d MiB, want %d", c.used, got>>20, c.want)
		}
	}
}

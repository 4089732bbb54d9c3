package store_test

import (
	"testing"
	"time"

	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

func TestUptime_CountsTheTimeForWhichTheStoreIsOpen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	clock := testkit.NewJumpClock(time.Date(2030, 1, 2, 12, 0, 0, 0, time.UTC))
	s := open(t, inFolder(dir), withClock(clock))
	wantUptime := func(want time.Duration) {
		t.Helper()
		write(t, s, func(tx *store.Tx) error {
			if got := tx.Uptime(); got != want {
				t.Errorf("uptime %v, want %v", got, want)
			}
			insert(tx, "row", nil)
			return nil
		})
	}
	wantUptime(0)
	clock.Advance(time.Hour)
	wantUptime(time.Hour)
	clock.Jump(30 * time.Hour)
	wantUptime(time.Hour)
	clock.Jump(-60 * time.Hour)
	clock.Advance(time.Minute)
	wantUptime(time.Hour + time.Minute)
	shut(t, s)
	clock.Advance(24 * time.Hour)
	s = open(t, inFolder(dir), withClock(clock))
	clock.Advance(time.Minute)
	wantUptime(time.Hour + 2*time.Minute)
	shut(t, s)
}

package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"

	"brokerd/internal/store"
)

func next(t *testing.T, s *store.Store) (revision int64) {
	t.Helper()
	write(t, s, func(tx *store.Tx) error { revision = tx.NextRevision(); return nil })
	return revision
}

func TestRevision_NewestRowDeletedIsNotGivenAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, inFolder(dir))
	write(t, s, rows(3))
	write(t, s, func(tx *store.Tx) error { tx.Exec(`DELETE FROM items`); return nil })
	if got := s.Revision(); got != 3 {
		t.Errorf("revision %d, want 3", got)
	}
	if got := next(t, s); got != 4 {
		t.Errorf("got %d after 3 were given and deleted", got)
	}
	shut(t, s)
	s = open(t, inFolder(dir))
	if got := s.Revision(); got != 4 {
		t.Errorf("revision %d after a restart, want 4", got)
	}
	if got := next(t, s); got != 5 {
		t.Errorf("got %d after a restart", got)
	}
}

func TestRevision_NumbersOfARefusedFunctionAreNotGivenAgain(t *testing.T) {
	t.Parallel()
	s := open(t)
	var lost int64
	_ = s.Write(context.Background(), func(tx *store.Tx) error { lost = tx.NextRevision(); return errRefused })
	if got := next(t, s); got <= lost {
		t.Errorf("%d was given after %d", got, lost)
	}
}

func TestRevision_IsKnownOnlyAfterTheCommit(t *testing.T) {
	t.Parallel()
	s := open(t)
	write(t, s, func(tx *store.Tx) error {
		given := tx.NextRevision()
		if got := s.Revision(); got >= given {
			t.Errorf("revision %d is told before the commit", got)
		}
		tx.OnCommit(func() {
			if got := s.Revision(); got != given {
				t.Errorf("revision %d after the commit, want %d", got, given)
			}
		})
		return nil
	})
}

func TestLatest_NeverGoesBack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	noon := time.Date(2030, 1, 2, 12, 0, 0, 0, time.UTC)
	clock := clockwork.NewFakeClockAt(noon)
	s := open(t, inFolder(dir), withClock(clock))
	times := func(s *store.Store) (now, latest time.Time) {
		write(t, s, func(tx *store.Tx) error {
			now, latest = tx.Now(), tx.Latest()
			insert(tx, "row", nil)
			return nil
		})
		return now, latest
	}
	clock.Advance(time.Hour)
	one := noon.Add(time.Hour)
	if now, latest := times(s); !now.Equal(one) || !latest.Equal(one) {
		t.Errorf("now %v, latest %v, want %v", now, latest, one)
	}
	clock.Advance(-2 * time.Hour)
	if now, latest := times(s); !now.Equal(noon.Add(-time.Hour)) || !latest.Equal(one) {
		t.Errorf("clock set back: now %v, latest %v", now, latest)
	}
	shut(t, s)
	s = open(t, inFolder(dir), withClock(clock))
	if _, latest := times(s); !latest.Equal(one) {
		t.Errorf("clock set back and restarted: latest %v", latest)
	}
	clock.Advance(3 * time.Hour)
	if _, latest := times(s); !latest.Equal(noon.Add(2 * time.Hour)) {
		t.Errorf("clock set forward: latest %v", latest)
	}
}

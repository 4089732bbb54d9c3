package retention_test

import (
	"context"
	"testing"
	"time"

	"brokerd/internal/apptest"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

// busy is a seam that lets a page take a while, and others work meanwhile.
func (s *stock) busy(took time.Duration) func() error {
	return func() error {
		s.clock.Advance(took)
		for range 10 {
			if err := s.store.Write(context.Background(), func(*store.Tx) error { return nil }); err != nil {
				return err
			}
		}
		return nil
	}
}

func TestPace_RestsWhileOthersWork(t *testing.T) {
	t.Parallel()
	s := newStock(t, 2000)
	s.keep = time.Hour // they are due this moment
	s.keeper(s.busy(time.Second / 10))
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	apptest.NoError(t, s.clock.BlockUntilContext(ctx, 1))
	if left := s.left(); left != 1500 {
		t.Errorf("it rests when %d are left, want to see it rest after the first page", left)
	}
	s.empty()
}

func TestPace_DoesNotRestOnceItHasFallenBehind(t *testing.T) {
	t.Parallel()
	s := newStock(t, 2000)
	s.keep = time.Minute // they have been due for long
	s.keeper(s.busy(time.Second / 10))
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	apptest.NoError(t, s.clock.BlockUntilContext(ctx, 1)) // for the next turn
	if left := s.left(); left != 0 {
		t.Errorf("it rests when %d are left", left)
	}
}

func TestVacuum_GivesBackWhatWasNotNeededForAMinute(t *testing.T) {
	t.Parallel()
	testkit.OnSQLite(t, "the server gives back space by itself")
	s := newStock(t, 0)
	write := func(statement string) {
		t.Helper()
		apptest.NoError(t, s.store.Write(t.Context(), func(tx *store.Tx) error {
			tx.Exec(statement)
			return nil
		}))
	}
	pages := func() (space store.Space) {
		t.Helper()
		apptest.NoError(t, s.store.Read(t.Context(), func(snap *store.Snapshot) (err error) {
			space, err = store.SpaceOf(snap)
			return err
		}))
		return space
	}
	write(`CREATE TABLE ballast (x BLOB)`)
	write(`INSERT INTO ballast VALUES (zeroblob(32 << 20))`)
	write(`DELETE FROM ballast`)
	full := pages()
	k := s.keeper(nil)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	apptest.NoError(t, s.clock.BlockUntilContext(ctx, 1))
	s.clock.Advance(50 * time.Second)
	k.Wake()
	apptest.NoError(t, s.clock.BlockUntilContext(ctx, 1))
	if now := pages(); now != full {
		t.Errorf("%+v has become %+v within a minute", full, now)
	}
	for pages().Pages > full.Pages/2 {
		apptest.NoError(t, ctx.Err())
		s.clock.Advance(time.Second)
	}
}

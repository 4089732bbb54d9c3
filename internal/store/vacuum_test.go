package store_test

import (
	"context"
	"testing"

	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

func space(tb testing.TB, s *store.Store) (got store.Space) {
	tb.Helper()
	err := s.Read(context.Background(), func(snap *store.Snapshot) (err error) {
		got, err = store.SpaceOf(snap)
		return err
	})
	testkit.NoError(tb, err)
	return got
}

func TestVacuum_GivesFreePagesBackInSteps(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, inFolder(dir))
	for range 300 {
		write(t, s, func(tx *store.Tx) error {
			insert(tx, "large", make([]byte, 8192))
			return nil
		})
	}
	full := space(t, s)
	write(t, s, func(tx *store.Tx) error {
		tx.Exec(`DELETE FROM items`)
		return nil
	})
	before := space(t, s)
	if before.Pages != full.Pages || before.Free < 250 {
		t.Fatalf("%+v with the rows and %+v without: want as many pages, and most of them free", full, before)
	}
	for left := before; left.Free > 0; {
		var now store.Space
		write(t, s, func(tx *store.Tx) (err error) {
			now, err = tx.Vacuum()
			return err
		})
		if gave := left.Pages - now.Pages; gave < 1 || gave > 70 {
			t.Fatalf("a step gave %d pages back", gave)
		}
		left = now
	}
	if after := space(t, s); after.Free != 0 || after.Pages > before.Pages-250 {
		t.Errorf("%+v afterwards, %+v before", after, before)
	}
	write(t, s, add("one more"))
	if got := names(t, s); len(got) != 1 {
		t.Errorf("%d items afterwards, want 1", len(got))
	}
}

package store_test

import (
	"context"
	"errors"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"

	"brokerd/internal/fault"
	"brokerd/internal/store"
)

// TestCache_AgreesWithWhatATransactionReads changes a row behind a cache in functions that succeed and in
// functions that fail, and always finds what the table holds.
func TestCache_AgreesWithWhatATransactionReads(t *testing.T) {
	t.Parallel()
	s := open(t, withMigrations(items, store.Migration{Name: "test/001_numbers", SQL: `CREATE TABLE numbers (n INTEGER)`}))
	ctx := context.Background()
	var cache store.Cache[string, int]
	loads := 0
	read := func(tx *store.Tx) int {
		n, err := cache.Get(tx, "n", func() (n int, err error) {
			loads++
			return n, tx.QueryRow(`SELECT max(n) FROM numbers`).Scan(&n)
		})
		if err != nil {
			t.Error(err)
		}
		return n
	}
	expect := func(want, wantLoads int) {
		t.Helper()
		if err := s.Write(ctx, func(tx *store.Tx) error {
			if got := read(tx); got != want {
				t.Errorf("the cache says %d, the table %d", got, want)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if loads != wantLoads {
			t.Errorf("loaded %d times, want %d", loads, wantLoads)
		}
	}
	change := func(n int, refuse error) {
		t.Helper()
		err := s.Write(ctx, func(tx *store.Tx) error {
			tx.Exec(`INSERT INTO numbers (n) VALUES (?)`, n)
			cache.Clear(tx)
			if got := read(tx); got != n {
				t.Errorf("within its function the cache says %d, want %d", got, n)
			}
			return refuse
		})
		if !errors.Is(err, refuse) {
			t.Fatal(err)
		}
	}
	change(1, nil)
	expect(1, 1)
	change(2, nil)
	expect(2, 2)
	change(3, errRefused)
	expect(2, 4)
	expect(2, 4)
	err := s.Write(ctx, func(tx *store.Tx) error {
		insert(tx, "another table", nil)
		if got := read(tx); got != 2 {
			t.Errorf("within another function the cache says %d", got)
		}
		return errRefused
	})
	if !errors.Is(err, errRefused) {
		t.Fatal(err)
	}
	expect(2, 4) // that function has changed nothing behind the cache
	write(t, s, func(tx *store.Tx) error { cache.Clear(tx); return nil })
	store.FailNextCommit(s, ioError)
	wantFault(t, s.Write(ctx, func(tx *store.Tx) error {
		if got := read(tx); got != 2 {
			t.Errorf("the cache says %d", got)
		}
		insert(tx, "lost with its batch", nil)
		return nil
	}), fault.Unavailable, "IO_ERROR")
	expect(2, 6)
}

// A dropped function leaves no trace in memory, whether it fails, its batch is lost, or the batch runs again because of
// another function's defect.
func TestMemory_ChangesBelongToTheirFunction(t *testing.T) {
	t.Parallel()
	s := open(t)
	var memory store.Memory[string, int]
	change := func(end func() error) func(*store.Tx) error {
		return func(tx *store.Tx) error {
			memory.Set(tx, "a", memory.Get("a")+1)
			memory.Set(tx, "new", 1)
			memory.Set(tx, "a", memory.Get("a")*2)
			memory.Delete(tx, "b")
			memory.Delete(tx, "missing")
			insert(tx, "change", nil)
			return end()
		}
	}
	fine := func() error { return nil }
	expect := func(want map[string]int) {
		t.Helper()
		write(t, s, func(*store.Tx) error {
			if diff := cmp.Diff(want, maps.Collect(memory.All())); diff != "" {
				t.Error(diff)
			}
			return nil
		})
	}
	write(t, s, func(tx *store.Tx) error {
		memory.Set(tx, "a", 1)
		memory.Set(tx, "b", 2)
		insert(tx, "first", nil)
		return nil
	})
	first := map[string]int{"a": 1, "b": 2}
	if err := s.Write(t.Context(), change(func() error { return errRefused })); !errors.Is(err, errRefused) {
		t.Fatal(err)
	}
	expect(first)
	wantFault(t, s.Write(t.Context(), change(func() error { panic("a defect") })), fault.Internal, "PANIC")
	expect(first)
	store.FailNextCommit(s, ioError)
	wantFault(t, s.Write(t.Context(), change(fine)), fault.Unavailable, "IO_ERROR")
	expect(first)
	release := hold(t, s)
	kept := submit(s, store.LaneFill, change(fine))
	defect := submit(s, store.LaneFill, func(tx *store.Tx) error {
		memory.Set(tx, "a", 100)
		insertAgain(tx)
		return nil
	})
	release()
	if err := <-kept; err != nil {
		t.Error(err)
	}
	if err := <-defect; err == nil {
		t.Error("a function with a defect has succeeded")
	}
	expect(map[string]int{"a": 4, "new": 1})
}

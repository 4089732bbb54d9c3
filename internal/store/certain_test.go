package store_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"brokerd/internal/fault"
	"brokerd/internal/store"
)

var errDefect = errors.New("a defect")

// certain returns a function that adds an item without a savepoint, and then fails or panics.
func certain(name string, fail func() error) func(*store.Tx) error {
	return func(tx *store.Tx) error {
		tx.Certain()
		insert(tx, name, nil)
		return fail()
	}
}

func TestCertain_RefusalBeforeTheFirstChangeCostsOnlyItself(t *testing.T) {
	t.Parallel()
	s := open(t)
	release := hold(t, s)
	kept := submit(s, store.LaneFill, add("kept"))
	refused := submit(s, store.LaneFill, func(tx *store.Tx) error {
		tx.Certain()
		if _, err := namesIn(tx); err != nil {
			return err
		}
		return errRefused
	})
	release()
	if err := <-kept; err != nil {
		t.Fatal(err)
	}
	if err := <-refused; !errors.Is(err, errRefused) {
		t.Fatalf("got %v", err)
	}
	if diff := cmp.Diff([]string{"kept"}, names(t, s)); diff != "" {
		t.Error(diff)
	}
}

// TestCertain_DefectAfterAChangeFailsItsFunctionAlone plants a defect among the functions of other
// callers. Each of those is committed once, and memory that they changed agrees with the table.
func TestCertain_DefectAfterAChangeFailsItsFunctionAlone(t *testing.T) {
	t.Parallel()
	for name, plant := range map[string]struct {
		fail func() error
		want func(t *testing.T, err error)
	}{
		"an error": {
			func() error { return errDefect },
			func(t *testing.T, err error) {
				if !errors.Is(err, errDefect) || fault.KindOf(err) != fault.Internal {
					t.Errorf("got %v, want the defect", err)
				}
			},
		},
		"a panic": {
			func() error { panic(errDefect) },
			func(t *testing.T, err error) { wantFault(t, err, fault.Internal, "PANIC") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			inMemory, told := 0, 0
			counted := func(name string) func(*store.Tx) error {
				return func(tx *store.Tx) error {
					tx.Certain()
					inMemory++
					tx.OnUndo(func() { inMemory-- })
					tx.OnCommit(func() { told++ })
					tx.AtEnd("end", add("end"))
					insert(tx, name, nil)
					return nil
				}
			}
			release := hold(t, s)
			s.Kick("kicked", add("kicked"))
			early := submit(s, store.LaneFill, counted("early"))
			defect := submit(s, store.LaneFill, certain("lost", plant.fail))
			refused := submit(s, store.LaneFill, func(*store.Tx) error { return errRefused })
			late := submit(s, store.LaneFill, counted("late"))
			release()
			for _, outcome := range []<-chan error{early, late} {
				if err := <-outcome; err != nil {
					t.Error(err)
				}
			}
			plant.want(t, <-defect)
			if err := <-refused; !errors.Is(err, errRefused) {
				t.Errorf("got %v, want the function's own error", err)
			}
			write(t, s, nothing)
			if diff := cmp.Diff([]string{"early", "end", "kicked", "late", "end"}, names(t, s)); diff != "" {
				t.Error(diff)
			}
			if inMemory != 2 || told != 2 {
				t.Errorf("memory counts %d changes and OnCommit %d, want 2 of both", inMemory, told)
			}
		})
	}
}

func TestCertain_DefectAtTheEndOfABatchFailsItselfAlone(t *testing.T) {
	t.Parallel()
	s := open(t)
	write(t, s, func(tx *store.Tx) error {
		tx.AtEnd("defect", certain("lost", func() error { return errDefect }))
		tx.AtEnd("end", add("end"))
		insert(tx, "function", nil)
		return nil
	})
	if diff := cmp.Diff([]string{"function", "end"}, names(t, s)); diff != "" {
		t.Error(diff)
	}
}

func TestCertain_BatchLostByTheDiskIsNotRunAgain(t *testing.T) {
	t.Parallel()
	s := open(t)
	limitPages(t, s, 2)
	runs := 0
	release := hold(t, s)
	first := submit(s, store.LaneFill, func(tx *store.Tx) error {
		runs++
		insert(tx, "first", nil)
		return nil
	})
	full := submit(s, store.LaneFill, func(tx *store.Tx) error {
		tx.Certain()
		insert(tx, "small", nil)
		insert(tx, "large", make([]byte, 1<<20))
		return nil
	})
	release()
	wantFault(t, <-first, fault.Unavailable, "DISK_FULL")
	wantFault(t, <-full, fault.Unavailable, "DISK_FULL")
	if runs != 1 {
		t.Errorf("a function ran %d times in a batch that the disk has lost", runs)
	}
	limitPages(t, s, 10_000)
}

package store_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

// insertAgain adds an item with a number that another one has, which no function may do: it is a defect.
func insertAgain(tx *store.Tx) { tx.Exec(`INSERT INTO items (revision, name) VALUES (1, 'again')`) }

func TestExec_RunsBeforeTheNextReadOfAnyFunction(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, way option) {
		s := open(t, way)
		var own, next []string
		look := func(found *[]string) func(*store.Tx) error {
			return func(tx *store.Tx) (err error) {
				insert(tx, "another", nil)
				*found, err = namesIn(tx)
				return err
			}
		}
		release := hold(t, s)
		submit(s, store.LaneFill, add("one"))
		submit(s, store.LaneFill, look(&own))
		last := submit(s, store.LaneFill, look(&next))
		release()
		testkit.NoError(t, <-last)
		if diff := cmp.Diff([][]string{{"one", "another"}, {"one", "another", "another"}}, [][]string{own, next}); diff != "" {
			t.Error(diff)
		}
	})
}

// A function whose statement fails after its end costs the other functions of the batch nothing: each of them is
// committed once, and memory that they changed agrees with the table.
func TestExec_DefectFailsItsFunctionAlone(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, way option) {
		s := open(t, way)
		write(t, s, add("first"))
		var inMemory store.Memory[string, bool]
		told := 0
		end := atEnd(s, add("end"))
		counted := func(name string) func(*store.Tx) error {
			return func(tx *store.Tx) error {
				inMemory.Set(tx, name, true)
				tx.OnCommit(func() { told++ })
				end.Note(tx, name, 0)
				insert(tx, name, nil)
				return nil
			}
		}
		release := hold(t, s)
		atEnd(s, add("kicked")).Kick()
		early := submit(s, store.LaneFill, counted("early"))
		defect := submit(s, store.LaneFill, func(tx *store.Tx) error {
			insert(tx, "lost", nil)
			insertAgain(tx)
			return nil
		})
		refused := submit(s, store.LaneFill, func(*store.Tx) error { return errRefused })
		panicked := submit(s, store.LaneFill, func(tx *store.Tx) error {
			insert(tx, "lost as well", nil)
			panic("a defect")
		})
		late := submit(s, store.LaneFill, counted("late"))
		release()
		for _, outcome := range []<-chan error{early, late} {
			if err := <-outcome; err != nil {
				t.Error(err)
			}
		}
		if err := <-defect; err == nil || fault.KindOf(err) != fault.Internal {
			t.Errorf("got %v, want the defect", err)
		}
		if err := <-refused; !errors.Is(err, errRefused) {
			t.Errorf("got %v, want the function's own error", err)
		}
		wantFault(t, <-panicked, fault.Internal, "PANIC")
		if diff := cmp.Diff([]string{"first", "early", "late", "end", "kicked"}, names(t, s)); diff != "" {
			t.Error(diff)
		}
		if inMemory.Len() != 2 || told != 2 {
			t.Errorf("memory has %d changes and OnCommit %d, want 2 of both", inMemory.Len(), told)
		}
	})
}

func TestExec_DefectAtTheEndOfABatchFailsItselfAlone(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, way option) {
		s := open(t, way)
		write(t, s, add("first"))
		defect := atEnd(s, func(tx *store.Tx) error {
			insert(tx, "lost", nil)
			insertAgain(tx)
			return nil
		})
		end := atEnd(s, add("end"))
		write(t, s, func(tx *store.Tx) error {
			defect.Note(tx, "", 0)
			end.Note(tx, "", 0)
			insert(tx, "function", nil)
			return nil
		})
		if diff := cmp.Diff([]string{"first", "function", "end"}, names(t, s)); diff != "" {
			t.Error(diff)
		}
	})
}

func TestExec_BatchLostByTheDiskIsNotRunAgain(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, way option) {
		s := open(t, way)
		limitPages(t, s, 2)
		runs := 0
		release := hold(t, s)
		first := submit(s, store.LaneFill, func(tx *store.Tx) error {
			runs++
			insert(tx, "first", nil)
			return nil
		})
		full := submit(s, store.LaneFill, func(tx *store.Tx) error {
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
	})
}

// A step of a random function. It reads and changes cells, and may end the function with an error.
type step func(tx *store.Tx) error

const put = `INSERT INTO cells (id, value) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET value = excluded.value`

var cells = store.Migration{Name: "test/002_cells", SQL: `CREATE TABLE cells (id INTEGER PRIMARY KEY, value INTEGER NOT NULL);`}

// randomStep returns a step that does the same whenever it runs on the same cells.
func randomStep(r *rand.Rand) step {
	a, b, n := r.IntN(12), r.IntN(12), r.IntN(1000)
	switch r.IntN(24) {
	case 0, 1, 2, 3, 4:
		return func(tx *store.Tx) error { tx.Exec(put, a, n); return nil }
	case 5, 6, 7:
		return func(tx *store.Tx) error {
			tx.Exec(`UPDATE cells SET value = value + ? WHERE id >= ?`, n, a)
			return nil
		}
	case 8, 9:
		return func(tx *store.Tx) error { tx.Exec(`DELETE FROM cells WHERE id = ?`, a); return nil }
	case 10, 11, 12, 13:
		return func(tx *store.Tx) error {
			var sum int
			if err := tx.QueryRow(`SELECT ifnull(sum(value), 0) FROM cells WHERE id <= ?`, a).Scan(&sum); err != nil {
				return err
			}
			tx.Exec(put, b, sum%10_007)
			return nil
		}
	case 14, 15, 16:
		return func(tx *store.Tx) error {
			changed, err := tx.ExecCount(`UPDATE cells SET value = value / 2 WHERE value > ?`, n)
			if err != nil {
				return err
			}
			tx.Exec(put, a, changed)
			return nil
		}
	case 17, 18:
		return func(tx *store.Tx) error {
			gone, err := store.Collect(tx.Query(`DELETE FROM cells WHERE value % 3 = ? RETURNING value`, n%3),
				func(r *store.Rows) (v int, err error) { return v, r.Scan(&v) })
			tx.Exec(put, a, len(gone))
			return err
		}
	case 19:
		return func(tx *store.Tx) error { tx.Exec(`INSERT INTO cells (id, value) VALUES (?, ?)`, a, n); return nil } // a defect if it is there
	case 20:
		return func(tx *store.Tx) error { tx.Exec(put, a, struct{}{}); return nil }
	case 21:
		return func(*store.Tx) error { panic("a defect") }
	default:
		return func(tx *store.Tx) error {
			if err := tx.QueryRow(`SELECT value FROM cells WHERE id = ? AND value % 2 = 0`, a).Scan(new(int)); errors.Is(err, store.ErrNoRows) {
				return errRefused
			}
			return nil
		}
	}
}

func randomFunction(r *rand.Rand) func(*store.Tx) error {
	steps := make([]step, 1+r.IntN(6))
	for i := range steps {
		steps[i] = randomStep(r)
	}
	return func(tx *store.Tx) error {
		for _, s := range steps {
			if err := s(tx); err != nil {
				return err
			}
		}
		return nil
	}
}

// TestExec_BatchesDoWhatTheirFunctionsDoOneByOne runs random functions alone and in batches, one of the two in C. Functions,
// some of which are refused or have a defect, must end in the same way, and the tables must agree.
func TestExec_BatchesDoWhatTheirFunctionsDoOneByOne(t *testing.T) {
	t.Parallel()
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 0))
			ways := []option{inC, store.InGo}
			alone, together := open(t, withMigrations(cells), ways[seed%2]), open(t, withMigrations(cells), ways[(seed+1)%2])
			for range 10 {
				functions := make([]func(*store.Tx) error, 1+r.IntN(30))
				outcomes := make([]<-chan error, len(functions))
				release := hold(t, together)
				for i := range functions {
					functions[i] = randomFunction(r)
					outcomes[i] = submit(together, store.LaneFill, functions[i])
				}
				release()
				for i, fn := range functions {
					want, got := alone.Write(context.Background(), fn), <-outcomes[i]
					if ending(want) != ending(got) {
						t.Errorf("function %d: alone %v, in a batch %v", i, want, got)
					}
				}
				if diff := cmp.Diff(allCells(t, alone), allCells(t, together)); diff != "" {
					t.Fatalf("alone and in a batch: %s", diff)
				}
			}
		})
	}
}

// ending tells apart how functions end. Of several defects, an earlier or a later one is reported.
func ending(err error) string {
	switch {
	case err == nil:
		return "done"
	case errors.Is(err, errRefused):
		return "refused"
	}
	return "defect"
}

func allCells(t *testing.T, s *store.Store) (all []string) {
	t.Helper()
	err := s.Read(context.Background(), func(snap *store.Snapshot) (err error) {
		all, err = store.Collect(snap.Query(`SELECT id || ' ' || value FROM cells ORDER BY id`),
			func(r *store.Rows) (cell string, err error) { return cell, r.Scan(&cell) })
		return err
	})
	testkit.NoError(t, err)
	return all
}

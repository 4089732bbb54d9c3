package store_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mattn/go-sqlite3"

	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

// C gets SQLite's objects out of fields of the driver's, which another version of the driver may name otherwise. The
// store works without them, but slower.
func TestExec_RunsInC(t *testing.T) {
	t.Parallel()
	if !store.RunsInC(open(t)) {
		t.Error("the driver's fields are not those that the store expects, so the driver runs the statements of Exec")
	}
	if store.RunsInC(open(t, store.InGo)) {
		t.Error("a test cannot have the driver run the statements of Exec")
	}
}

var samples = store.Migration{Name: "test/002_samples", SQL: `CREATE TABLE samples (id INTEGER PRIMARY KEY, way TEXT, sample)`}

const addSample = `INSERT INTO samples (way, sample) VALUES (?, ?)`

// Every argument is stored as ExecCount, which the driver runs, stores it. The statement is the same one throughout.
func TestExec_StoresEveryArgumentAsTheDriverDoes(t *testing.T) {
	t.Parallel()
	arguments := []any{
		nil, int64(math.MinInt64), 7, int32(-7), uint32(math.MaxUint32), uint64(7), true, false, 1.5, math.Inf(-1), math.NaN(),
		"text", "", "with\x00zero", "wörter", []byte("blob"), []byte{}, []byte(nil), nil, time.Unix(1, 2), time.Time{}, time.Hour,
		strings.Repeat("t", 16<<10-1), strings.Repeat("t", 16<<10), nil, make([]byte, 16<<10-1), make([]byte, 16<<10), "last",
		strings.Repeat("large", 1<<20), []byte(strings.Repeat("large", 1<<20)),
	}
	bothWays(t, func(t *testing.T, way option) {
		s := open(t, way, withMigrations(samples))
		write(t, s, func(tx *store.Tx) error {
			for _, a := range arguments {
				if _, err := tx.ExecCount(addSample, "driver", a); err != nil {
					return err
				}
			}
			for _, a := range arguments {
				tx.Exec(addSample, "deferred", a)
			}
			return nil
		})
		stored := func(way string) (all []string) {
			t.Helper()
			err := s.Read(context.Background(), func(snap *store.Snapshot) (err error) {
				all, err = store.Collect(
					snap.Query(`SELECT typeof(sample) || ' ' || length(CAST(sample AS BLOB)) || ' ' || quote(sample)
						FROM samples WHERE way = ? ORDER BY id`, way),
					func(r *store.Rows) (sample string, err error) { return sample, r.Scan(&sample) })
				return err
			})
			testkit.NoError(t, err)
			return all
		}
		want := stored("driver")
		if len(want) != len(arguments) {
			t.Fatalf("%d samples of %d", len(want), len(arguments))
		}
		if diff := cmp.Diff(want, stored("deferred")); diff != "" {
			t.Error(diff)
		}
	})
}

const failing = `
CREATE TABLE parents (id INTEGER PRIMARY KEY);
CREATE TABLE children (
	id     INTEGER PRIMARY KEY,
	parent INTEGER REFERENCES parents (id),
	name   TEXT NOT NULL DEFAULT '' UNIQUE,
	age    INTEGER CHECK (age < 100)
);
CREATE TRIGGER refuse BEFORE INSERT ON children WHEN NEW.name = 'refused' BEGIN SELECT RAISE(ABORT, 'refused by a trigger'); END;
CREATE TRIGGER undo BEFORE INSERT ON children WHEN NEW.name = 'undone' BEGIN SELECT RAISE(ROLLBACK, 'undone by a trigger'); END;
INSERT INTO children (id, name) VALUES (1, 'first');`

// A statement that fails has the driver's error, wherever it is run, and works again afterwards.
func TestExec_ErrorsAreThoseOfTheDriver(t *testing.T) {
	t.Parallel()
	const child = `INSERT INTO children (id, parent, name, age) VALUES (?, ?, ?, ?)`
	for name, c := range map[string]struct {
		query string
		args  []any
		code  sqlite3.ErrNo // 0 if the error does not come from SQLite
	}{
		"not unique":       {child, []any{2, nil, "first", 1}, sqlite3.ErrConstraint},
		"same key":         {child, []any{1, nil, "second", 1}, sqlite3.ErrConstraint},
		"missing":          {child, []any{2, nil, nil, 1}, sqlite3.ErrConstraint},
		"out of range":     {child, []any{2, nil, "second", 100}, sqlite3.ErrConstraint},
		"no parent":        {child, []any{2, 5, "second", 1}, sqlite3.ErrConstraint},
		"trigger":          {child, []any{2, nil, "refused", 1}, sqlite3.ErrConstraint},
		"rollback":         {child, []any{2, nil, "undone", 1}, sqlite3.ErrConstraint},
		"other type":       {child, []any{"text", nil, "second", 1}, sqlite3.ErrMismatch},
		"too large":        {child, []any{2, nil, strings.Repeat("x", 100_000), 1}, sqlite3.ErrTooBig},
		"result too large": {`INSERT INTO children (name) VALUES (hex(zeroblob(?)))`, []any{40_000}, sqlite3.ErrTooBig},
		"overflow":         {`INSERT INTO children (age) VALUES (abs(?))`, []any{int64(math.MinInt64)}, sqlite3.ErrError},
		"no table":         {`INSERT INTO others VALUES (?)`, []any{1}, sqlite3.ErrError},
		"syntax":           {`INSERT INTO`, nil, sqlite3.ErrError},
		"arguments":        {child, []any{1}, 0},
		"rows":             {`DELETE FROM children RETURNING id`, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			errs := map[bool]error{}
			for _, way := range []option{inC, store.InGo} {
				s := open(t, way, withMigrations(items, store.Migration{Name: "test/002_failing", SQL: failing}))
				write(t, s, func(tx *store.Tx) error {
					store.LimitLength(tx, 50_000)
					tx.Exec(child, 10, nil, "tenth", 10)
					return nil
				})
				release := hold(t, s)
				submit(s, store.LaneFill, add("before"))
				failed := submit(s, store.LaneFill, func(tx *store.Tx) error {
					insert(tx, "lost", nil)
					tx.Exec(c.query, c.args...)
					return nil
				})
				submit(s, store.LaneFill, add("after"))
				release()
				errs[store.RunsInC(s)] = <-failed
				write(t, s, func(tx *store.Tx) error {
					tx.Exec(child, 11, nil, "eleventh", 11)
					var children int
					if err := tx.QueryRow(`SELECT count(*) FROM children`).Scan(&children); err != nil || children != 3 {
						t.Errorf("%d children, %v", children, err)
					}
					return nil
				})
			}
			inC, inGo := errs[true], errs[false]
			if inC == nil || inGo == nil || inC.Error() != inGo.Error() || fault.KindOf(inC) != fault.KindOf(inGo) {
				t.Errorf("in C: %v\nin Go: %v", inC, inGo)
			}
			var ofC, ofGo sqlite3.Error
			if errors.As(inC, &ofC) != errors.As(inGo, &ofGo) || ofC.Error() != ofGo.Error() || ofC.Code != c.code || ofGo.Code != c.code ||
				ofC.ExtendedCode != ofGo.ExtendedCode || ofC.SystemErrno != ofGo.SystemErrno {
				t.Errorf("in C: %#v\nin Go: %#v\nwant code %d", ofC, ofGo, c.code)
			}
		})
	}
}

// A connection keeps 1,000 queries prepared and then closes them all: a function may have more of them wait.
func TestExec_MoreQueriesWaitThanStayPrepared(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, way option) {
		s := open(t, way)
		var want []string
		write(t, s, func(tx *store.Tx) error {
			for i := range int64(2500) {
				name := itoa(i % 1200)
				tx.Exec(`INSERT INTO items (revision, name) VALUES (?, '`+name+`')`, tx.NextRevision())
				want = append(want, name)
			}
			return nil
		})
		if diff := cmp.Diff(want, names(t, s)); diff != "" {
			t.Error(diff)
		}
	})
}

// What a statement needs may be made by one that waits before it.
func TestExec_PreparesAStatementAfterThoseBeforeItHaveRun(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, way option) {
		s := open(t, way)
		write(t, s, func(tx *store.Tx) error {
			tx.Exec(`CREATE TABLE late (id INTEGER)`)
			tx.Exec(`INSERT INTO late VALUES (?)`, 1)
			tx.Exec(`INSERT INTO late VALUES (?)`, 2)
			return nil
		})
		write(t, s, func(tx *store.Tx) error {
			var n int
			if err := tx.QueryRow(`SELECT count(*) FROM late`).Scan(&n); err != nil || n != 2 {
				t.Errorf("%d rows, %v", n, err)
			}
			return nil
		})
	})
}

func TestExec_RefusedFunctionTakesBackItsArguments(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, way option) {
		s := open(t, way)
		content := func(letter string) []byte { return []byte(strings.Repeat(letter, 100_000)) }
		release := hold(t, s)
		submit(s, store.LaneFill, func(tx *store.Tx) error { insert(tx, "first", content("f")); return nil })
		submit(s, store.LaneFill, func(tx *store.Tx) error { insert(tx, "refused", content("r")); return errRefused })
		submit(s, store.LaneFill, func(tx *store.Tx) error {
			insert(tx, "unstorable", content("u"))
			tx.Exec(addSample, content("x"), struct{}{})
			return nil
		})
		last := submit(s, store.LaneFill, func(tx *store.Tx) error { insert(tx, "last", content("l")); return nil })
		release()
		testkit.NoError(t, <-last)
		write(t, s, func(tx *store.Tx) error {
			for name, want := range map[string]string{"first": "f", "last": "l"} {
				var got []byte
				if err := tx.QueryRow(`SELECT content FROM items WHERE name = ?`, name).Scan(&got); err != nil || string(got) != string(content(want)) {
					t.Errorf("%s: %.5s… of %d bytes, %v", name, got, len(got), err)
				}
			}
			return nil
		})
	})
}

func TestExec_CopiesNoLargeArgumentAndKeepsNoMemoryOfALargeBatch(t *testing.T) {
	t.Parallel()
	s := open(t)
	write(t, s, func(tx *store.Tx) error {
		insert(tx, "one", make([]byte, 1<<20))
		if n, _ := store.Packed(tx); n > 1000 {
			t.Errorf("%d bytes of arguments: a large one was copied", n)
		}
		if store.Referenced(tx) != 1 {
			t.Error("the large argument is nowhere")
		}
		for range 2000 {
			insert(tx, "many", make([]byte, 1000))
		}
		if n, _ := store.Packed(tx); n < 2_000_000 {
			t.Fatalf("%d bytes of arguments wait", n)
		}
		return nil
	})
	err := s.Write(context.Background(), func(tx *store.Tx) error {
		tx.Exec(addSample, make([]byte, 1<<20), struct{}{})
		return nil
	})
	if err == nil {
		t.Error("a struct was stored")
	}
	write(t, s, func(tx *store.Tx) error {
		if n, capacity := store.Packed(tx); n > 0 || capacity > 1<<20 {
			t.Errorf("memory for %d bytes of arguments is kept", capacity)
		}
		if n := store.Referenced(tx); n > 0 {
			t.Errorf("%d large arguments are kept", n)
		}
		return nil
	})
}

package postgres_test

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	"brokerd/internal/postgrestest"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

// values has a table with a column of each type, and another one.
var values = []store.Migration{{Name: "values/001", SQL: `
CREATE TABLE wholes (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, data BLOB, share REAL, n INTEGER);
CREATE TABLE pieces (id INTEGER PRIMARY KEY AUTOINCREMENT, whole INTEGER NOT NULL, name TEXT NOT NULL);
`}}

const (
	insertWhole = `INSERT INTO wholes (id, name, data, share, n) VALUES (?1, ?2, ?3, ?4, COALESCE(?5, 7))`
	insertPiece = `INSERT INTO pieces (whole, name) VALUES (?, ?)`
)

// read returns the rows of a query as texts.
func read(t *testing.T, s *store.Store, query string) (all []string) {
	t.Helper()
	testkit.NoError(t, s.Read(t.Context(), func(snap *store.Snapshot) error {
		rows := snap.Query(query)
		for rows.Next() {
			var text string
			if err := rows.Scan(&text); err != nil {
				return err
			}
			all = append(all, text)
		}
		return rows.Err()
	}))
	return all
}

// Statements of one text become one statement. What they write is the same, and so is the order of rows that get the next
// key.
func TestGather_WritesWhatTheStatementsWouldOneByOne(t *testing.T) {
	t.Parallel()
	s := open(t, postgrestest.Database(t), func(o *store.Options) { o.Migrations = values })
	testkit.NoError(t, s.Write(t.Context(), func(tx *store.Tx) error {
		tx.Exec(insertWhole, 0, "first", nil, nil, nil)
		return nil
	}))
	for round := range int64(2) { // the second finds all statements prepared
		base := 100 * round
		testkit.NoError(t, s.Write(t.Context(), func(tx *store.Tx) error {
			tx.Exec(insertPiece, 0, "0")
			tx.Exec(insertWhole, base+1, "a", []byte{0, 255}, 0.5, nil)
			tx.Exec(insertPiece, base+1, "1")
			tx.Exec(insertWhole, base+2, nil, nil, nil, int64(-1))
			tx.Exec(insertWhole, base+3, `{"",NULL\`, []byte{}, -2.25, int64(1)<<62)
			tx.Exec(insertPiece, base+3, "2")
			tx.Exec(insertPiece, base+2, "3")
			tx.Exec(`UPDATE pieces SET name = name || '.' WHERE whole = ?`, base+2)
			tx.Exec(insertPiece, base+2, "4")
			return nil
		}))
	}
	const wholes = `SELECT id || ' ' || COALESCE(name, '-') || ' ' || COALESCE(length(data), -1) || ' ' ||
		COALESCE(share, 0) || ' ' || n FROM wholes ORDER BY id`
	want := []string{
		"0 first -1 0 7", "1 a 2 0.5 7", "2 - -1 0 -1", `3 {"",NULL\ 0 -2.25 4611686018427387904`,
		"101 a 2 0.5 7", "102 - -1 0 -1", `103 {"",NULL\ 0 -2.25 4611686018427387904`,
	}
	if got := read(t, s, wholes); !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	want = []string{"0 0", "1 1", "3 2", "2 3.", "2 4", "0 0", "101 1", "103 2", "102 3.", "102 4"}
	if got := read(t, s, `SELECT whole || ' ' || name FROM pieces ORDER BY id`); !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

// ExecEach returns for each list of arguments how many rows it has changed.
func TestGather_CountsTheRowsOfEachStatement(t *testing.T) {
	t.Parallel()
	s := open(t, postgrestest.Database(t), func(o *store.Options) { o.Migrations = values })
	testkit.NoError(t, s.Write(t.Context(), func(tx *store.Tx) error {
		for i := range int64(4) {
			tx.Exec(insertWhole, i, "w", nil, nil, i/3) // one row of each number but 0, which three have
		}
		return nil
	}))
	for range 2 {
		testkit.NoError(t, s.Write(t.Context(), func(tx *store.Tx) error {
			numbers := []int64{5, 0, 9, 1}
			changed, err := tx.ExecEach(`UPDATE wholes SET name = 'of ' || ?2 WHERE n = ?1`, len(numbers), func(i int) []any {
				return []any{numbers[i], fmt.Sprint(i)}
			})
			if want := []int{0, 3, 0, 1}; err != nil || !slices.Equal(changed, want) {
				t.Errorf("changed %v (%v), want %v", changed, err, want)
			}
			return nil
		}))
	}
	want := []string{"0 of 1", "1 of 1", "2 of 1", "3 of 3"}
	if got := read(t, s, `SELECT id || ' ' || name FROM wholes ORDER BY id`); !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

// A gathered statement that fails refuses its own function alone.
func TestGather_AFailureIsThatOfItsFunction(t *testing.T) {
	t.Parallel()
	s := open(t, postgrestest.Database(t), func(o *store.Options) { o.Migrations = values })
	insert := func(ids ...int64) error {
		return s.Write(t.Context(), func(tx *store.Tx) error {
			for _, id := range ids {
				tx.Exec(insertWhole, id, "w", nil, nil, nil)
			}
			return nil
		})
	}
	testkit.NoError(t, insert(1, 2))
	if err := insert(3, 2, 4); err == nil {
		t.Error("a key was given twice")
	}
	testkit.NoError(t, insert(4, 5))
	want := []string{"1", "2", "4", "5"}
	if got := read(t, s, `SELECT CAST(id AS TEXT) FROM wholes ORDER BY id`); !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

// A gathered UPDATE finds its rows one by one along an index, even where the server believes that a partial index has few
// rows, and so that reading all of it is cheap.
func TestGather_UpdatesRowsOneByOne(t *testing.T) {
	t.Parallel()
	jobs := []store.Migration{{Name: "jobs/001", SQL: `
CREATE TABLE jobs (id INTEGER PRIMARY KEY, state INTEGER NOT NULL, holder INTEGER NOT NULL, note TEXT);
CREATE INDEX jobs_claimed ON jobs (holder) WHERE state = 2;
`}}
	url := postgrestest.Database(t)
	s := open(t, url, func(o *store.Options) { o.Migrations = jobs })
	const rows, some = 3000, 100
	testkit.NoError(t, s.Write(t.Context(), func(tx *store.Tx) error {
		for id := range rows {
			tx.Exec(`INSERT INTO jobs (id, state, holder) VALUES (?, 1, 7)`, id)
		}
		return nil
	}))
	admin(t, url, `ANALYZE jobs`) // no row is in the partial index
	const update = `UPDATE jobs SET note = ? WHERE id = ? AND state = 2 AND holder = ?`
	testkit.NoError(t, s.Write(t.Context(), func(tx *store.Tx) error {
		tx.Exec(`UPDATE jobs SET state = 2`)
		return nil
	}))
	read := func() int {
		testkit.NoError(t, s.Write(t.Context(), func(tx *store.Tx) error {
			return tx.QueryRow(`SELECT CAST(pg_stat_force_next_flush() AS TEXT)`).Scan(new(string))
		}))
		n, err := strconv.Atoi(admin(t, url, `SELECT SUM(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = 'jobs'`)[0])
		testkit.NoError(t, err)
		return n
	}
	before := read()
	for range 2 { // the second time the statement is prepared, so that it is gathered
		testkit.NoError(t, s.Write(t.Context(), func(tx *store.Tx) error {
			changed, err := tx.ExecEach(update, some, func(i int) []any { return []any{"done", i, 7} })
			if err == nil && slices.Contains(changed, 0) {
				t.Errorf("changed %v", changed)
			}
			return err
		}))
	}
	if n := read() - before; n < some || n > 5*some {
		t.Errorf("two updates of %d rows have read %d entries of indexes", some, n)
	}
}

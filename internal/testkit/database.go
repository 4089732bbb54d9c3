package testkit

import (
	"database/sql"
	"path/filepath"
	"testing"

	_ "github.com/mattn/go-sqlite3" // the driver

	"brokerd/internal/store"
)

// Number reads one integer from the database of a data folder, whose broker may run.
func Number(t testing.TB, dir, query string, args ...any) (n int64) {
	t.Helper()
	db := database(t, dir, "?mode=ro")
	defer func() { _ = db.Close() }()
	if err := db.QueryRow(query, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// Change runs a statement on the database of a data folder whose broker is down.
func Change(t testing.TB, dir, statement string, args ...any) {
	t.Helper()
	db := database(t, dir, "")
	defer func() { _ = db.Close() }()
	if _, err := db.Exec(statement, args...); err != nil {
		t.Fatal(err)
	}
}

func database(t testing.TB, dir, options string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(dir, store.DatabaseFile)+options)
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// MostEvents returns the highest number of events of a type that one function of the writer has
// appended: they have the same time, if the broker runs with the real clock.
func MostEvents(t testing.TB, dir, kind string) int64 {
	t.Helper()
	return Number(t, dir, `
		SELECT COALESCE(max(n), 0) FROM (SELECT count(*) AS n FROM events WHERE type = ? GROUP BY at) AS x`, kind)
}

package testkit

import (
	"bytes"
	"database/sql"
	"errors"
	"os"
	"testing"
)

// Ruin overwrites half of the root page of a table or index in a database file that no program
// uses.
func Ruin(t testing.TB, path, name string) {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+path+"?mode=ro")
	if err != nil {
		t.Fatal(err)
	}
	var page, size int64
	err = db.QueryRowContext(t.Context(), `SELECT rootpage, page_size FROM sqlite_schema, pragma_page_size WHERE name = ?`, name).Scan(&page, &size)
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt(bytes.Repeat([]byte{0xa5}, int(size/2)), (page-1)*size)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

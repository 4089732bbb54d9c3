package app_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"brokerd/internal/apptest"
	"brokerd/internal/postgrestest"
)

// unportable are the statements that PostgreSQL cannot prepare, by package and constant, with the reason. The list may
// only shrink.
var unportable = map[string]string{
	"store.checkBefore": "SQLite's list of tables",
	"store.create":      "SQLite's list of tables",
	"store.keepLog":     "SQLite's list of tables",
	"store.tables":      "SQLite's list of tables",
	"tasks.invariants":  "JSON in a check of CheckDatabase",
	"testkit.Ruin":      "SQLite's list of tables",
}

// TestQueries_PostgreSQLPreparesEveryStatement prepares every statement in the source of every package on PostgreSQL,
// with the tables of a new database. It finds them as constant strings, so that new ones are covered.
func TestQueries_PostgreSQLPreparesEveryStatement(t *testing.T) {
	t.Parallel()
	db, err := pgx.Connect(t.Context(), postgrestest.Database(t))
	apptest.NoError(t, err)
	t.Cleanup(func() { _ = db.Close(context.Background()) })
	for _, declared := range readSchema(t, apptest.Start(t).Dir()) {
		text := declaration.Replace(declared)
		if _, err := db.Exec(t.Context(), text); err != nil {
			t.Errorf("%v: %s", err, text)
		}
	}
	dirs, err := filepath.Glob("../*")
	apptest.NoError(t, err)
	total, used, exported := 0, map[string]bool{}, exportedParts(t)
	for _, dir := range dirs {
		for _, q := range readSource(t, dir, exported).statements {
			total++
			err := prepare(t.Context(), db.PgConn(), translate(q.text))
			if err == nil {
				continue
			}
			used[q.name] = true
			if unportable[q.name] == "" {
				t.Errorf("%s: %v", q.name, err)
			}
		}
	}
	for name := range unportable {
		if !used[name] {
			t.Errorf("%s is named but PostgreSQL prepares it", name)
		}
	}
	if total < 300 {
		t.Errorf("only %d statements were found", total)
	}
}

// readSchema returns the declarations of the tables of a database, and then those of their indexes.
func readSchema(t *testing.T, dir string) []string {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(dir, "brokerd.db")+"?mode=ro")
	apptest.NoError(t, err)
	defer func() { _ = db.Close() }()
	rows, err := db.QueryContext(t.Context(), `
		SELECT sql FROM sqlite_schema
		WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'
		ORDER BY type = 'index', rowid`)
	apptest.NoError(t, err)
	defer func() { _ = rows.Close() }()
	var declared []string
	for rows.Next() {
		var text string
		apptest.NoError(t, rows.Scan(&text))
		declared = append(declared, text)
	}
	apptest.NoError(t, rows.Err())
	return declared
}

// declaration translates the declaration of a table. An integer of SQLite has 64 bits.
var declaration = strings.NewReplacer(
	" INTEGER", " BIGINT", " BLOB", " BYTEA", " AUTOINCREMENT", "", " WITHOUT ROWID", "")

// list is a JSON array in a statement, read as a table with the column value.
var list = regexp.MustCompile(`json_each\(([^()]*)\)(?: AS (\w+))?`)

// translate numbers the arguments of a statement, and names the function that reads a list. That function
// returns texts, so a statement that reads a list of integers says CAST(value AS BIGINT).
func translate(text string) string {
	n := 0
	text = argument.ReplaceAllStringFunc(text, func(a string) string {
		if a != "?" {
			return "$" + a[1:]
		}
		n++
		return "$" + strconv.Itoa(n)
	})
	return list.ReplaceAllStringFunc(text, func(call string) string {
		m := list.FindStringSubmatch(call)
		name := m[2]
		if name == "" {
			name = "list"
		}
		return fmt.Sprintf("json_array_elements_text(CAST(%s AS json)) AS %s (value)", m[1], name)
	})
}

// undetermined is PostgreSQL's error for an argument whose uses do not show one type. A program states the type of
// each argument; the test, which has no values, states that a list is a text, and that any other such argument is an
// integer.
var undetermined = regexp.MustCompile(
	`^(?:could not determine data type of|inconsistent types deduced for) parameter \$(\d+)$`)

// prepare prepares a statement, and refuses one that takes an argument for a truth value: the engine has integers
// alone.
func prepare(ctx context.Context, db *pgconn.PgConn, text string) error {
	var types []uint32
	for {
		prepared, err := db.Prepare(ctx, "", text, types)
		var refused *pgconn.PgError
		switch {
		case err == nil && slices.Contains(prepared.ParamOIDs, pgtype.BoolOID):
			return errors.New("an argument is a truth value: compare it with 0")
		case err == nil || !errors.As(err, &refused):
			return err
		}
		m := undetermined.FindStringSubmatch(refused.Message)
		if m == nil {
			return err
		}
		n, err := strconv.Atoi(m[1])
		if err != nil {
			return err
		}
		types = append(types, make([]uint32, max(n-len(types), 0))...)
		if types[n-1] != 0 {
			return err
		}
		if types[n-1] = pgtype.Int8OID; strings.Contains(text, fmt.Sprintf("CAST($%d AS json)", n)) {
			types[n-1] = pgtype.TextOID
		}
	}
}

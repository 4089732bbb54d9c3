package testkit

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	_ "github.com/mattn/go-sqlite3" // the driver

	"brokerd/internal/postgrestest"
	"brokerd/internal/store"
	"brokerd/internal/store/postgres"
)

// A TB is what a look into a database needs of a test.
type TB interface {
	Helper()
	Fatal(args ...any)
}

// Number reads one integer from the database of a data folder, whose broker may run.
func Number(t TB, dir, query string, args ...any) (n int64) {
	t.Helper()
	var err error
	if os.Getenv(postgrestest.Variable) != "" {
		err = onServer(dir, func(db *pgx.Conn) error {
			text := onPostgreSQL(query)
			return db.QueryRow(context.Background(), text, args...).Scan(&n)
		})
	} else {
		err = onFile(dir, "?mode=ro&_busy_timeout=60000", func(db *sql.DB) error { return db.QueryRow(query, args...).Scan(&n) })
	}
	if err != nil {
		t.Fatal(query, err)
	}
	return n
}

// Change runs a statement on the database of a data folder, beside its broker, which may run. Without
// arguments it may be several.
func Change(t TB, dir, statement string, args ...any) {
	t.Helper()
	var err error
	if os.Getenv(postgrestest.Variable) != "" {
		err = onServer(dir, func(db *pgx.Conn) error {
			text := onPostgreSQL(statement)
			_, err := db.Exec(context.Background(), text, args...)
			return err
		})
	} else {
		err = onFile(dir, "?_busy_timeout=60000", func(db *sql.DB) error {
			_, err := db.Exec(statement, args...)
			return err
		})
	}
	if err != nil {
		t.Fatal(statement, err)
	}
}

func onFile(dir, options string, use func(*sql.DB) error) error {
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(dir, store.DatabaseFile)+options)
	if err != nil {
		return err
	}
	return errors.Join(use(db), db.Close())
}

func onServer(dir string, use func(*pgx.Conn) error) error {
	ctx := context.Background() // a test's own has ended at its cleanup
	db, err := pgx.Connect(ctx, postgrestest.Of(dir))
	if err != nil {
		return err
	}
	return errors.Join(use(db), db.Close(ctx))
}

// What statements of tests have besides those of the broker: triggers that refuse changes, and bytes.
var (
	made    = regexp.MustCompile(`(?s)^\s*CREATE TRIGGER (\w+) (BEFORE .*? ON \w+)(?:\s+WHEN (.*?))?\s+BEGIN\s(.*)END\s*$`)
	raised  = regexp.MustCompile(`(?s)SELECT RAISE\(ABORT, ('[^']*')\)(?: WHERE (.*?))?;`)
	dropped = regexp.MustCompile(`^DROP TRIGGER (\w+)`)
	blob    = regexp.MustCompile(`\bx'([0-9a-f]*)'`)
	hex     = regexp.MustCompile(`\bhex\((\w+)\)`)
	search  = regexp.MustCompile(`\binstr\((\w+), ('[^']*')\)`)
)

// onPostgreSQL makes PostgreSQL's text of a statement of a test.
func onPostgreSQL(text string) string {
	if m := made.FindStringSubmatch(text); m != nil {
		body := raised.ReplaceAllStringFunc(m[4], func(raise string) string {
			r := raised.FindStringSubmatch(raise)
			return `IF ` + cmp.Or(r[2], `TRUE`) + ` THEN RAISE EXCEPTION ` + r[1] + `; END IF;`
		})
		text = `CREATE FUNCTION ` + m[1] + `() RETURNS TRIGGER LANGUAGE plpgsql AS $$ BEGIN
			IF ` + cmp.Or(m[3], `TRUE`) + ` THEN ` + body + ` END IF;
			RETURN COALESCE(NEW, OLD);
		END $$;
		CREATE TRIGGER ` + m[1] + ` ` + m[2] + ` FOR EACH ROW EXECUTE FUNCTION ` + m[1] + `()`
	}
	text = dropped.ReplaceAllString(text, `DROP FUNCTION $1 CASCADE`)
	text = blob.ReplaceAllString(text, `'\x$1'::bytea`)
	text = strings.ReplaceAll(text, ` AS BLOB)`, ` AS BYTEA)`)
	text = hex.ReplaceAllString(text, `upper(encode($1, 'hex'))`)
	text = search.ReplaceAllString(text, `position(CAST($2 AS BYTEA) IN $1)`)
	text, _ = postgres.Translate(text)
	return text
}

// MostEvents returns the highest number of events of a type that one function of the writer has
// appended: they have the same time, if the broker runs with the real clock.
func MostEvents(t testing.TB, dir, kind string) int64 {
	t.Helper()
	return Number(t, dir, `
		SELECT COALESCE(max(n), 0) FROM (SELECT count(*) AS n FROM events WHERE type = ? GROUP BY at) AS x`, kind)
}

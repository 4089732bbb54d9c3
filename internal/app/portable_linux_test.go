package app_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"brokerd/internal/apptest"
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
	db := startPostgreSQL(t)
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

// startPostgreSQL starts a server for the test, in a temporary folder, that listens at a Unix socket alone.
func startPostgreSQL(t *testing.T) *pgx.Conn {
	t.Helper()
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb") // Debian puts it on no path
	apptest.NoError(t, err)
	if path, err := exec.LookPath("initdb"); err == nil {
		found = append(found, path)
	}
	if len(found) == 0 {
		t.Skip("PostgreSQL is missing: scripts/test-deps.sh installs it")
	}
	initdb := found[len(found)-1]
	dir, err := os.MkdirTemp("", "postgres")
	apptest.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	attr := &syscall.SysProcAttr{Pdeathsig: syscall.SIGQUIT} // the server does not outlive a test that is killed
	if os.Getuid() == 0 {                                    // PostgreSQL refuses to run as root
		attr.Credential = ownFolder(t, dir, "nobody")
	}
	data := filepath.Join(dir, "data")
	// As in SQLite, texts are in the order of their bytes.
	made := exec.CommandContext(t.Context(), initdb, "-D", data, "-U", "broker", "-A", "trust",
		"-E", "UTF8", "--locale=C", "--no-sync")
	made.Dir, made.SysProcAttr = dir, attr
	if out, err := made.CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	server := exec.Command(filepath.Join(filepath.Dir(initdb), "postgres"),
		"-D", data, "-k", dir, "-c", "listen_addresses=", "-c", "fsync=off")
	server.Dir, server.SysProcAttr = dir, attr
	log, err := server.StderrPipe()
	apptest.NoError(t, err)
	apptest.NoError(t, server.Start())
	ready, ended := make(chan struct{}), make(chan struct{})
	var said strings.Builder
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(log); lines.Scan(); {
			said.WriteString(lines.Text() + "\n")
			if strings.Contains(lines.Text(), "ready to accept connections") {
				close(ready)
			}
		}
		_ = server.Wait()
	}()
	t.Cleanup(func() {
		_ = server.Process.Signal(syscall.SIGINT)
		<-ended
	})
	select {
	case <-ready:
	case <-ended:
		t.Fatalf("PostgreSQL does not start:\n%s", said.String())
	}
	db, err := pgx.Connect(t.Context(), "host="+dir+" user=broker dbname=postgres")
	apptest.NoError(t, err)
	t.Cleanup(func() { _ = db.Close(context.Background()) })
	return db
}

// ownFolder gives a folder to a user, and returns the credential with which a process runs as that user.
func ownFolder(t *testing.T, dir, name string) *syscall.Credential {
	t.Helper()
	u, err := user.Lookup(name)
	apptest.NoError(t, err)
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	apptest.NoError(t, err)
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	apptest.NoError(t, err)
	apptest.NoError(t, os.Chown(dir, int(uid), int(gid)))
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

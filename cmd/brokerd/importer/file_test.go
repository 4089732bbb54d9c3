package importer_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"brokerd/client"
	"brokerd/cmd/brokerd/importer"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

// database makes a database without a log, which no connection has open.
func database(t *testing.T, statements ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "messages.db")
	db, err := sql.Open("sqlite3", "file:"+file)
	apptest.NoError(t, err)
	for _, s := range statements {
		apptest.NoError(t, apptest.Err(db.ExecContext(t.Context(), s)))
	}
	apptest.NoError(t, db.Close())
	return file
}

func text(t *testing.T, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "messages.db")
	apptest.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	return file
}

func TestImport_AFileThatIsWrongEndsItBeforeItCallsTheBroker(t *testing.T) {
	t.Parallel()
	const message = `INSERT INTO messages VALUES
		('1', 't', '1.0', '', '', 'a', 'b', 'c', 5, '{}', 'pending', '', NULL, 0, NULL, NULL)`
	made := func(statements ...string) func(*testing.T) string {
		return func(t *testing.T) string {
			t.Helper()
			return database(t, statements...)
		}
	}
	written := func(content string) func(*testing.T) string {
		return func(t *testing.T) string {
			t.Helper()
			return text(t, content)
		}
	}
	for name, test := range map[string]struct {
		file func(t *testing.T) string
		want string
	}{
		"missing": {func(t *testing.T) string {
			t.Helper()
			return filepath.Join(t.TempDir(), "messages.db")
		}, "does not exist"},
		"folder": {func(t *testing.T) string { t.Helper(); return t.TempDir() }, "is no file with a database"},
		"empty":  {written(""), "is empty"},
		"text":   {written(strings.Repeat("hello ", 100)), "is no SQLite database"},
		"cut off": {func(t *testing.T) string {
			t.Helper()
			file := database(t, schema, message)
			apptest.NoError(t, os.Truncate(file, 5000))
			return file
		}, "is damaged: "},
		"damaged": {func(t *testing.T) string {
			t.Helper()
			file := database(t, schema, message)
			testkit.Ruin(t, file, "messages")
			return file
		}, "is damaged: "},
		"foreign": {made("CREATE TABLE notes (text)"), "has no table messages"},
		"view":    {made("CREATE VIEW messages AS SELECT 1 AS id"), "has no table messages"},
		"columns": {made("CREATE TABLE messages (id, type, version)"), "has a table messages without the column timestamp"},
		"other columns": {func(t *testing.T) string {
			t.Helper()
			return database(t, schema, "ALTER TABLE agent_status RENAME agent_id TO name")
		}, "has a table agent_status without the column agent_id"},
		"locked": {func(t *testing.T) string {
			t.Helper()
			file := database(t, schema, message)
			db := open(t, file, "DELETE")
			tx, err := db.BeginTx(t.Context(), nil)
			apptest.NoError(t, err)
			t.Cleanup(func() { _ = tx.Rollback() })
			// The change does not fit into the cache, so a part of it is in the file.
			for _, s := range []string{"PRAGMA cache_size = 1", "UPDATE messages SET payload = hex(zeroblob(1000000))"} {
				apptest.NoError(t, apptest.Err(tx.ExecContext(t.Context(), s)))
			}
			return file
		}, "is locked: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := test.file(t)
			before := map[string]string{}
			if name != "missing" && name != "folder" {
				before = files(t, filepath.Dir(file))
			}
			_, err := importer.Run(t.Context(), importer.Options{File: file, Log: func(string) {},
				Connect: func(context.Context) (*client.Client, error) {
					t.Error("the import called the broker")
					return nil, errors.New("no broker")
				}})
			if !errors.As(err, new(*importer.FileError)) || !strings.HasPrefix(err.Error(), file+" "+test.want) {
				t.Errorf("%v; want %q", err, test.want)
			}
			if name != "missing" && name != "folder" {
				if diff := cmp.Diff(before, files(t, filepath.Dir(file))); diff != "" {
					t.Errorf("the files have changed: %.200s", diff)
				}
			}
		})
	}
}

// A team may have only messages, and columns and tables of its own.
func TestImport_OtherTablesAndColumnsDoNotMatter(t *testing.T) {
	t.Parallel()
	d := newTeam(t)
	d.exec("DROP TABLE agent_status")
	d.exec("DROP TABLE channel_subscriptions")
	d.exec("DROP TABLE dead_letter_queue")
	d.exec("CREATE TABLE notes (text)")
	d.exec("ALTER TABLE messages ADD COLUMN thumbnail BLOB")
	d.exec("ALTER TABLE messages ADD COLUMN cost REAL")
	d.message("1", columns{"thumbnail": []byte{0xff}, "cost": 1.5})
	d.message("2", columns{"status": "done", "thumbnail": []byte{0xff}, "cost": 1.5})
	if got := counts(d.imports())["messages"]; got.Imported != 1 {
		t.Errorf("%+v", got)
	}
	kept := d.lines("import/messages/history.jsonl")
	want := []any{"2", map[string]any{"base64": "/w=="}, 1.5, nil}
	if got := []any{kept[0]["id"], kept[0]["thumbnail"], kept[0]["cost"], kept[0]["error"]}; cmp.Diff(want, got) != "" {
		t.Errorf("history: %v", kept)
	}
}

// Agents write while the import copies the file. What it imports is a state that was committed.
func TestImport_AFileThatIsBeingWrittenIsImportedAsItWasAtOneMoment(t *testing.T) {
	t.Parallel()
	d := newTeam(t)
	d.exec("PRAGMA wal_autocheckpoint = 3") // so that a checkpoint and a new log are frequent
	stop, ended := make(chan struct{}), make(chan error, 1)
	started := make(chan struct{})
	go func() {
		other := d.db
		for n := 0; ; n++ {
			select {
			case <-stop:
				ended <- nil
				return
			default:
			}
			// Each transaction adds two messages, so a committed state has an even number.
			_, err := other.ExecContext(context.WithoutCancel(t.Context()), `INSERT INTO messages
				SELECT ? || x, 't', '1.0', '', NULL, 'a', 'b', 'c', 5, '{}', 'done', '', NULL, 0, NULL, NULL
				FROM (SELECT 'x' AS x UNION SELECT 'y')`, n)
			if err != nil {
				ended <- err
				return
			}
			if n == 10 {
				close(started)
			}
		}
	}()
	<-started
	for range 5 {
		report, err := d.run(func(o *importer.Options) { o.DryRun = true })
		var busy *importer.FileError
		if errors.As(err, &busy) && strings.Contains(busy.Problem, "changes all the time") {
			continue
		}
		if err != nil {
			t.Error(err)
		} else if n := counts(report)["finished"].Read; n == 0 || n%2 != 0 {
			t.Errorf("%d messages", n)
		}
	}
	close(stop)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if n := counts(d.imports())["finished"].Read; n%2 != 0 {
		t.Errorf("%d messages", n)
	}
}

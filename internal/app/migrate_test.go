package app_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jonboulle/clockwork"
	_ "github.com/mattn/go-sqlite3" // to read whole tables

	"brokerd/internal/app"
	"brokerd/internal/apptest"
	"brokerd/internal/fault"
	"brokerd/internal/postgrestest"
	"brokerd/internal/store"
	"brokerd/internal/store/postgres"
	"brokerd/internal/testkit"
)

// reason returns the reason of a fault.
func reason(err error) string {
	var f *fault.Error
	if !errors.As(err, &f) {
		return ""
	}
	return f.Reason
}

// migrate moves the data of one place to another.
func migrate(t *testing.T, from, to app.Config) app.Moved {
	t.Helper()
	moved, err := app.Migrate(patient(t), from, to, func(line string) { t.Log(line) })
	if err != nil {
		t.Fatalf("from %q to %q: %v", from.Dir+from.Store, to.Dir+to.Store, err)
	}
	return moved
}

// dump returns all rows of a data folder's database as texts, and its schema. What each run of a broker changes in the
// row of meta is left out, and when migrations were applied.
func dump(t *testing.T, dir string) []string {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(dir, "brokerd.db")+"?mode=ro")
	apptest.NoError(t, err)
	defer func() { _ = db.Close() }()
	local := []string{"uptime", "stopped", "moved", "applied_at"}
	texts := func(query string) (all []string) {
		rows, err := db.Query(query)
		apptest.NoError(t, err)
		defer func() { _ = rows.Close() }()
		columns, err := rows.Columns()
		apptest.NoError(t, err)
		row := make([]any, len(columns))
		for i := range row {
			row[i] = new(any)
		}
		for rows.Next() {
			apptest.NoError(t, rows.Scan(row...))
			var line strings.Builder
			for i, value := range row {
				if !slices.Contains(local, columns[i]) {
					fmt.Fprintf(&line, " %s=%#v", columns[i], *value.(*any))
				}
			}
			all = append(all, line.String())
		}
		apptest.NoError(t, rows.Err())
		return all
	}
	all := texts(`SELECT type, name, sql FROM sqlite_schema ORDER BY name`)
	for _, name := range texts(`SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name`) {
		name = strings.TrimSuffix(strings.TrimPrefix(name, ` name="`), `"`)
		for _, row := range texts(`SELECT * FROM ` + name) {
			all = append(all, name+row)
		}
	}
	slices.Sort(all)
	return all
}

// Folders that older versions have left have data of every feature.
func TestMigrate_AFolderIsTheSameAfterPostgreSQLAndBack(t *testing.T) {
	t.Parallel()
	testkit.OnSQLite(t, "it begins with a folder of SQLite")
	archives, err := filepath.Glob("testdata/upgrade/*.tar.gz")
	if err != nil || len(archives) == 0 {
		t.Fatalf("no archives: %v", err)
	}
	for _, archive := range archives {
		t.Run(strings.TrimSuffix(filepath.Base(archive), ".tar.gz"), func(t *testing.T) {
			t.Parallel()
			old := unpack(t, archive)
			clock := clockwork.NewFakeClockAt(old.at)
			first := app.Config{Dir: filepath.Join(old.dir, "data"), Clock: clock}
			server := app.Config{Store: postgrestest.Database(t), Clock: clock}
			last := app.Config{Dir: filepath.Join(old.dir, "back"), Clock: clock}
			there := migrate(t, first, server)
			back := migrate(t, server, last)
			if there.Report != back.Report || there.Contents != back.Contents || there.Contents == 0 || there.Rows == 0 {
				t.Errorf("there %+v, and back %+v", there, back)
			}
			if diff := cmp.Diff(dump(t, first.Dir), dump(t, last.Dir)); diff != "" {
				t.Error(diff)
			}
			for _, c := range []app.Config{first, server} {
				if c.Store != "" {
					c.Dir = folder(t)
				}
				if _, err := app.Start(patient(t), c); reason(err) != "MOVED" {
					t.Errorf("a start on a source: %v", err)
				}
			}
			old.compare(t, last.Dir)
		})
	}
}

func TestMigrate_ABrokerOnPostgreSQLAnswersAsTheOneBefore(t *testing.T) {
	t.Parallel()
	archives, err := filepath.Glob("testdata/upgrade/*.tar.gz")
	if err != nil || len(archives) == 0 {
		t.Fatalf("no archives: %v", err)
	}
	old := unpack(t, archives[len(archives)-1])
	database := postgrestest.Database(t)
	migrate(t, app.Config{Dir: filepath.Join(old.dir, "data")}, app.Config{Store: database})
	old.compare(t, folder(t), func(c *app.Config) { c.Store = database })
	if want, got := schemaOnPostgreSQL(t, emptyDatabase(t)), schemaOnPostgreSQL(t, database); want != got {
		t.Errorf("the tables after a migration are not those of a new database: %s", cmp.Diff(want, got))
	}
}

func TestMigrate_RefusesWhatItCannotMove(t *testing.T) {
	t.Parallel()
	testkit.OnSQLite(t, "it begins with a folder of SQLite")
	b := apptest.Start(t, apptest.With(func(c *app.Config) { c.Store = "" }))
	b.Registered("a", "worker")
	from, to := app.Config{Dir: b.Dir()}, app.Config{Store: postgrestest.Database(t)}
	refused := func(want string, from, to app.Config) {
		t.Helper()
		if _, err := app.Migrate(patient(t), from, to, func(string) {}); reason(err) != want {
			t.Errorf("%s: %v", want, err)
		}
	}
	refused("IN_USE", from, to)
	refused("NO_DATA", app.Config{Dir: folder(t)}, to)
	refused("NO_DATA", to, app.Config{Dir: folder(t)})
	for _, value := range []string{`'a' || char(0)`, `CAST(x'ff' AS TEXT)`, `x'61'`} {
		b.Restart(func() {
			var name string
			db, err := sql.Open("sqlite3", filepath.Join(b.Dir(), "brokerd.db"))
			apptest.NoError(t, err)
			apptest.NoError(t, db.QueryRow(`SELECT role FROM agents`).Scan(&name))
			_, err = db.Exec(`UPDATE agents SET role = ` + value)
			apptest.NoError(t, err)
			refused("UNFIT_VALUE", from, to)
			_, err = db.Exec(`UPDATE agents SET role = ?`, name)
			apptest.NoError(t, err)
			apptest.NoError(t, db.Close())
		})
	}
	// The migrations that failed have left the target closed, and the source open.
	if _, err := app.Start(patient(t), app.Config{Dir: folder(t), Store: to.Store}); reason(err) != "MIGRATION_INCOMPLETE" {
		t.Errorf("a start on a target that was not filled: %v", err)
	}
	b.Restart(func() {
		copied := app.Config{Dir: folder(t)}
		apptest.NoError(t, exec.Command("cp", "-a", filepath.Join(from.Dir, "brokerd.db"), copied.Dir).Run())
		migrate(t, copied, to)
		refused("NOT_EMPTY", copied, to)
		refused("MOVED", copied, app.Config{Store: postgrestest.Database(t)}) // so that two do not continue
		refused("NOT_EMPTY", to, from)
	})
}

// A broker that was killed at its first start has left the tables of the target.
func TestMigrate_ATargetThatIsThereIsClosedBeforeContentsAreCopied(t *testing.T) {
	t.Parallel()
	testkit.OnSQLite(t, "it begins with a folder of SQLite")
	b := apptest.Start(t, apptest.With(func(c *app.Config) { c.Store = "" }))
	b.Root().Upload("notes", "a content")
	to := app.Config{Store: postgrestest.Database(t)}
	database, err := postgres.New(to.Store, "", clockwork.NewRealClock())
	apptest.NoError(t, err)
	st, err := store.Open(patient(t), store.Options{
		Database: database, Clock: clockwork.NewRealClock(), Migrations: app.Migrations(),
	})
	apptest.NoError(t, err)
	apptest.NoError(t, st.Close())
	contents := filepath.Join(b.Dir(), "artifacts")
	b.Restart(func() {
		apptest.NoError(t, os.Rename(contents, contents+".kept"))
		if _, err := app.Migrate(patient(t), app.Config{Dir: b.Dir()}, to, func(string) {}); err == nil {
			t.Error("a migration without a content has ended")
		}
		apptest.NoError(t, os.RemoveAll(contents))
		apptest.NoError(t, os.Rename(contents+".kept", contents))
	})
	if _, err := app.Start(patient(t), started(t, to)); reason(err) != "MIGRATION_INCOMPLETE" {
		t.Errorf("a start on the target: %v", err)
	}
}

// endLocked is a query that ends the connection with the lock of the broker that writes.
const endLocked = `SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND database = (
	SELECT oid FROM pg_database WHERE datname = current_database())`

// On PostgreSQL, the lock is lost with its connection. On SQLite, only with its file.
func TestMigrate_ASourceOnWhichAnotherBrokerHasStartedStaysOpen(t *testing.T) {
	t.Parallel()
	testkit.OnSQLite(t, "it begins with a folder of SQLite")
	onServer, inFolder := app.Config{Dir: folder(t), Store: postgrestest.Database(t)}, app.Config{Dir: folder(t)}
	for name, way := range map[string]struct {
		from, to app.Config
		unlock   func()
	}{
		"on PostgreSQL": {onServer, app.Config{Dir: filepath.Join(folder(t), "new")}, func() {
			db, err := pgx.Connect(t.Context(), onServer.Store)
			apptest.NoError(t, err)
			apptest.NoError(t, apptest.Err(db.Exec(t.Context(), endLocked)))
			apptest.NoError(t, db.Close(t.Context()))
		}},
		"on SQLite": {inFolder, app.Config{Store: postgrestest.Database(t)}, func() {
			apptest.NoError(t, os.Remove(filepath.Join(inFolder.Dir, "brokerd.lock")))
		}},
	} {
		once := func() { apptest.NoError(t, run(t, way.from).Stop(patient(t))) }
		once()
		_, err := app.Migrate(patient(t), way.from, way.to, func(line string) {
			if line == "making the indexes" {
				way.unlock()
				once()
			}
		})
		if reason(err) != "CHANGED_SOURCE" {
			t.Errorf("%s: a migration during which another broker has run: %v", name, err)
		}
		if way.to.Dir == "" {
			way.to.Dir = folder(t)
		}
		if _, err := app.Start(patient(t), way.to); reason(err) != "MIGRATION_INCOMPLETE" {
			t.Errorf("%s: a start on the target: %v", name, err)
		}
		once()
	}
}

// started is the configuration of a broker on a database, with a data folder.
func started(t *testing.T, on app.Config) app.Config {
	t.Helper()
	on.Dir = folder(t)
	return on
}

// emptyDatabase is a new database with the tables of a broker.
func emptyDatabase(t *testing.T) string {
	t.Helper()
	url := postgrestest.Database(t)
	apptest.Start(t, apptest.With(func(c *app.Config) { c.Store = url }))
	return url
}

// schemaOnPostgreSQL returns the tables of a database in a form for people.
func schemaOnPostgreSQL(t *testing.T, url string) string {
	t.Helper()
	db, err := pgx.Connect(t.Context(), url)
	apptest.NoError(t, err)
	defer func() { _ = db.Close(context.Background()) }()
	var text string
	apptest.NoError(t, db.QueryRow(t.Context(), postgresSchema).Scan(&text))
	return text
}

package testkit

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"testing"

	"github.com/jonboulle/clockwork"

	"brokerd/internal/postgrestest"
	"brokerd/internal/store"
	"brokerd/internal/store/postgres"
)

// fresh makes a database as if no broker had run on it. All copies have the instance of their template.
const fresh = `UPDATE meta SET revision = 0, latest = 0, uptime = 0, stopped = 0, epoch = 0, commits = 0`

// Postgres returns the URL of the PostgreSQL database that a test uses in place of the SQLite file in its data
// folder, with the tables of some migrations: see postgrestest.Suite. It is empty where tests use SQLite.
func Postgres(t postgrestest.TB, dir string, migrations []store.Migration) string {
	t.Helper()
	if os.Getenv(postgrestest.Variable) == "" {
		return ""
	}
	type step struct{ Name, SQL, Server string }
	var steps []step
	for _, m := range migrations {
		steps = append(steps, step{m.Name, m.SQL, m.Server})
	}
	key, err := json.Marshal(steps)
	if err != nil {
		t.Fatal(err)
	}
	return postgrestest.Suite(t, dir, postgrestest.Template{Key: string(key), Fill: func(url string) error {
		database, err := postgres.New(url, "", clockwork.NewRealClock())
		if err != nil {
			return err
		}
		folder, err := os.MkdirTemp("", "template")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(folder) }()
		o := store.Options{Dir: folder, Clock: clockwork.NewRealClock(), Database: database, Migrations: migrations}
		s, err := store.Open(context.Background(), o)
		if err != nil {
			return err
		}
		return errors.Join(s.Close(), postgrestest.Run(url, fresh))
	}})
}

// OnSQLite skips a test that only SQLite's file can pass, for a reason.
func OnSQLite(t testing.TB, reason string) {
	t.Helper()
	if os.Getenv(postgrestest.Variable) != "" {
		t.Skip("not on PostgreSQL: " + reason)
	}
}

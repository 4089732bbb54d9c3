// Package postgrestest gives tests a PostgreSQL server: one for each test binary, started with the first test that
// asks for it, one for a test that ends and starts its own, and one for the suite of all features (make test-postgres).
// scripts/test-deps.sh installs PostgreSQL. No program imports it.
package postgrestest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
)

// ErrMissing is the error where PostgreSQL is not installed.
var ErrMissing = errors.New("PostgreSQL is missing: scripts/test-deps.sh installs it")

// shared is the server of the test binary.
var shared struct {
	once    sync.Once
	running atomic.Bool // Tests.Run will stop the server
	server  *Server
	err     error
	made    atomic.Int64 // databases
}

// Tests runs the tests of a package and then stops the server. It is for TestMain:
// goleak.VerifyTestMain(postgrestest.Tests{M: m}).
type Tests struct{ *testing.M }

// Run runs the tests and returns their exit code.
func (m Tests) Run() int {
	shared.running.Store(true)
	code := m.M.Run()
	if shared.server != nil {
		shared.server.Stop()
	}
	return code
}

// Database makes an empty database in which texts are in the order of their bytes, and returns its URL. The database is
// removed when the test ends. options are further options of CREATE DATABASE, which may name another collation.
//
// Without PostgreSQL the test is skipped; with CI=true it fails.
func Database(t testing.TB, options ...string) string {
	t.Helper()
	if !shared.running.Load() {
		t.Fatal("the TestMain of this package does not run postgrestest.Tests")
	}
	shared.once.Do(func() { shared.server, shared.err = Start() })
	need(t, shared.err)
	name := fmt.Sprintf("test_%d", shared.made.Add(1))
	server := shared.server.URL("postgres")
	if err := Run(server, `CREATE DATABASE `+name+` STRATEGY file_copy `+strings.Join(options, " ")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Run(server, `DROP DATABASE `+name+` WITH (FORCE)`); err != nil {
			t.Error(err)
		}
	})
	return shared.server.URL(name)
}

// need ends a test that has no server.
func need(t testing.TB, err error) {
	t.Helper()
	switch {
	case errors.Is(err, ErrMissing) && os.Getenv("CI") != "true":
		t.Skip(err)
	case err != nil:
		t.Fatal(err)
	}
}

// Run runs a statement in a database.
func Run(url, text string) error {
	ctx := context.Background() // a test's own has ended at its cleanup
	db, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	if _, err = db.Exec(ctx, text); err != nil {
		err = fmt.Errorf("%s: %w", text, err)
	}
	return errors.Join(err, db.Close(ctx))
}

package postgrestest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Variable is the environment variable that has the tests of features keep their data on a PostgreSQL server. Its value
// is the URL of a database there, from which Suite makes others.
const Variable = "BROKERD_TEST_POSTGRES"

// Share is the environment variable that has only one test in so many run on that server, the same ones each time. The
// others are skipped.
const Share = Variable + "_SHARE"

// skip ends a test that is not in the share.
func skip(t TB) {
	n, err := strconv.Atoi(os.Getenv(Share))
	test, is := t.(*testing.T) // not a property, which no single draw may skip
	if err != nil || n < 2 || !is {
		return
	}
	name, _, _ := strings.Cut(test.Name(), "/")
	if crc32.ChecksumIEEE([]byte(name))%uint32(n) != 0 {
		test.Skipf("not among the tests that run with %s=%d", Share, n)
	}
}

// A Template is a database of which those of a suite are copies. It is made once on a server.
type Template struct {
	Key  string                 // of this template alone
	Fill func(url string) error // makes its tables in an empty database
}

// A TB is what Suite needs of a test.
type TB interface {
	Helper()
	Cleanup(fn func())
	Fatal(args ...any)
}

// suite has what this process knows of the server of a suite.
var suite suiteServer

type suiteServer struct {
	folders   sync.Map // with a database
	templates sync.Map // that are there

	mu sync.Mutex // guards db
	db *pgx.Conn  // nil until it is needed
}

// run runs a statement on the server.
func (s *suiteServer) run(server, text string) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx := context.Background() // a test's own has ended at its cleanup
	if s.db == nil || s.db.IsClosed() {
		if s.db, err = pgx.Connect(ctx, server); err != nil {
			return err
		}
	}
	if _, err = s.db.Exec(ctx, text); err != nil {
		err = fmt.Errorf("%s: %w", text, err)
	}
	return err
}

// Suite returns the URL of the database that belongs to a data folder of a test, which it makes when it is first asked
// for that folder. The database is removed when the test ends. The URL is empty unless Variable is set.
func Suite(t TB, dir string, from Template) string {
	t.Helper()
	server := os.Getenv(Variable)
	if server == "" {
		return ""
	}
	skip(t)
	name := databaseOf(dir)
	if _, known := suite.folders.LoadOrStore(dir, true); known {
		return named(server, name)
	}
	template, err := from.make(server)
	if err == nil {
		err = suite.run(server, `CREATE DATABASE `+name+` TEMPLATE `+template+` STRATEGY file_copy`)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		suite.folders.Delete(dir)
		if err := suite.run(server, `DROP DATABASE `+name+` WITH (FORCE)`); err != nil {
			t.Fatal(err)
		}
	})
	return named(server, name)
}

// make returns the name of the template, which it makes on the server unless it is there. Tests of other processes
// wait meanwhile.
func (t Template) make(server string) (name string, err error) {
	name = "template_" + sum(t.Key)
	if _, known := suite.templates.Load(name); known {
		return name, nil
	}
	ctx := context.Background() // a template is not of one test
	db, err := pgx.Connect(ctx, server)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, db.Close(ctx)) }() // and with it the lock
	var made bool
	if _, err := db.Exec(ctx, `SELECT pg_advisory_lock(1)`); err != nil {
		return "", err
	}
	if err := db.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM pg_database WHERE datname = $1)`, name).Scan(&made); err != nil {
		return "", err
	}
	if !made {
		// Under another name until it is complete.
		if _, err := db.Exec(ctx, `CREATE DATABASE filling STRATEGY file_copy`); err != nil {
			return "", err
		}
		if err := t.Fill(named(server, "filling")); err != nil {
			return "", fmt.Errorf("fill a template: %w", err)
		}
		if _, err := db.Exec(ctx, `ALTER DATABASE filling RENAME TO `+name); err != nil {
			return "", err
		}
	}
	suite.templates.Store(name, true)
	return name, nil
}

// named returns the URL of another database of a server.
func named(server, database string) string {
	u, err := url.Parse(server)
	if err != nil {
		return server // which no client takes either
	}
	u.Path = "/" + database
	return u.String()
}

// Of returns the URL of the database that Suite has made for a data folder. It is empty unless Variable is set.
func Of(dir string) string {
	server := os.Getenv(Variable)
	if server == "" {
		return ""
	}
	return named(server, databaseOf(dir))
}

func databaseOf(dir string) string { return "suite_" + sum(dir) }

// sum shortens a text to a part of a name.
func sum(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}

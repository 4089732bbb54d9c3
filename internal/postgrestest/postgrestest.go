// Package postgrestest gives tests a PostgreSQL server: one for each test binary, started with the first test that
// asks for it, and one for the suite of all features (make test-postgres). scripts/test-deps.sh installs PostgreSQL.
// No program imports it.
package postgrestest

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
)

// errMissing is the error where PostgreSQL is not installed.
var errMissing = errors.New("PostgreSQL is missing: scripts/test-deps.sh installs it")

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
	switch {
	case errors.Is(shared.err, errMissing) && os.Getenv("CI") != "true":
		t.Skip(shared.err)
	case shared.err != nil:
		t.Fatal(shared.err)
	}
	name := fmt.Sprintf("test_%d", shared.made.Add(1))
	server := shared.server.URL("postgres")
	if err := run(server, `CREATE DATABASE `+name+` STRATEGY file_copy `+strings.Join(options, " ")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := run(server, `DROP DATABASE `+name+` WITH (FORCE)`); err != nil {
			t.Error(err)
		}
	})
	return shared.server.URL(name)
}

// Variable is the environment variable that has the tests of features keep their data on a PostgreSQL server. Its value
// is the URL of a database there, from which Suite makes others.
const Variable = "BROKERD_TEST_POSTGRES"

// Suite returns the URL of the database that belongs to a data folder of a test, which it makes when it is first asked
// for that folder. The database is removed when the test ends. The URL is empty unless Variable is set.
func Suite(t interface {
	Helper()
	Cleanup(func())
	Fatal(...any)
}, dir string) string {
	t.Helper()
	server := os.Getenv(Variable)
	if server == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(dir))
	name := "suite_" + hex.EncodeToString(sum[:8])
	if _, known := suite.LoadOrStore(dir, true); !known {
		if err := run(server, `CREATE DATABASE `+name+` STRATEGY file_copy`); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			suite.Delete(dir)
			if err := run(server, `DROP DATABASE `+name+` WITH (FORCE)`); err != nil {
				t.Fatal(err)
			}
		})
	}
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + name
	return u.String()
}

// suite has the data folders with a database.
var suite sync.Map

// A Server is a PostgreSQL server that listens at a Unix socket alone, in its own temporary folder.
type Server struct {
	dir     string
	process *os.Process
	ended   chan struct{} // closed when the process has ended
}

// Start makes the files of a server and starts it.
func Start() (*Server, error) {
	initdb, err := find("initdb")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "postgres")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir, ended: make(chan struct{})}
	if err := s.start(initdb); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return s, nil
}

func (s *Server) start(initdb string) error {
	attr, err := unprivileged(s.dir)
	if err != nil {
		return err
	}
	data := filepath.Join(s.dir, "data")
	made := exec.Command(initdb, "-D", data, "-U", "broker", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
	made.Dir, made.SysProcAttr = s.dir, attr
	if out, err := made.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	program := exec.Command(filepath.Join(filepath.Dir(initdb), "postgres"), "-D", data, "-k", s.dir,
		"-c", "listen_addresses=", "-c", "fsync=off", "-c", "max_connections=200")
	program.Dir, program.SysProcAttr = s.dir, attr
	log, err := program.StderrPipe()
	if err != nil {
		return err
	}
	ready, said := make(chan error, 1), strings.Builder{}
	report := func(err error) { // the first one counts
		select {
		case ready <- err:
		default:
		}
	}
	go func() {
		defer close(s.ended)
		runtime.LockOSThread() // the server ends with the thread that has started it
		defer runtime.UnlockOSThread()
		if err := program.Start(); err != nil {
			report(err)
			return
		}
		s.process = program.Process
		for lines := bufio.NewScanner(log); lines.Scan(); {
			if said.Len() < 1<<16 {
				said.WriteString(lines.Text() + "\n")
			}
			if strings.Contains(lines.Text(), "ready to accept connections") {
				report(nil)
			}
		}
		report(fmt.Errorf("PostgreSQL does not start: %w\n%s", program.Wait(), said.String()))
	}()
	return <-ready
}

// find returns the path of one of PostgreSQL's programs. Debian puts them on no path.
func find(program string) (string, error) {
	if path, err := exec.LookPath(program); err == nil {
		return path, nil
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/" + program)
	if err != nil || len(found) == 0 {
		return "", errors.Join(errMissing, err)
	}
	return found[len(found)-1], nil
}

// Stop ends the server and removes its files.
func (s *Server) Stop() {
	_ = s.process.Signal(syscall.SIGINT) // ends the connections first
	<-s.ended
	_ = os.RemoveAll(s.dir)
}

// URL returns the URL of a database; each server has the database postgres.
func (s *Server) URL(database string) string {
	u := url.URL{Scheme: "postgres", User: url.User("broker"), Path: "/" + database, RawQuery: url.Values{"host": {s.dir}}.Encode()}
	return u.String()
}

// run runs a statement in a database.
func run(url, text string) error {
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

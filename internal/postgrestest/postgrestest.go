// Package postgrestest gives tests a PostgreSQL server: one for each test binary, started with the first test that
// asks for it. scripts/test-deps.sh installs PostgreSQL. No program imports it.
package postgrestest

import (
	"bufio"
	"context"
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
	server  *server
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
		shared.server.stop()
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
	shared.once.Do(func() { shared.server, shared.err = start() })
	switch {
	case errors.Is(shared.err, errMissing) && os.Getenv("CI") != "true":
		t.Skip(shared.err)
	case shared.err != nil:
		t.Fatal(shared.err)
	}
	name := fmt.Sprintf("test_%d", shared.made.Add(1))
	shared.server.exec(t, `CREATE DATABASE `+name+` STRATEGY file_copy `+strings.Join(options, " "))
	t.Cleanup(func() { shared.server.exec(t, `DROP DATABASE `+name+` WITH (FORCE)`) })
	return shared.server.url(name)
}

// A server is a PostgreSQL server that listens at a Unix socket alone, in its own temporary folder.
type server struct {
	dir     string
	process *os.Process
	ended   chan struct{} // closed when the process has ended
}

// start makes the files of a server and starts it.
func start() (*server, error) {
	initdb, err := find("initdb")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "postgres")
	if err != nil {
		return nil, err
	}
	s := &server{dir: dir, ended: make(chan struct{})}
	if err := s.start(initdb); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return s, nil
}

func (s *server) start(initdb string) error {
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

// stop ends the server and removes its files.
func (s *server) stop() {
	_ = s.process.Signal(syscall.SIGINT) // ends the connections first
	<-s.ended
	_ = os.RemoveAll(s.dir)
}

func (s *server) url(database string) string {
	u := url.URL{Scheme: "postgres", User: url.User("broker"), Path: "/" + database, RawQuery: url.Values{"host": {s.dir}}.Encode()}
	return u.String()
}

// exec runs a statement in the database that every server has.
func (s *server) exec(t testing.TB, text string) {
	t.Helper()
	ctx := context.Background() // a test's own has ended at its cleanup
	db, err := pgx.Connect(ctx, s.url("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(ctx, text); err != nil {
		t.Errorf("%s: %v", text, err)
	}
	if err := db.Close(ctx); err != nil {
		t.Error(err)
	}
}

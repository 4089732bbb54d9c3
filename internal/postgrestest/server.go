package postgrestest

import (
	"bufio"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// A Server is a PostgreSQL server that listens at a Unix socket alone, in its own temporary folder. Its methods are for
// one goroutine at a time.
type Server struct {
	dir      string
	programs string   // the folder of PostgreSQL's programs
	settings []string // such as max_connections=20
	process  *os.Process
	ended    chan struct{} // closed when all its processes have ended
}

// Start makes the files of a server and starts it. settings such as max_connections=20 replace those of a test's
// server.
func Start(settings ...string) (*Server, error) {
	initdb, err := find("initdb")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(parent(), "postgres")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir, programs: filepath.Dir(initdb), settings: settings}
	err = s.initialize()
	if err == nil {
		err = s.Restart()
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return s, nil
}

// Own starts a server for one test, which may end it and start it again. It is removed when the test ends.
//
// Without PostgreSQL the test is skipped; with CI=true it fails.
func Own(t testing.TB, settings ...string) *Server {
	t.Helper()
	s, err := Start(settings...)
	need(t, err)
	t.Cleanup(s.Stop)
	return s
}

func (s *Server) initialize() error {
	attr, err := unprivileged(s.dir)
	if err != nil {
		return err
	}
	made := exec.Command(filepath.Join(s.programs, "initdb"), "-D", s.Data(), "-U", "broker", "-A", "trust",
		"-E", "UTF8", "--locale=C", "--no-sync")
	made.Dir, made.SysProcAttr = s.dir, attr
	if out, err := made.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	return nil
}

// Restart starts the server after its end, on the files that it has left. It returns when the server takes connections.
//
// The server does not sync its files. So they survive the end of its processes, however they end, and not that of the
// machine.
func (s *Server) Restart() error {
	attr, err := unprivileged(s.dir)
	if err != nil {
		return err
	}
	args := []string{"-D", s.Data(), "-k", s.dir, "-c", "listen_addresses=", "-c", "fsync=off", "-c", "max_connections=200"}
	for _, setting := range s.settings {
		args = append(args, "-c", setting)
	}
	program := exec.Command(filepath.Join(s.programs, "postgres"), args...)
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
	ended := make(chan struct{})
	s.ended = ended
	go func() {
		defer close(ended)
		runtime.LockOSThread() // the server ends with the thread that has started it
		defer runtime.UnlockOSThread()
		if err := program.Start(); err != nil {
			report(err)
			return
		}
		s.process = program.Process
		for lines := bufio.NewScanner(log); lines.Scan(); { // until the last process has closed it
			if said.Len() < 1<<16 {
				said.WriteString(lines.Text() + "\n")
			}
			if strings.Contains(lines.Text(), "ready to accept ") { // of a standby: read-only connections
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
		return "", errors.Join(ErrMissing, err)
	}
	return found[len(found)-1], nil
}

// Programs returns the folder of PostgreSQL's programs. Without them the test is skipped; with CI=true it fails.
func Programs(t testing.TB) string {
	t.Helper()
	initdb, err := find("initdb")
	if err == nil {
		initdb, err = filepath.EvalSymlinks(initdb) // the others are beside the file itself
	}
	need(t, err)
	return filepath.Dir(initdb)
}

// Stop ends the server and removes its files.
func (s *Server) Stop() {
	s.Signal(syscall.SIGCONT)
	s.End(syscall.SIGINT) // ends the connections first
	_ = os.RemoveAll(s.dir)
}

// End sends a signal to the server and returns when all its processes have ended: SIGTERM waits for the clients, SIGINT
// ends their connections, SIGQUIT leaves everything as it is.
func (s *Server) End(sig syscall.Signal) {
	_ = s.process.Signal(sig) // it may have ended
	<-s.ended
}

// Kill sends SIGKILL to all processes of the server, and returns when they have ended.
func (s *Server) Kill() {
	_ = s.process.Signal(syscall.SIGSTOP) // so that it starts no more
	s.Signal(syscall.SIGKILL)
	<-s.ended
}

// Signal sends a signal to all processes of the server, unless they have ended. SIGSTOP freezes it, until SIGCONT.
func (s *Server) Signal(sig syscall.Signal) {
	select {
	case <-s.ended:
		return
	default:
	}
	for _, pid := range append(children(s.process.Pid), s.process.Pid) {
		_ = syscall.Kill(pid, sig) // it may have ended
	}
}

// children returns the processes that a process has started.
func children(parent int) (pids []int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is right
	for _, stat := range stats {
		text, _ := os.ReadFile(stat) // it may have ended
		_, after, _ := strings.Cut(string(text), ") ")
		fields := strings.Fields(after) // the state, the parent, …
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(stat)))
		if err == nil && len(fields) > 1 && fields[1] == strconv.Itoa(parent) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Data returns the folder of the server's data.
func (s *Server) Data() string { return filepath.Join(s.dir, "data") }

// Keep writes a file into the folder of the server's data, which only the server's user can read.
func (s *Server) Keep(name string, content []byte) error {
	path := filepath.Join(s.Data(), name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		return err
	}
	info, err := os.Stat(s.Data())
	if err != nil {
		return err
	}
	owner := info.Sys().(*syscall.Stat_t)
	return os.Chown(path, int(owner.Uid), int(owner.Gid))
}

// URL returns the URL of a database; each server has the database postgres.
func (s *Server) URL(database string) string {
	u := url.URL{Scheme: "postgres", User: url.User("broker"), Path: "/" + database,
		RawQuery: url.Values{"host": {s.dir}}.Encode()}
	return u.String()
}

package postgrestest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// Standby makes a standby of a server for one test and starts it. It receives all changes as they are committed. It is
// removed when the test ends.
func (s *Server) Standby(t testing.TB, settings ...string) *Server {
	t.Helper()
	standby, err := s.standby(settings)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(standby.Stop)
	return standby
}

func (s *Server) standby(settings []string) (*Server, error) {
	dir, err := os.MkdirTemp(parent(), "postgres")
	if err != nil {
		return nil, err
	}
	standby := &Server{dir: dir, programs: s.programs, settings: settings}
	err = standby.copyFrom(s)
	if err == nil {
		err = standby.Restart()
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return standby, nil
}

// copyFrom copies the files of a server, with the settings of a standby of it.
func (s *Server) copyFrom(primary *Server) error {
	attr, err := unprivileged(s.dir)
	if err != nil {
		return err
	}
	program, err := find("pg_basebackup")
	if err != nil {
		return err
	}
	copied := exec.Command(program, "--pgdata", s.Data(), "--host", primary.dir, "--username", "broker",
		"--write-recovery-conf", "--checkpoint=fast", "--no-sync")
	copied.Dir, copied.SysProcAttr = s.dir, attr
	if out, err := copied.CombinedOutput(); err != nil {
		return fmt.Errorf("pg_basebackup: %w\n%s", err, out)
	}
	return nil
}

// AwaitStandby has the server confirm a commit only when a standby has it on its disk.
func (s *Server) AwaitStandby() error {
	return errors.Join(
		Run(s.URL("postgres"), `ALTER SYSTEM SET synchronous_standby_names = '*'`),
		Run(s.URL("postgres"), `SELECT pg_reload_conf()`))
}

// Promote makes a standby a primary, and returns when it is one.
func (s *Server) Promote() error { return Run(s.URL("postgres"), `SELECT pg_promote()`) }

// Dir returns the folder with the server's socket, which is its host in a URL.
func (s *Server) Dir() string { return s.dir }

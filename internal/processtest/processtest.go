// Package processtest runs brokerd as a separate process inside a test: built from the current
// source, on a data folder in /tmp, to be killed, stopped and restarted. apptest runs it within the
// test's own process. No program imports it.
package processtest

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// Programs is the environment variable that names a folder with programs that were built before the tests, as make test does.
const Programs = "TEST_PROGRAMS"

// Build builds brokerd and brokerctl in bin/test of the repository, and returns the path of
// brokerd. The tests of all packages share the folder: the first call links the programs, and later
// calls find them up to date. The compiler flags are those of make build, so the packages are in
// the build cache already. Programs in more, packages of this module, are built beside them.
// If Programs is set, the folder has all of them.
func Build(t testing.TB, more ...string) string {
	t.Helper()
	if built := os.Getenv(Programs); built != "" {
		return filepath.Join(built, "brokerd")
	}
	module, err := exec.CommandContext(t.Context(), "go", "env", "GOMOD").Output()
	if err != nil {
		t.Fatalf("find the repository: %v", err)
	}
	dir := filepath.Join(filepath.Dir(string(module)), "bin", "test")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	// The tests of several packages run at once: one builds while the others wait.
	lock, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close() //nolint:errcheck // nothing is written to it; closing releases the lock
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatalf("lock %s: %v", lock.Name(), err)
	}
	args := append([]string{"build", "-buildvcs=false", "-o", dir, "brokerd/cmd/brokerd", "brokerd/cmd/brokerctl"}, more...)
	if out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return filepath.Join(dir, "brokerd")
}

// HeedHangups makes the processes that the test starts end at SIGHUP, even if the test runs under
// nohup: the start of a program resets a signal that has a handler, and keeps one that is ignored.
func HeedHangups(t testing.TB) {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	t.Cleanup(func() { signal.Stop(hangups) })
}

// A Daemon is a brokerd process on a data folder. Its methods are for one goroutine at a time.
type Daemon struct {
	Args  []string // further arguments of Start
	Store string   // the URL of the database that has the data; empty = SQLite

	program string
	dir     string
	env     []string
	process *exec.Cmd
	exited  chan error // gets what the process ended with; nil = there is no process
	stderr  *transcript
}

// New returns a daemon that is not started, on a folder that is kept if the test fails. The test's end kills it.
func New(t testing.TB, program string) *Daemon {
	t.Helper()
	dir, err := os.MkdirTemp("", "brokerd") // short: the path of the socket has a limit
	if err != nil {
		t.Fatal(err)
	}
	d := &Daemon{program: program, dir: dir, env: Environment(t), stderr: &transcript{}}
	t.Cleanup(func() {
		d.Kill()
		if t.Failed() {
			t.Logf("the data folder is kept: %s", dir)
			return
		}
		_ = os.RemoveAll(dir)
	})
	return d
}

// Of returns the daemon of another process, on a data folder. It is not to be started or stopped.
func Of(dir string) *Daemon { return &Daemon{dir: dir} }

// Start starts the process and returns when it answers calls.
func (d *Daemon) Start(ctx context.Context) error {
	args := append(d.command("serve"), "--log-level", "warn", "--log-format", "console")
	d.process = exec.Command(d.program, append(args, d.Args...)...)
	d.process.Env = d.env
	d.stderr = &transcript{}
	d.process.Stderr = d.stderr
	stdout, err := d.process.StdoutPipe()
	if err != nil {
		return err
	}
	if err := d.process.Start(); err != nil {
		return fmt.Errorf("start brokerd: %w", err)
	}
	d.exited = make(chan error, 1)
	ready := make(chan string, 1)
	go func() {
		r := bufio.NewReader(stdout)
		line, _ := r.ReadString('\n')
		ready <- line
		_, _ = io.Copy(io.Discard, r)
		d.exited <- d.process.Wait()
	}()
	select {
	case line := <-ready:
		if !strings.Contains(line, "listening on") {
			d.Kill()
			return fmt.Errorf("brokerd did not start: %s%s", line, d.stderr)
		}
	case <-ctx.Done():
		return fmt.Errorf("brokerd did not start in time: %w", ctx.Err())
	}
	return nil
}

// command returns the arguments of a command on the daemon's data.
func (d *Daemon) command(name string) []string {
	args := []string{name, "--data", d.dir}
	if d.Store != "" {
		args = append(args, "--store", d.Store)
	}
	return args
}

// Program returns the path of the program that runs as the daemon.
func (d *Daemon) Program() string { return d.program }

// PID returns the id of the process, which runs.
func (d *Daemon) PID() int { return d.process.Process.Pid }

// Dir returns the data folder.
func (d *Daemon) Dir() string { return d.dir }

// Address returns the address of the Unix socket.
func (d *Daemon) Address() string { return "unix://" + filepath.Join(d.dir, "brokerd.sock") }

// Stderr returns what the process has written to its standard error.
func (d *Daemon) Stderr() string { return d.stderr.String() }

// Signal sends a signal to the process.
func (d *Daemon) Signal(s syscall.Signal) error { return d.process.Process.Signal(s) }

// Kill sends SIGKILL and waits for the end. Without a process it does nothing.
func (d *Daemon) Kill() {
	if d.exited != nil {
		_ = d.process.Process.Kill()
		_ = d.ended()
	}
}

// Terminate asks the process to stop and returns what it ended with.
func (d *Daemon) Terminate() error {
	if err := d.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return d.ended()
}

// Wait waits until the process ends by itself, and returns what it ended with.
func (d *Daemon) Wait(ctx context.Context) error {
	select {
	case err := <-d.exited:
		d.exited = nil
		return err
	case <-ctx.Done():
		return fmt.Errorf("brokerd did not end: %w", ctx.Err())
	}
}

func (d *Daemon) ended() error {
	err := <-d.exited
	d.exited = nil
	return err
}

// Check runs `brokerd check` on the data, on which no process may run. The program is the brokerd
// beside the one that runs as the daemon.
func (d *Daemon) Check(ctx context.Context) error {
	c := exec.CommandContext(ctx, filepath.Join(filepath.Dir(d.program), "brokerd"), d.command("check")...)
	c.Env = d.env
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("brokerd check: %w\n%s", err, out)
	}
	return nil
}

// A transcript keeps what a process writes. Its methods may be called concurrently.
type transcript struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

// Write implements io.Writer.
func (t *transcript) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.Write(p)
}

// String returns all of it.
func (t *transcript) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}

// Environment is this process's, for a child that has no settings of a daemon or a client, and an empty home folder
// until the end of the test: the child leaves the files of the user alone, a shell's history included.
func Environment(t testing.TB) []string {
	t.Helper()
	home, err := os.MkdirTemp("", "home")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(home) }) // a child that was killed may leave one of its own, which still writes
	env := []string{"HOME=" + home, "HISTFILE=" + os.DevNull}
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		if !strings.HasPrefix(name, "BROKERD_") && !strings.HasPrefix(name, "XDG_") && name != "HOME" && name != "HISTFILE" {
			env = append(env, v)
		}
	}
	return env
}

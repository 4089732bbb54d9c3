// Package childdaemon runs brokerd as a child process on a temporary data folder, for programs that
// need a broker for themselves. The child does not outlive its parent: the parent holds the other
// end of its standard input, and when the parent ends, even by SIGKILL, the child stops and removes
// the folder.
package childdaemon

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// stopTime is how long Stop waits for the daemon before it kills it.
const stopTime = 10 * time.Second

// A Daemon is a running brokerd. Its methods may be called concurrently.
type Daemon struct {
	cmd   *exec.Cmd
	dir   string
	stdin io.Closer
	ended chan struct{} // closed after the process has ended
}

// Start starts the program brokerd on a new folder in parent (empty = that of temporary files), with variables
// (NAME=VALUE; those of brokerd and brokerctl are left out) and further arguments, and returns when it answers
// calls. The daemon writes its log to stderr. If Start fails, or ctx ends first, no process and no folder
// remain. The caller must call Stop.
func Start(ctx context.Context, program, parent string, variables []string, stderr io.Writer, args ...string) (*Daemon, error) {
	dir, err := os.MkdirTemp(parent, "brokerd-")
	if err != nil {
		return nil, fmt.Errorf("make a data folder: %w", err)
	}
	d := &Daemon{dir: dir, ended: make(chan struct{})}
	d.cmd = exec.Command(program, append([]string{"serve", "--data", dir, "--temporary", "--stop-on-stdin-eof",
		"--log-level", "warn", "--log-format", "console"}, args...)...)
	d.cmd.Stderr = stderr
	for _, v := range variables { // these settings are for other daemons and their clients
		if !strings.HasPrefix(v, "BROKERD_") {
			d.cmd.Env = append(d.cmd.Env, v)
		}
	}
	// Ctrl-C on the terminal is for the parent, which stops the daemon after its own work has ended.
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := d.start()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", program, err), os.RemoveAll(dir))
	}
	ready := make(chan bool, 1)
	go func() { // ends with the process, which Stop ends
		lines := bufio.NewScanner(out)
		ready <- lines.Scan() // with this log format, the daemon writes one line when it answers
		_, _ = io.Copy(io.Discard, out)
		_ = d.cmd.Wait() // Failure reports how it ended
		close(d.ended)
	}()
	select {
	case ok := <-ready:
		if ok {
			return d, nil
		}
		<-d.ended
		err = d.Failure()
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	return nil, errors.Join(err, d.Stop())
}

// start starts the process and returns its standard output.
func (d *Daemon) start() (io.Reader, error) {
	stdin, err := d.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	d.stdin = stdin
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return out, d.cmd.Start()
}

// Dir returns the data folder.
func (d *Daemon) Dir() string { return d.dir }

// Address returns where the daemon listens.
func (d *Daemon) Address() (string, error) {
	text, err := os.ReadFile(filepath.Join(d.dir, "endpoint"))
	return strings.TrimSpace(string(text)), err
}

// Ended is closed when the process has ended.
func (d *Daemon) Ended() <-chan struct{} { return d.ended }

// Failure returns how the process ended. It may be called after Ended is closed.
func (d *Daemon) Failure() error { return fmt.Errorf("brokerd has ended: %s", d.cmd.ProcessState) }

// Stop stops the daemon and removes the folder. It kills a daemon that has not stopped after 10 s.
func (d *Daemon) Stop() error {
	_ = d.stdin.Close() // this stops it; an error means that it has ended
	timer := time.NewTimer(stopTime)
	defer timer.Stop()
	select {
	case <-d.ended:
	case <-timer.C:
		_ = d.cmd.Process.Kill() // as above
		<-d.ended
	}
	return os.RemoveAll(d.dir) // a daemon that was killed leaves it
}

package demo

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// stopTime is how long the daemon gets to stop by itself.
const stopTime = 10 * time.Second

// daemon is a brokerd that runs for the demonstration alone, on a folder that goes with it.
type daemon struct {
	cmd   *exec.Cmd
	dir   string
	errs  bytes.Buffer
	ended chan struct{} // closed once the process is gone
}

// startDaemon runs program on a new folder, and returns when it answers calls. The caller must stop it.
func startDaemon(ctx context.Context, program string) (*daemon, error) {
	dir, err := os.MkdirTemp("", "brokerd-demo-")
	if err != nil {
		return nil, err
	}
	d := &daemon{dir: dir, ended: make(chan struct{})}
	d.cmd = exec.Command(program, "--data", d.data(), "--log-level", "warn")
	d.cmd.Stderr = &d.errs
	for _, v := range os.Environ() { // what is set for another daemon is not meant for this one
		if !strings.HasPrefix(v, "BROKERD_") {
			d.cmd.Env = append(d.cmd.Env, v)
		}
	}
	// Ctrl-C on the terminal is for brokerctl, which stops the daemon when its agents have ended.
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := d.cmd.StdoutPipe()
	if err == nil {
		err = d.cmd.Start()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", program, err), os.RemoveAll(dir))
	}
	ready := make(chan bool, 1)
	go func() {
		lines := bufio.NewScanner(out)
		ready <- lines.Scan() // the one line that it writes when it answers
		for lines.Scan() {
		}
		_ = d.cmd.Wait() // how it ended matters only to those who find it gone
		close(d.ended)
	}()
	select {
	case ok := <-ready:
		if ok {
			return d, nil
		}
		<-d.ended
		err = d.failure()
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	return nil, errors.Join(err, d.stop())
}

func (d *daemon) data() string { return filepath.Join(d.dir, "data") }

// address returns where the daemon listens.
func (d *daemon) address() (string, error) {
	text, err := os.ReadFile(filepath.Join(d.data(), "endpoint"))
	return strings.TrimSpace(string(text)), err
}

// failure says that the daemon is gone, and what it said last.
func (d *daemon) failure() error {
	return fmt.Errorf("brokerd has ended: %s", strings.TrimSpace(d.errs.String()))
}

// stop ends the daemon and removes its folder.
func (d *daemon) stop() error {
	_ = d.cmd.Process.Signal(syscall.SIGTERM) // fails only if it is gone
	timer := time.NewTimer(stopTime)
	defer timer.Stop()
	select {
	case <-d.ended:
	case <-timer.C:
		_ = d.cmd.Process.Kill() // as above
		<-d.ended
	}
	return os.RemoveAll(d.dir)
}

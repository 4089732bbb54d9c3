package crashtest_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
)

// A daemon is a brokerd process on a data folder, and a connection to it.
type daemon struct {
	program string
	dir     string
	process *exec.Cmd
	exited  chan error    // gets what the process ended with
	stderr  *bytes.Buffer // may be read once it has ended
	conn    *grpc.ClientConn

	agents   pb.AgentServiceClient
	admin    pb.AdminServiceClient
	channels pb.ChannelServiceClient
	events   pb.EventServiceClient
	messages pb.MessageServiceClient
	sessions pb.SessionServiceClient
}

// build builds brokerd and returns the path of the program.
func build(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "brokerd")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "brokerd/cmd/brokerd").CombinedOutput(); err != nil {
		t.Fatalf("build brokerd: %v\n%s", err, out)
	}
	return program
}

// newDaemon returns a daemon that is not started, on a folder that is kept if the test fails.
func newDaemon(t *testing.T, program string) *daemon {
	t.Helper()
	dir, err := os.MkdirTemp("", "crash") // short: the path of the socket has a limit
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{program: program, dir: dir}
	t.Cleanup(func() {
		d.kill()
		if t.Failed() {
			t.Logf("the data folder is kept: %s", dir)
			return
		}
		_ = os.RemoveAll(dir)
	})
	return d
}

// start starts the process and returns when it answers calls.
func (d *daemon) start(ctx context.Context) error {
	d.process = exec.Command(d.program, "serve", "--data", d.dir, "--log-level", "warn", "--log-format", "console")
	d.process.Env = environment()
	d.stderr = &bytes.Buffer{}
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
			d.kill()
			return fmt.Errorf("brokerd did not start: %s%s", line, d.stderr)
		}
	case <-ctx.Done():
		return fmt.Errorf("brokerd did not start in time: %w", ctx.Err())
	}
	d.conn, err = grpc.NewClient("unix://"+filepath.Join(d.dir, "brokerd.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
	if err != nil {
		return err
	}
	d.agents = pb.NewAgentServiceClient(d.conn)
	d.admin = pb.NewAdminServiceClient(d.conn)
	d.channels = pb.NewChannelServiceClient(d.conn)
	d.events = pb.NewEventServiceClient(d.conn)
	d.messages = pb.NewMessageServiceClient(d.conn)
	d.sessions = pb.NewSessionServiceClient(d.conn)
	return nil
}

// kill sends SIGKILL and waits for the end. Without a process it does nothing.
func (d *daemon) kill() {
	if d.exited != nil {
		_ = d.process.Process.Kill()
		_ = d.ended()
	}
}

// terminate asks the process to stop and returns what it ended with.
func (d *daemon) terminate() error {
	if err := d.process.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return d.ended()
}

func (d *daemon) ended() error {
	err := <-d.exited
	d.exited = nil
	if d.conn != nil {
		_ = d.conn.Close()
		d.conn = nil
	}
	return err
}

// check runs `brokerd check` on the folder, on which no process may run.
func (d *daemon) check(ctx context.Context) error {
	c := exec.CommandContext(ctx, d.program, "check", "--data", d.dir)
	c.Env = environment()
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("brokerd check: %w\n%s", err, out)
	}
	return nil
}

// environment is this process's without the settings of a daemon.
func environment() []string {
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "BROKERD_") {
			env = append(env, v)
		}
	}
	return env
}

// as returns a context for calls in the name of an agent.
func as(ctx context.Context, agent string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "brokerd-agent", agent)
}

// cut reports whether a call ended because the daemon was killed: nobody knows then what came of it.
func cut(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.Canceled, codes.DeadlineExceeded:
		return true
	default:
		return errors.Is(err, io.EOF) || errors.Is(err, context.Canceled)
	}
}

// pause waits for as long as d, or until the context ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

package crashtest_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"brokerd/internal/crashtest/faultvfs"
	"brokerd/internal/processtest"
)

// buildFaultd builds brokerd and, beside it, faultd. It returns the path of faultd.
func buildFaultd(t *testing.T) string {
	t.Helper()
	return filepath.Join(filepath.Dir(processtest.Build(t, "brokerd/internal/crashtest/faultd")), "faultd")
}

// A faulty is a faultd process: a daemon whose disk fails as a test plans it.
type faulty struct {
	*daemon
	t       *testing.T
	control string
}

func newFaulty(t *testing.T, program, sync string) *faulty {
	t.Helper()
	f := &faulty{daemon: newDaemon(t, program), t: t}
	f.control = f.Dir() + ".control" // not in the data folder, whose contents matter
	t.Cleanup(func() { _ = os.Remove(f.control) })
	f.begin = func(ctx context.Context) error { return f.launch(ctx, sync, faultvfs.Plan{}) }
	return f
}

// launch starts the process with a plan.
func (f *faulty) launch(ctx context.Context, sync string, plan faultvfs.Plan) error {
	text, err := json.Marshal(plan)
	if err != nil {
		return err
	}
	if err := os.Remove(f.control); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f.Args = []string{"--sync", sync, "--control", f.control, "--plan", string(text)}
	return f.Start(ctx)
}

// An order is a command of faultd, a report its answer.
type (
	order struct {
		Plan *faultvfs.Plan `json:",omitempty"`
		Jump time.Duration  `json:",omitempty"`
	}
	report struct {
		faultvfs.Counts
		Error string
	}
)

// command sends a command to the process, which must run.
func (f *faulty) command(o order) report {
	f.t.Helper()
	r, err := f.ask(o)
	if err != nil {
		f.t.Fatalf("command %+v: %v", o, err)
	}
	return r
}

// ask gives an order, and returns its answer.
func (f *faulty) ask(o order) (r report, err error) {
	conn, err := net.Dial("unix", f.control)
	if err != nil {
		return r, err
	}
	defer conn.Close() //nolint:errcheck // the answer has been read
	if err := errors.Join(json.NewEncoder(conn).Encode(o), json.NewDecoder(conn).Decode(&r)); err != nil {
		return r, err
	}
	if r.Error != "" {
		return r, errors.New(r.Error)
	}
	return r, nil
}

// cut starts a plan that cuts the power. The power may go before the answer comes.
func (f *faulty) cut(p faultvfs.Plan) {
	f.t.Helper()
	_, err := f.ask(order{Plan: &p})
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		f.t.Fatalf("plan %+v: %v", p, err)
	}
}

// plan starts a plan.
func (f *faulty) plan(p faultvfs.Plan) { f.t.Helper(); f.command(order{Plan: &p}) }

// counts returns what happened since the newest plan.
func (f *faulty) counts() report { f.t.Helper(); return f.command(order{}) }

// ended waits until the process ends by itself, and returns what it ended with.
func (f *faulty) ended(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err := f.Wait(ctx)
	if ctx.Err() != nil {
		f.t.Fatal(err)
	}
	f.disconnect()
	return err
}

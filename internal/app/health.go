package app

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/jonboulle/clockwork"

	"brokerd/internal/diskguard"
	"brokerd/internal/drain"
	"brokerd/internal/fault"
	"brokerd/internal/store"
)

// phase is a part of the daemon's life.
type phase int32

const (
	starting phase = iota
	serving
	stopping
)

// probes answers the health checks of service managers and monitors.
type probes struct {
	store *store.Store
	disk  *diskguard.Gauge
	drain *drain.Switch
	clock clockwork.Clock
	phase atomic.Int32
}

// enter notes that a phase begins.
func (p *probes) enter(next phase) { p.phase.Store(int32(next)) }

// stop begins the last phase. It is a step of the teardown.
func (p *probes) stop(context.Context) error {
	p.enter(stopping)
	return nil
}

const (
	// idle is how long after the last commit a health check asks whether the server is there.
	idle = 10 * time.Second
	// patience is how long a health check waits for the store, less than the usual patience of monitors.
	patience = 2 * time.Second
)

// halted returns why the store takes no changes. A store on a server that has made none for a while cannot know whether
// the server is there: a read finds out. One that has failed cannot know whether it still would: it tries.
func (p *probes) halted(ctx context.Context) error {
	err := p.store.Halted()
	var f *fault.Error
	silent := errors.As(err, &f) && f.Reason == store.ReasonSilent
	if silent || err == nil && (!p.store.OnServer() || p.clock.Since(p.store.Stats().LastCommit) < idle) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	failed := err != nil
	err = p.store.Read(ctx, func(*store.Snapshot) error { return nil })
	if err == nil && failed {
		err = p.store.Try(ctx)
	}
	if ctx.Err() != nil {
		return fault.New(fault.Unavailable, store.ReasonSilent, "the store has not answered for %v", patience)
	}
	return err
}

// problem returns why the broker does not serve, cannot accept changes, or delivers no new work; it is
// empty if all is well.
func (p *probes) problem(ctx context.Context) string {
	switch phase(p.phase.Load()) {
	case starting:
		return "the broker starts"
	case stopping:
		return "the broker stops"
	}
	if err := p.halted(ctx); err != nil {
		return err.Error()
	}
	if err := p.disk.Check(); err != nil {
		return err.Error()
	}
	if p.drain.Active() {
		return "an operator drains the broker"
	}
	return ""
}

// healthz answers that the process runs.
func healthz(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") }

// readyz answers 200 while the broker serves, accepts changes and delivers work, else 503 and the
// reason.
func (p *probes) readyz(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	problem := p.problem(r.Context())
	if problem != "" {
		w.WriteHeader(http.StatusServiceUnavailable)
	} else {
		problem = "ready"
	}
	_, _ = fmt.Fprintln(w, problem)
}

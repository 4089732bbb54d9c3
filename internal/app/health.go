package app

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"

	"brokerd/internal/diskguard"
	"brokerd/internal/drain"
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
	phase atomic.Int32
}

// enter notes that a phase begins.
func (p *probes) enter(next phase) { p.phase.Store(int32(next)) }

// stop begins the last phase. It is a step of the teardown.
func (p *probes) stop(context.Context) error {
	p.enter(stopping)
	return nil
}

// problem returns why the broker does not serve, cannot accept changes, or delivers no new work; it is
// empty if all is well.
func (p *probes) problem() string {
	switch phase(p.phase.Load()) {
	case starting:
		return "the broker starts"
	case stopping:
		return "the broker stops"
	}
	if err := p.store.Halted(); err != nil {
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
func (p *probes) readyz(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	problem := p.problem()
	if problem != "" {
		w.WriteHeader(http.StatusServiceUnavailable)
	} else {
		problem = "ready"
	}
	_, _ = fmt.Fprintln(w, problem)
}

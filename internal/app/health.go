package app

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/jonboulle/clockwork"
	"golang.org/x/sync/singleflight"

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
	tries singleflight.Group
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
	// quiet is how long after the last commit, or the last failure of one, a health check tries whether the store takes
	// changes.
	quiet = 10 * time.Second
	// patience is how long a health check waits for the store, less than the usual patience of monitors.
	patience = 2 * time.Second
)

// halted returns why the store takes no changes. A store on a server that has made none for a while cannot know whether
// it still could, and neither can one that has failed a while ago: so it tries.
func (p *probes) halted() error {
	err := p.store.Halted()
	var f *fault.Error
	silent := errors.As(err, &f) && f.Reason == store.ReasonSilent
	since := p.clock.Since
	switch stats := p.store.Stats(); {
	case silent, err == nil && (!p.store.OnServer() || since(stats.LastCommit) < quiet):
		return err
	case err != nil && since(stats.LastLost) < quiet:
		return err
	}
	tried := p.tries.DoChan("", func() (any, error) { return nil, p.try() }) // one at a time, however many ask
	timer := time.NewTimer(patience)                                         //nolint:forbidigo // a monitor has its own clock
	defer timer.Stop()
	select {
	case result := <-tried:
		return result.Err
	case <-timer.C:
		return fault.New(fault.Unavailable, store.ReasonSilent, "the store has not answered for %v", patience)
	}
}

// try commits a change. It reads before, so that no commit is without an answer because the server is gone.
func (p *probes) try() error {
	ctx := context.Background() // the next check may take the result
	if err := p.store.Read(ctx, func(*store.Snapshot) error { return nil }); err != nil {
		return err
	}
	return p.store.Try(ctx)
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
	if err := p.halted(); err != nil {
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
	answerReady(w, p.problem())
}

// answerReady answers with a problem; empty if there is none.
func answerReady(w http.ResponseWriter, problem string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	if problem != "" {
		w.WriteHeader(http.StatusServiceUnavailable)
	} else {
		problem = "ready"
	}
	_, _ = fmt.Fprintln(w, problem)
}

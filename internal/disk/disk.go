// Package disk watches how full the file system of the data folder is, and has sends refused before it is full: what is
// left belongs to acknowledgements and deletions, which make room.
//
//	        85 %                    95 %
//	fine ──────────► warned ──────────────► sends are refused
//	  ▲   disk_low     │      disk_low         │
//	  └────────────────┴───── disk_recovered ──┘  (sends go on below 95 %)
//
// Nobody polls: whoever wants to send has it looked at, at most every 10 s.
package disk

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/store"
)

const (
	warnAt    = 0.85 // of the file system
	refuseAt  = 0.95
	lookEvery = 10 * time.Second
)

// level says what the disk's state calls for.
type level int

const (
	fine level = iota
	warned
	refusing
)

// A Gauge knows how full the disk is. Its methods may be called concurrently.
type Gauge struct {
	store *store.Store
	log   *events.Log
	clock clockwork.Clock
	zap   *zap.Logger
	used  func() (float64, error)

	epoch time.Time
	next  atomic.Int64 // nanoseconds since epoch when it is due to be looked at again
	full  atomic.Int64 // percent used while sends are refused, else 0

	mu    sync.Mutex // guards the field below
	worst level      // that was told since it was last fine
}

// New returns a gauge, and looks at the disk. The function tells which share of it is used, from 0 to 1, as Used does.
func New(st *store.Store, log *events.Log, clock clockwork.Clock, logger *zap.Logger, used func() (float64, error)) *Gauge {
	g := &Gauge{store: st, log: log, clock: clock, zap: logger, used: used, epoch: clock.Now()}
	g.next.Store(int64(lookEvery))
	g.look()
	return g
}

// Room returns nil, or fault.Exhausted (DISK_NEARLY_FULL) if so little is left that nothing may be sent. It looks
// at the disk if the last look is 10 s ago.
func (g *Gauge) Room() error {
	now := int64(g.clock.Since(g.epoch))
	if due := g.next.Load(); now >= due && g.next.CompareAndSwap(due, now+int64(lookEvery)) {
		g.look()
	}
	percent := g.full.Load()
	if percent == 0 {
		return nil
	}
	e := fault.New(fault.Exhausted, "DISK_NEARLY_FULL",
		"the disk of the broker is %d %% full: nothing can be sent until it is below %d %%; reading and acknowledging go on", percent, int(refuseAt*100))
	e.RetryAfter = lookEvery
	return e.With("limit", "disk").With("disk", fmt.Sprintf("%d%%", int(refuseAt*100)))
}

// look measures, and tells what is news.
func (g *Gauge) look() {
	used, err := g.used()
	if err != nil {
		g.zap.Warn("cannot find out how full the disk is", zap.Error(err))
		return
	}
	now := fine
	percent := int64(used * 100)
	switch {
	case used >= refuseAt:
		now = refusing
		g.full.Store(percent)
	case used >= warnAt:
		now = warned
		g.full.Store(0)
	default:
		g.full.Store(0)
	}
	g.mu.Lock()
	before := g.worst
	if now == fine || now > before {
		g.worst = now
	}
	g.mu.Unlock()
	switch {
	case now == fine && before != fine:
		g.zap.Info("the disk has room again", zap.Int64("used_percent", percent))
		g.tell("system.disk_recovered", events.Info, percent, false)
	case now > before:
		g.zap.Warn("the disk is getting full", zap.Int64("used_percent", percent), zap.Bool("sends_refused", now == refusing))
		severity := events.Warning
		if now == refusing {
			severity = events.Error
		}
		g.tell("system.disk_low", severity, percent, now == refusing)
	}
}

// tell appends an event of the broker itself, without waiting for it: who looks is about to send.
func (g *Gauge) tell(kind string, severity events.Severity, percent int64, refused bool) {
	g.store.Submit(context.Background(), store.LaneFill, 0, func(tx *store.Tx) error {
		_, err := g.log.Append(tx, events.Entry{
			Category: events.System, Type: kind, Severity: severity, Source: "system",
			Summary: fmt.Sprintf("%d %% of the disk is used", percent),
			Details: fmt.Sprintf(`{"used_percent":%d,"sends_refused":%t}`, percent, refused),
		})
		return err
	}, func(err error) {
		if err != nil {
			g.zap.Warn("cannot write the event", zap.String("type", kind), zap.Error(err))
		}
	})
}

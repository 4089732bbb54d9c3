// Package diskguard watches how full the file system of the data folder is. It refuses sends before the
// disk is full: the rest belongs to acknowledgements and deletions, which free space.
//
//	        85 %                    95 %
//	fine ──────────► warned ──────────────► sends are refused
//	  ▲   disk_low     │      disk_low         │
//	  └────────────────┴───── disk_recovered ──┘  (sends are accepted again below 95 %)
//
// The package does not poll. A send checks the disk usage, at most once every 10 s. Uploads also check
// it before they begin, and whenever they have written a quarter of the space below 95 %.
//
// # Reserve
//
// A disk may become full all the same, because another program writes to it. For this case, a file of
// 4 MiB, or a sixteenth of a small disk, keeps space free. The broker removes the file when a write
// fails because the disk is full, and at a start on a full disk. The reserve always counts as used. So
// sends are refused until the disk has space for it again; then the broker makes it again.
package diskguard

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

// A level is the state of the disk.
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
	dir   string
	spare *Reserve

	epoch   time.Time
	next    atomic.Int64 // nanoseconds since epoch when the next look is due
	full    atomic.Int64 // percent used while sends are refused, else 0
	written atomic.Int64 // bytes of uploads since the last look
	stretch atomic.Int64 // bytes of uploads after which the next look is due

	mu    sync.Mutex // guards the field below
	worst level      // that was reported since the disk was last fine
}

// New returns a gauge of the file system of a data folder with a reserve, and checks the usage. The
// function used returns the used share, from 0 to 1, as Used does.
func New(
	st *store.Store, log *events.Log, clock clockwork.Clock, logger *zap.Logger, used func() (float64, error),
	dir string, spare *Reserve,
) *Gauge {
	g := &Gauge{
		store: st, log: log, clock: clock, zap: logger, used: used, dir: dir, spare: spare, epoch: clock.Now(),
	}
	g.next.Store(int64(lookEvery))
	g.look()
	return g
}

// Check returns fault.Exhausted (DISK_NEARLY_FULL) while the disk is too full for sends. It checks the
// usage if the last check was 10 s ago or the reserve has been freed since.
func (g *Gauge) Check() error {
	now := int64(g.clock.Since(g.epoch))
	if g.spare.freed.CompareAndSwap(true, false) {
		g.look()
	}
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

// CheckUpload is Check for an upload of a number of bytes. It checks the usage each time, and also refuses
// an upload after which the disk would be too full.
func (g *Gauge) CheckUpload(bytes int64) error {
	g.look()
	if err := g.Check(); err != nil {
		return err
	}
	used, err := g.share()
	if err != nil {
		return nil //nolint:nilerr // look has logged it
	}
	return fits(g.dir, used, bytes)
}

// Written is Check for an upload that has written a number of bytes more. It checks the usage when
// uploads have written a quarter of the bytes that were free below 95 % at the last check.
func (g *Gauge) Written(bytes int64) error {
	if g.written.Add(bytes) >= g.stretch.Load() {
		g.look()
	}
	return g.Check()
}

// share returns the used share of the disk. The reserve counts as used even if it is missing.
func (g *Gauge) share() (float64, error) {
	used, err := g.used()
	if err != nil {
		return 0, err
	}
	bytes, share := g.spare.missing()
	switch {
	case bytes == 0:
		return used, nil
	case used+share < refuseAt && g.spare.keep(bytes):
		return used + share, nil
	}
	return max(refuseAt, used), nil
}

// look measures the usage, and reports a change of the level.
func (g *Gauge) look() {
	used, err := g.share()
	if err != nil {
		g.zap.Warn("cannot find out how full the disk is", zap.Error(err))
		return
	}
	g.written.Store(0)
	if u, f, err := bytesOf(g.dir); err == nil {
		g.stretch.Store(int64(max(0, refuseAt-used) * (u + f) / 4))
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
		g.report("system.disk_recovered", events.Info, percent, false)
	case now > before:
		g.zap.Warn("the disk is getting full", zap.Int64("used_percent", percent), zap.Bool("sends_refused", now == refusing))
		severity := events.Warning
		if now == refusing {
			severity = events.Error
		}
		g.report("system.disk_low", severity, percent, now == refusing)
	}
}

// report appends an event of the broker itself. It does not wait for the commit, because the caller
// of Check is about to send.
func (g *Gauge) report(kind string, severity events.Severity, percent int64, refused bool) {
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

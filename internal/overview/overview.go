package overview

import (
	"context"
	"sync"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/finding"
	"brokerd/internal/guard"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

const (
	leastPause = 100 * time.Millisecond // between two frames of a session
	refresh    = time.Second            // between two frames without a commit, and between two runs of Explain
	restFactor = 20                     // how many times as long as its last frame took a reader rests
)

// Sources describe a session.
type Sources interface {
	// Mail returns the mailboxes with the most in them, fullest first, and the sums over all
	// mailboxes.
	Mail(q store.Querier, session int64, most int) ([]Mailbox, work.Mailbox, error)
	// Agents returns registered agents, failed ones first, then by name, and counts all.
	Agents(q store.Querier, session int64, name string, most int) ([]Agent, Crew, error)
	// Coordination counts what the agents share.
	Coordination(q store.Querier, session int64) (work.Coordination, error)
	// Explain finds the worst problems.
	Explain(q store.Querier, about finding.Question) ([]finding.Finding, error)
}

// Options are what a Hub needs.
type Options struct {
	Store     *store.Store
	Events    *events.Log
	Clock     clockwork.Clock
	Log       *zap.Logger
	Directory *directory.Directory
	Sources   Sources
}

// A Hub has a reader for each session that clients watch. Its methods may be called concurrently.
type Hub struct {
	Options
	building chan struct{} // holds one token while a frame is built
	stopping chan struct{}
	stopOnce sync.Once
	running  sync.WaitGroup // of the readers

	mu      sync.Mutex // guards readers, and the watchers of each
	readers map[string]*reader
}

// New returns a hub that no client watches.
func New(o Options) *Hub {
	return &Hub{
		Options: o, building: make(chan struct{}, 1), stopping: make(chan struct{}), readers: map[string]*reader{},
	}
}

// Drain ends all calls of Watch and WatchAll with fault.Unavailable (SHUTTING_DOWN).
func (h *Hub) Drain() { h.stopOnce.Do(func() { close(h.stopping) }) }

// Stop is Drain, and waits until all readers have ended.
func (h *Hub) Stop() {
	h.Drain()
	h.running.Wait()
}

// Watch sends the newest frame of a session and each later one, until ctx ends (nil), send fails, or
// the session is closed: nil, after a frame that says so. With once, it ends after one frame. It leaves
// out the frames that are no longer the newest when send returns. Errors: fault.NotFound,
// fault.Unavailable (SHUTTING_DOWN).
func (h *Hub) Watch(ctx context.Context, session string, once bool, send func(*Frame) error) error {
	r := h.join(session)
	defer h.leave(r)
	var sent *Frame
	for {
		frame, changed, err := r.newest()
		switch {
		case frame != sent:
			sent = frame
			if err := send(frame); err != nil || once || frame.GetClosed() {
				return err
			}
			continue
		case err != nil:
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// WatchAll is Watch for all sessions that are open, without once also for those that are created
// later. It calls send for one frame at a time.
func (h *Hub) WatchAll(ctx context.Context, once bool, send func(*Frame) error) error {
	type end struct {
		session string
		err     error
	}
	var sending sync.Mutex
	inTurn := func(f *Frame) error {
		sending.Lock()
		defer sending.Unlock()
		return send(f)
	}
	ctx, cancel := context.WithCancel(ctx)
	watched, ends := map[string]bool{}, make(chan end)
	defer func() {
		cancel()
		for range watched {
			<-ends
		}
	}()
	for listed := false; ; listed = true {
		if !listed || !once {
			names, err := h.open(ctx)
			if err != nil {
				return err
			}
			for _, name := range names {
				if !watched[name] {
					watched[name] = true
					guard.Go(h.Log, func() error { return h.Watch(ctx, name, once, inTurn) },
						func(err error) { ends <- end{name, err} })
				}
			}
		}
		if once && len(watched) == 0 {
			return nil
		}
		var err error
		timer := h.Clock.NewTimer(refresh)
		select {
		case e := <-ends:
			delete(watched, e.session)
			err = e.err
		case <-timer.Chan():
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil || err != nil && fault.KindOf(err) != fault.NotFound { // it was deleted
			return err
		}
	}
}

// open returns the names of the sessions that are open.
func (h *Hub) open(ctx context.Context) (names []string, err error) {
	err = h.Store.Read(ctx, func(s *store.Snapshot) (err error) {
		names, err = h.Directory.Open(s)
		return err
	})
	return names, err
}

// join returns the reader of a session. It starts the reader for the first client.
func (h *Hub) join(session string) *reader {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.readers[session]
	if r == nil {
		ctx, cancel := context.WithCancel(context.Background())
		r = &reader{Hub: h, session: session, cancel: cancel, changed: make(chan struct{})}
		h.readers[session] = r
		h.running.Add(1)
		guard.Go(h.Log, func() error { return r.run(ctx) }, r.end)
	}
	r.watchers++
	return r
}

// leave ends the reader when its last client leaves.
func (h *Hub) leave(r *reader) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r.watchers--; r.watchers == 0 {
		r.cancel()
		h.forget(r)
	}
}

// forget makes the next client of the session start a new reader. The caller holds the mutex.
func (h *Hub) forget(r *reader) {
	if h.readers[r.session] == r {
		delete(h.readers, r.session)
	}
}

// A reader builds the frames of one session in its own goroutine, for all clients that watch it.
type reader struct {
	*Hub
	session  string
	cancel   context.CancelFunc
	watchers int // guarded by the hub's mutex
	past     past

	mu      sync.Mutex // guards the fields below
	frame   *Frame
	err     error         // with which the reader has ended
	changed chan struct{} // closed and replaced when one of them changes
}

// newest returns the newest frame, nil if there is none yet, a channel that is closed when there is a
// newer one, and the error with which the reader has ended.
func (r *reader) newest() (*Frame, <-chan struct{}, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.frame, r.changed, r.err
}

// run builds frames until ctx ends or the session is closed.
func (r *reader) run(ctx context.Context) error {
	var woken <-chan struct{}
	for {
		frame, took, err := r.build(ctx)
		if err != nil {
			return err
		}
		r.publish(frame)
		if frame.GetClosed() {
			return nil
		}
		if woken == nil {
			var leave func()
			woken, leave = r.Events.Changes(r.past.session)
			defer leave()
			continue // with the commits before Changes
		}
		pause := max(leastPause, restFactor*took)
		if err := r.wait(ctx, pause, nil); err != nil {
			return err
		}
		if err := r.wait(ctx, refresh-pause, woken); err != nil {
			return err
		}
	}
}

// wait waits for a time, or for a commit.
func (r *reader) wait(ctx context.Context, d time.Duration, woken <-chan struct{}) error {
	timer := r.Clock.NewTimer(max(d, 0))
	defer timer.Stop()
	select {
	case <-woken:
		return nil
	case <-timer.Chan():
		return nil
	case <-r.stopping:
		return fault.New(fault.Unavailable, "SHUTTING_DOWN", "the broker is shutting down: watch again")
	case <-ctx.Done():
		return ctx.Err()
	}
}

// build builds a frame, and returns how long that took, without Explain.
func (r *reader) build(ctx context.Context) (*Frame, time.Duration, error) {
	select {
	case r.building <- struct{}{}:
		defer func() { <-r.building }()
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	}
	if err := r.explain(ctx); err != nil {
		return nil, 0, err
	}
	began := r.Clock.Now()
	facts, err := r.read(ctx, began)
	if err != nil {
		return nil, 0, err
	}
	frame, err := newFrame(facts)
	return frame, r.Clock.Since(began), err
}

// publish makes a frame the newest one, unless nothing has changed.
func (r *reader) publish(f *Frame) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.frame != nil && r.frame.same(f) {
		return
	}
	r.frame = f
	close(r.changed)
	r.changed = make(chan struct{})
}

// end wakes the clients of a reader that has ended.
func (r *reader) end(err error) {
	defer r.running.Done()
	r.Hub.mu.Lock()
	r.forget(r)
	r.Hub.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
	close(r.changed)
	r.changed = make(chan struct{})
}

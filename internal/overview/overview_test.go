package overview_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/apptest"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/finding"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/overview"
	"brokerd/internal/schema"
	"brokerd/internal/sessions"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
	"brokerd/internal/work"
)

// A kit is a hub over sources that the test sets.
type kit struct {
	t        *testing.T
	ctx      context.Context
	clock    *restClock // nil with the real clock
	store    *store.Store
	log      *events.Log
	sessions *sessions.Registry
	hub      *overview.Hub

	mu    sync.Mutex // guards the fields below
	reads int        // calls of Mail
	err   error      // of Mail
}

func newKit(t *testing.T) *kit {
	t.Helper()
	clock := newRestClock()
	k := newKitWith(t, clock)
	k.clock = clock
	return k
}

func newKitWith(t *testing.T, clock clockwork.Clock) *kit {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	t.Cleanup(cancel)
	k := &kit{t: t, ctx: ctx}
	k.store = testkit.Store(t, t.TempDir(), clock,
		events.Migrations(), schema.Migrations(), idempotency.Migrations(), sessions.Migrations())
	k.log = events.New(k.store, clock, zap.NewNop())
	people := directory.New()
	k.sessions = sessions.New(k.store, k.log, people)
	k.hub = overview.New(overview.Options{
		Store: k.store, Events: k.log, Clock: clock, Log: zap.NewNop(), Directory: people, Sources: k,
	})
	t.Cleanup(k.hub.Stop)
	return k
}

// Mail implements overview.Sources: as many messages wait as change was called.
func (k *kit) Mail(q store.Querier, _ int64, _ int) ([]overview.Mailbox, work.Mailbox, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.reads++
	var mail work.Mailbox
	if err := q.QueryRow(`SELECT count(*) FROM events WHERE type = 'test.changed'`).Scan(&mail.Waiting); err != nil {
		return nil, mail, err
	}
	return nil, mail, k.err
}

// Agents implements overview.Sources.
func (k *kit) Agents(store.Querier, int64, string, int) ([]overview.Agent, overview.Crew, error) {
	return nil, overview.Crew{}, nil
}

// Coordination implements overview.Sources.
func (k *kit) Coordination(store.Querier, int64) (work.Coordination, error) {
	return work.Coordination{}, nil
}

// Explain implements overview.Sources.
func (k *kit) Explain(store.Querier, finding.Question) ([]finding.Finding, error) { return nil, nil }

// change lets one more message wait, in a commit of the session default.
func (k *kit) change() {
	k.t.Helper()
	err := k.store.Write(k.ctx, func(tx *store.Tx) error {
		_, err := k.log.Append(tx, events.Entry{Session: 1, Category: events.System, Type: "test.changed", Source: "system"})
		return err
	})
	apptest.NoError(k.t, err)
}

// rests returns the rests of readers; nil with the real clock.
func (k *kit) rests() <-chan time.Duration {
	if k.clock == nil {
		return nil
	}
	return k.clock.rests
}

// built waits until the sources have been read n times.
func (k *kit) built(n int) {
	k.t.Helper()
	for have := 0; have < n; {
		k.mu.Lock()
		have = k.reads
		k.mu.Unlock()
		if k.ctx.Err() != nil {
			k.t.Fatalf("%d frames were built, want %d", have, n)
		}
		runtime.Gosched()
	}
}

// A watcher is a client of a hub.
type watcher struct {
	*kit
	frames chan *overview.Frame // has no capacity: a frame that the test does not take blocks send
	ended  chan error
	leave  context.CancelFunc
}

// watch watches a session; all if the name is empty.
func (k *kit) watch(session string) *watcher {
	k.t.Helper()
	ctx, cancel := context.WithCancel(k.ctx)
	w := &watcher{kit: k, frames: make(chan *overview.Frame), ended: make(chan error, 1), leave: cancel}
	k.t.Cleanup(cancel)
	send := func(f *overview.Frame) error {
		select {
		case w.frames <- f:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	go func() {
		if session == "" {
			w.ended <- k.hub.WatchAll(ctx, false, send)
		} else {
			w.ended <- k.hub.Watch(ctx, session, false, send)
		}
	}()
	return w
}

// next returns the next frame.
func (w *watcher) next() *overview.Frame {
	w.t.Helper()
	for {
		select {
		case f := <-w.frames:
			return f
		case err := <-w.ended:
			w.t.Fatalf("the watch has ended: %v", err)
		case d := <-w.rests():
			w.clock.Advance(d)
		case <-w.ctx.Done():
			w.t.Fatal("no frame comes")
		}
	}
}

// waits takes frames until one says that so many messages wait.
func (w *watcher) waits(n int64) *overview.Frame {
	w.t.Helper()
	for {
		if f := w.next(); f.GetTotals().GetWaiting() == n {
			return f
		}
	}
}

// end returns the outcome of the watch.
func (w *watcher) end() error {
	w.t.Helper()
	for {
		select {
		case err := <-w.ended:
			return err
		case d := <-w.rests():
			w.clock.Advance(d)
		case <-w.ctx.Done():
			w.t.Fatal("the watch does not end")
		}
	}
}

func TestWatch_ClientsShareTheFramesOfOneReader(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	watchers := []*watcher{k.watch("default"), k.watch("default"), k.watch("default")}
	first := watchers[0].next()
	for _, w := range watchers[1:] {
		if f := w.next(); f != first {
			t.Errorf("another client has a frame of its own: %v and %v", f, first)
		}
	}
	built := map[time.Time]*overview.Frame{}
	for n := range int64(3) {
		k.change()
		for _, w := range watchers {
			f := w.waits(n + 1)
			at := f.GetTime().AsTime()
			if other := built[at]; other != nil && other != f {
				t.Errorf("another client has a frame of its own: %v and %v", f, other)
			}
			built[at] = f
			if f.GetRevision() <= first.GetRevision() || f.GetEvents()[0].GetType() != "test.changed" {
				t.Errorf("after a commit: %v", f)
			}
		}
		watchers[0].leave()
		watchers = watchers[1:]
	}
}

func TestWatch_FrameThatHasNotChangedIsNotSent(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	w := k.watch("default")
	first := w.next()
	for range 8 {
		select {
		case f := <-w.frames:
			t.Errorf("nothing has changed, and a frame comes: %v", f)
		case d := <-k.rests():
			k.clock.Advance(d)
		case <-k.ctx.Done():
			t.Fatal("no further frame is built")
		}
	}
	k.change()
	if f := w.next(); f.GetTotals().GetWaiting() != 1 || !f.GetTime().AsTime().After(first.GetTime().AsTime()) {
		t.Errorf("after a change: %v", f)
	}
}

func TestWatch_FramesOfManyCommitsAreOne(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	w := k.watch("default")
	select {
	case <-w.frames:
	case <-k.ctx.Done():
		t.Fatal("no frame comes")
	}
	k.built(2) // from here on, the reader rests until the clock advances
	for range 50 {
		k.change()
	}
	if f := w.next(); f.GetTotals().GetWaiting() != 50 || len(f.GetEvents()) != 40 {
		t.Errorf("after 50 commits: %v", f)
	}
}

func TestWatch_SlowClientMissesFramesAndDelaysNone(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	slow, fast := k.watch("default"), k.watch("default")
	slow.next()
	fast.next()
	k.change()
	fast.waits(1) // slow is about to send a frame, and does not get further
	for n := int64(2); n < 6; n++ {
		k.change()
		fast.waits(n)
	}
	f := slow.next()
	if f.GetTotals().GetWaiting() != 5 { // the one that it was about to send
		f = slow.next()
	}
	if got := f.GetTotals().GetWaiting(); got != 5 {
		t.Errorf("the slow client gets the frame %d, want the newest", got)
	}
}

func TestWatch_ReaderEndsWithItsLastClient(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	for n := range int64(2) { // a later client starts another
		one, two := k.watch("default"), k.watch("default")
		one.next()
		two.next()
		one.leave()
		if err := one.end(); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		k.change()
		two.waits(n + 1)
		two.leave()
		if err := two.end(); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		ended := make(chan struct{})
		go func() { k.hub.AwaitEnd(); close(ended) }()
		select {
		case <-ended:
		case <-k.ctx.Done():
			t.Fatal("the reader runs without a client")
		}
	}
}

func TestWatch_EndsAfterTheFrameOfAClosedSession(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	operator := identity.Caller{Access: identity.Operator, Session: "default"}
	apptest.NoError(t, apptest.Err(k.sessions.Create(k.ctx, operator, idempotency.Request{}, "web", sessions.Change{})))
	w := k.watch("web")
	if f := w.next(); f.GetSession() != "web" || f.GetClosed() {
		t.Errorf("of an open session: %v", f)
	}
	apptest.NoError(t, apptest.Err(k.sessions.Close(k.ctx, operator, idempotency.Request{}, "web", "done")))
	for !w.next().GetClosed() {
	}
	if err := w.end(); err != nil {
		t.Error(err)
	}
	again := k.watch("web")
	if f := again.next(); !f.GetClosed() {
		t.Errorf("of a closed session: %v", f)
	}
	if err := again.end(); err != nil {
		t.Error(err)
	}
	if err := k.watch("nowhere").end(); fault.KindOf(err) != fault.NotFound {
		t.Errorf("of a session that does not exist: %v", err)
	}
}

func TestWatchAll_HasTheFramesOfEveryOpenSession(t *testing.T) {
	t.Parallel()
	k := newKitWith(t, clockwork.NewRealClock())
	operator := identity.Caller{Access: identity.Operator, Session: "default"}
	w := k.watch("")
	if f := w.next(); f.GetSession() != "default" {
		t.Errorf("first frame: %v", f)
	}
	of := func(name string) *overview.Frame {
		t.Helper()
		for {
			if f := w.next(); f.GetSession() == name {
				return f
			}
		}
	}
	for i := range 2 {
		name := fmt.Sprintf("web-%d", i)
		if _, err := k.sessions.Create(k.ctx, operator, idempotency.Request{}, name, sessions.Change{}); err != nil {
			t.Fatal(err)
		}
		if of(name).GetClosed() {
			t.Errorf("%s is closed", name)
		}
		apptest.NoError(t, apptest.Err(k.sessions.Close(k.ctx, operator, idempotency.Request{}, name, "")))
		for !of(name).GetClosed() {
		}
	}
	k.change()
	for of("default").GetTotals().GetWaiting() != 1 {
	}
	w.leave()
	if err := w.end(); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	k.hub.AwaitEnd()
}

func TestWatch_EndsWithTheErrorOfItsReader(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	w, all := k.watch("default"), k.watch("")
	w.next()
	all.next()
	failure := errors.New("failure")
	k.mu.Lock()
	k.err = failure
	k.mu.Unlock()
	k.change()
	for _, w := range []*watcher{w, all} {
		if err := w.end(); !errors.Is(err, failure) {
			t.Errorf("the watch ends with %v", err)
		}
	}
}

func TestDrain_EndsEveryWatch(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	w, all := k.watch("default"), k.watch("")
	w.next()
	all.next()
	k.hub.Stop()
	for _, w := range []*watcher{w, all, k.watch("default")} {
		for ended := false; !ended; {
			select {
			case <-w.frames: // a new client gets one
			case err := <-w.ended:
				var e *fault.Error
				if ended = true; !errors.As(err, &e) || e.Reason != "SHUTTING_DOWN" {
					t.Errorf("the watch ends with %v", err)
				}
			case <-k.ctx.Done():
				t.Fatal("the watch does not end")
			}
		}
	}
}

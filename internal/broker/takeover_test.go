package broker

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/agents"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/schema"
	"brokerd/internal/sessions"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

// freeForAll allows every send, and lets all work through.
type freeForAll struct {
	Admission
	Directives
	Advisor
	Gates
}

func (freeForAll) Judge(*directory.Session, *Draft) ([]string, error) { return nil, nil }

func (freeForAll) Warnings(*store.Tx, *Actor, *Draft, Outcome) ([]string, error) { return nil, nil }

func (freeForAll) Pass(*store.Tx, int64) (Pass, error) { return Everything, nil }

// A queuedContext tells when a call begins to wait for the writer.
type queuedContext struct {
	context.Context
	once   *sync.Once
	queued chan struct{}
}

func (c queuedContext) Done() <-chan struct{} {
	c.once.Do(func() { close(c.queued) })
	return c.Context.Done()
}

// One transaction hands a message to a consumer and then lets another stream of the consumer take
// over.
func TestOpenClaims_TakeoverGetsAloneWhatItsTransactionHandedToTheOldStream(t *testing.T) {
	t.Parallel()
	ctx, clock := t.Context(), clockwork.NewFakeClock() // a batch lasts as long as there is work
	st, err := store.Open(ctx, store.Options{Dir: t.TempDir(), Sync: store.SyncNormal, Clock: clock,
		Migrations: slices.Concat(events.Migrations(), idempotency.Migrations(), sessions.Migrations(), agents.Migrations(),
			schema.Migrations())})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	}()
	testkit.Agents(t, st, "", "a", "b")
	b := New(st, events.New(st, clock, zap.NewNop()), directory.New(), clock, zap.NewNop())
	free := freeForAll{}
	b.UseAdmission(free, free, free)
	b.UseGates(free, nil)
	a := identity.Caller{Session: "default", Agent: "a"}
	wish := Wish{Consumer: "c", Max: 10, MaxBytes: 1 << 20, ClaimFor: time.Minute}
	old, _, err := b.Streams.Open(ctx, a, wish)
	if err != nil {
		t.Fatal(err)
	}
	// The batch of this write ends with the first dispatch to the stream: from then on, sends hand
	// messages over.
	if err := st.Write(ctx, func(*store.Tx) error { return nil }); err != nil {
		t.Fatal(err)
	}
	var resumed []Claim
	opened := make(chan error, 1)
	sent := make(chan []Outcome, 1)
	release := make(chan struct{})
	st.Submit(ctx, store.LaneFill, 0, func(*store.Tx) error { <-release; return nil }, func(error) {})
	draft := Draft{Target: Target{ToAgent, "a"}, Type: "task", Priority: 5, Content: []byte{}}
	b.Submit(ctx, identity.Caller{Session: "default", Agent: "b"}, Batch{Drafts: []Draft{draft}}, func(o []Outcome) { sent <- o })
	st.Submit(ctx, store.LaneFill, 0, func(*store.Tx) error {
		queued := queuedContext{ctx, &sync.Once{}, make(chan struct{})}
		go func() {
			var err error
			_, resumed, err = b.Streams.Open(queued, a, wish)
			opened <- err
		}()
		<-queued.queued
		return nil
	}, func(error) {})
	close(release)
	if err := <-opened; err != nil {
		t.Fatal(err)
	}
	if o := <-sent; o[0].Fault != nil || len(resumed) != 1 || resumed[0].Revision != o[0].Revision {
		t.Fatalf("%v was sent, and the new stream has %v", o[0], resumed)
	}
	frame, done, err := old.Next(ctx)
	if err != nil || !done || len(frame.Deliver) > 0 {
		t.Errorf("the old stream says %v, done %v: %v", frame, done, err)
	}
	if old.Ended() == nil {
		t.Error("the old stream has not ended")
	}
}

package locks_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/agents"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/locks"
	"brokerd/internal/sessions"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

// What the writer remembers must equal the rows whichever functions are dropped.

// A dropper fails every n-th function that has changed something, while it is on.
type dropper struct {
	every int64
	on    atomic.Bool
	seen  atomic.Int64
	lost  atomic.Int64
}

func (d *dropper) drop() error {
	if !d.on.Load() || d.seen.Add(1)%d.every != 0 {
		return nil
	}
	d.lost.Add(1)
	return fault.New(fault.Unavailable, "DROPPED", "a test has dropped the function")
}

// A bench has lock services over gRPC, and the table and the store behind them.
type bench struct {
	t        *testing.T
	clock    apptest.WatchedClock
	store    *store.Store
	table    *locks.Table
	conn     *grpc.ClientConn
	handlers sync.WaitGroup // that ask for something
}

// A counted service counts its handlers that ask for something.
type counted struct {
	*locks.Service
	handlers *sync.WaitGroup
}

// Lock implements the RPC.
func (c counted) Lock(stream pb.LockService_LockServer) error {
	c.handlers.Add(1)
	defer c.handlers.Done()
	return c.Service.Lock(stream)
}

// AcquireLocks implements the RPC.
func (c counted) AcquireLocks(ctx context.Context, r *pb.AcquireLocksRequest) (*pb.AcquireLocksResponse, error) {
	c.handlers.Add(1)
	defer c.handlers.Done()
	return c.Service.AcquireLocks(ctx, r)
}

// countedTokens is counted for tokens.
type countedTokens struct {
	*locks.TokenService
	handlers *sync.WaitGroup
}

// AcquireToken implements the RPC.
func (c countedTokens) AcquireToken(ctx context.Context, r *pb.AcquireTokenRequest) (*pb.AcquireTokenResponse, error) {
	c.handlers.Add(1)
	defer c.handlers.Done()
	return c.TokenService.AcquireToken(ctx, r)
}

func newBench(t *testing.T, d *dropper) *bench {
	t.Helper()
	clock := apptest.NewWatchedClock()
	st, err := store.Open(t.Context(), store.Options{
		Dir: t.TempDir(), Sync: store.SyncNormal, Clock: clock, Drop: d.drop,
		Migrations: slices.Concat(idempotency.Migrations(), sessions.Migrations(), agents.Migrations(), events.Migrations(),
			locks.Migrations()),
	})
	apptest.NoError(t, err)
	t.Cleanup(func() { apptest.NoError(t, st.Close()) })
	testkit.Agents(t, st, "builder", names...)
	b := &bench{t: t, clock: clock, store: st}
	b.table = locks.New(st, events.New(st, clock, zap.NewNop()), directory.New(), clock, zap.NewNop())
	apptest.NoError(t, b.table.Start(t.Context()))
	t.Cleanup(b.table.Stop)
	b.conn, _ = testkit.Serve(t, func(r grpc.ServiceRegistrar) {
		pb.RegisterLockServiceServer(r, counted{locks.NewService(b.table, itemError), &b.handlers})
		pb.RegisterTokenServiceServer(r, countedTokens{locks.NewTokenService(b.table), &b.handlers})
	})
	return b
}

func itemError(_ context.Context, err error) *pb.ItemError {
	return &pb.ItemError{Code: int32(codes.Unknown), Message: err.Error()}
}

// agent returns the operator, or an agent.
func (b *bench) agent(name string) *agent {
	who := identity.Caller{Access: identity.Agent, Session: "default", Agent: name}
	if name == "" {
		who.Access = identity.Operator
	}
	w := &daemon{&apptest.Broker{TB: b.t, Clock: b.clock.FakeClock, Waits: b.clock.Waits}}
	return &agent{apptest.NewActor(b.t, testkit.Conn(b.conn, who), name), w}
}

// compare compares memory with the rows, and these with what always holds.
func (b *bench) compare(after string) {
	b.t.Helper()
	var problems []string
	apptest.NoError(b.t, b.store.Write(context.Background(), func(tx *store.Tx) (err error) {
		problems, err = b.table.Compare(tx, 1)
		for _, check := range locks.Checks(10) {
			if err == nil {
				var more []string
				more, err = check(tx)
				problems = append(problems, more...)
			}
		}
		return err
	}))
	if len(problems) > 0 {
		b.t.Fatalf("after %s: %s", after, strings.Join(problems, "\n"))
	}
}

// remembered returns the sizes of the writer's memory.
func (b *bench) remembered() (sizes map[string]int) {
	b.t.Helper()
	apptest.NoError(b.t, b.store.Write(context.Background(), func(*store.Tx) error {
		sizes = b.table.Remembered()
		return nil
	}))
	return sizes
}

// unended returns how many answers are still to come.
func (b *bench) unended() (n int32) {
	b.t.Helper()
	apptest.NoError(b.t, b.store.Write(context.Background(), func(*store.Tx) error {
		n = b.table.Unended()
		return nil
	}))
	return n
}

func TestMemory_EqualsTheRowsWhicheverFunctionsAreDropped(t *testing.T) {
	t.Parallel()
	for _, every := range []int64{2, 3, 5, 7} {
		t.Run(fmt.Sprint("every ", every), func(t *testing.T) {
			t.Parallel()
			d := &dropper{every: every}
			b := newBench(t, d)
			m := &melee{
				t: t, rnd: rand.New(rand.NewPCG(uint64(every), 1)), busy: true, last: map[string]*pb.AcquireLocksRequest{},
				o: b.agent(""), clock: b.clock.FakeClock, waits: b.clock.Waits,
				end: func(a *agent) error {
					err := b.store.Write(a.Ctx, func(tx *store.Tx) error {
						return apptest.Err(b.table.AgentEnded(tx, directory.Agent{Session: 1, Name: a.Name}))
					})
					if fault.KindOf(err) == fault.Unavailable {
						return nil
					}
					return err
				},
			}
			for _, name := range names {
				m.agents = append(m.agents, b.agent(name))
			}
			d.on.Store(true)
			m.run(300, b.compare)
			m.breakOff()
			b.handlers.Wait()
			b.compare("all calls have ended")
			want(t, "answers to come", b.unended(), 0)
			m.busy = false // the calls that wait in the end wait until they are answered
			m.run(100, b.compare)
			d.on.Store(false)
			if d.lost.Load() < 10 {
				t.Errorf("%d functions were dropped", d.lost.Load())
			}
			m.finish()
			b.compare("the end")
			for what, n := range b.remembered() {
				want(t, what, n, 0)
			}
		})
	}
}

// A daemon that starts loads its memory from the rows. So the answers before and after must be the same.
func TestMemory_OfADaemonEqualsTheRowsWhicheverFunctionsAreDropped(t *testing.T) {
	t.Parallel()
	for _, every := range []int64{2, 3, 5, 7} {
		t.Run(fmt.Sprint("every ", every), func(t *testing.T) {
			t.Parallel()
			d := &dropper{every: every}
			w := newDaemon(t, apptest.With(func(c *app.Config) { c.Options = func(o *store.Options) { o.Drop = d.drop } }))
			m := &melee{
				t: t, rnd: rand.New(rand.NewPCG(uint64(every), 2)), last: map[string]*pb.AcquireLocksRequest{},
				o: w.operator(), clock: w.Clock, waits: w.Waits,
				end: func(a *agent) error {
					err := apptest.Err(a.DeregisterAgent(a.Ctx, &pb.DeregisterAgentRequest{}))
					on := d.on.Swap(false)
					defer d.on.Store(on)
					if err == nil {
						err = register(a)
					}
					return err
				},
			}
			for _, name := range names {
				a := w.in("default", name)
				apptest.NoError(t, register(a))
				m.agents = append(m.agents, a)
			}
			for range 2 {
				d.on.Store(true)
				m.run(150, func(string) {})
				d.on.Store(false)
				m.breakOff()
				before := m.answers()
				w.Restart()
				if diff := cmp.Diff(before, m.answers(), protocmp.Transform()); diff != "" {
					t.Fatalf("memory and rows differ: (-before the restart +after)\n%s", diff)
				}
			}
			m.finish()
		})
	}
}

// A call whose wait has ended must not stay on the list when the writer cannot take it off at once.
func TestWait_CallThatCannotLeaveIsForgottenWhenItsTicketWouldLapse(t *testing.T) {
	t.Parallel()
	for _, kept := range []bool{false, true} {
		t.Run(fmt.Sprint("kept ", kept), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, &dropper{})
			holder, waiter := b.agent("a"), b.agent("b")
			holder.lock("d/")
			ctx, breakOff := context.WithCancel(waiter.Ctx)
			done := waiter.waitIn(ctx, &pb.AcquireLocksRequest{Paths: []string{"d/x"}, KeepTicket: kept})
			damage := func(name string) {
				t.Helper()
				apptest.NoError(t, b.store.Write(t.Context(), func(tx *store.Tx) error {
					tx.Exec(`UPDATE lock_paths SET name = ?`, name)
					return nil
				}))
			}
			damage("../x") // no function can tell what is in the way
			breakOff()
			<-done
			b.handlers.Wait()
			want(t, "calls on the list", b.remembered()["calls"], 1)
			damage("")
			b.clock.Advance(10 * time.Second)
			for waiter.Ctx.Err() == nil && b.remembered()["calls"] > 0 {
			}
			apptest.NoError(t, waiter.Ctx.Err())
			tickets := 0
			if kept {
				tickets = 1
			}
			want(t, "tickets", len(holder.list(&pb.ListLocksRequest{Waiting: true}).Tickets), tickets)
			b.compare("the call was forgotten")
		})
	}
}

// Of two functions of one batch, the first leaves the front of the queue to an alarm, and the second is the alarm for
// what was left before.
func TestSettle_WhatIsLeftInTheBatchOfAnAlarmIsNotForgotten(t *testing.T) {
	t.Parallel()
	clock := clockwork.NewFakeClock()
	st := newStore(t, clock)
	// It is not started, so its alarms do not ring.
	table := locks.New(st, events.New(st, clock, zap.NewNop()), directory.New(), clock, zap.NewNop())
	acquire := func(agent string, outcome locks.Outcome, paths ...string) {
		t.Helper()
		a, err := table.Acquire(t.Context(), agentOf(agent), idempotency.Request{},
			locks.Wish{Paths: paths, Mode: locks.Exclusive, MaxHold: time.Hour, Keep: true})
		apptest.NoError(t, err)
		want(t, "outcome", a.Outcome, outcome)
	}
	many := files("d/", 1000, 0) // to release them is as much as one function does
	acquire("a", locks.Granted, many...)
	acquire("b", locks.Queued, many[0])
	apptest.NoError(t, st.Write(t.Context(), func(tx *store.Tx) error { return table.SettleLater(tx, 1, 1<<40) }))
	apptest.NoError(t, st.Write(t.Context(), func(tx *store.Tx) error {
		if _, err := table.AgentEnded(tx, directory.Agent{Session: 1, Name: "a"}); err != nil {
			return err
		}
		return table.SettleFurther(tx, 1)
	}))
	apptest.NoError(t, st.Read(t.Context(), func(q *store.Snapshot) error {
		for _, check := range locks.Checks(10) {
			problems, err := check(q)
			if err != nil {
				return err
			}
			wantList(t, "problems", problems)
		}
		return nil
	}))
}

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
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
	"brokerd/internal/caller"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/locks"
	"brokerd/internal/once"
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
	clock    watchedClock
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
	clock := watchedClock{clockwork.NewFakeClockAt(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)), make(chan struct{}, 100)}
	st, err := store.Open(t.Context(), store.Options{
		Dir: t.TempDir(), Sync: store.SyncNormal, Clock: clock, Drop: d.drop,
		Migrations: slices.Concat(once.Migrations(), sessions.Migrations(), events.Migrations(), locks.Migrations()),
	})
	must(t, err)
	t.Cleanup(func() { must(t, st.Close()) })
	b := &bench{t: t, clock: clock, store: st}
	b.table = locks.New(st, events.New(st, clock, zap.NewNop()), crew{}, clock, zap.NewNop())
	must(t, b.table.Start(t.Context()))
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

// crew is a directory of agents that are all builders.
type crew struct{ everywhere }

func (crew) Acting(_ store.Querier, _ int64, c caller.Caller) (locks.Agent, error) {
	if c.Agent == "" {
		return locks.Agent{Name: caller.System}, nil
	}
	return locks.Agent{Name: c.Agent, Role: "builder"}, nil
}

func (crew) Find(_ store.Querier, _ int64, name string) (locks.Agent, bool, error) {
	return locks.Agent{Name: name, Role: "builder"}, true, nil
}

// agent returns the operator, or an agent.
func (b *bench) agent(name string) *agent {
	who := caller.Caller{Access: caller.Agent, Session: "default", Agent: name}
	if name == "" {
		who.Access = caller.Operator
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	b.t.Cleanup(cancel)
	return &agent{
		LockServiceClient: pb.NewLockServiceClient(b.conn), w: &daemon{Clock: b.clock, t: b.t}, t: b.t, name: name, ctx: testkit.As(ctx, who),
	}
}

// compare compares memory with the rows, and these with what always holds.
func (b *bench) compare(after string) {
	b.t.Helper()
	var problems []string
	must(b.t, b.store.Write(context.Background(), func(tx *store.Tx) (err error) {
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
	must(b.t, b.store.Write(context.Background(), func(*store.Tx) error {
		sizes = b.table.Remembered()
		return nil
	}))
	return sizes
}

// unended returns how many answers are still to come.
func (b *bench) unended() (n int32) {
	b.t.Helper()
	must(b.t, b.store.Write(context.Background(), func(*store.Tx) error {
		n = b.table.Unended()
		return nil
	}))
	return n
}

// A melee is agents that acquire and release at random.
type melee struct {
	t       *testing.T
	rnd     *rand.Rand
	agents  []*agent
	tokens  []pb.TokenServiceClient // of each agent
	o       *agent
	revoker pb.TokenServiceClient
	clock   watchedClock
	end     func(*agent) error                 // ends an agent and lets it begin again
	busy    bool                               // takes steps whose consequences come later
	last    map[string]*pb.AcquireLocksRequest // by agent
	calls   []*waitingCall
	fences  []int64
	tickets []int64
}

// A waitingCall is a call that may wait.
type waitingCall struct {
	cancel context.CancelFunc
	done   chan error
}

var scopes = []string{"x", "y"}

func (m *melee) some(list []string) []string {
	out := []string{}
	for range 1 + m.rnd.IntN(2) {
		out = append(out, list[m.rnd.IntN(len(list))])
	}
	return out
}

func (m *melee) one(list []int64) int64 {
	if len(list) == 0 {
		return 1
	}
	return list[max(0, len(list)-1-m.rnd.IntN(8))]
}

func (m *melee) mode() pb.LockMode {
	if m.rnd.IntN(3) == 0 {
		return pb.LockMode_LOCK_MODE_SHARED
	}
	return pb.LockMode_LOCK_MODE_EXCLUSIVE
}

func (m *melee) holder() string { return []string{"", "", "h"}[m.rnd.IntN(3)] }

func (m *melee) note(fence, ticket int64) {
	if fence != 0 {
		m.fences = append(m.fences, fence)
	}
	if ticket != 0 {
		m.tickets = append(m.tickets, ticket)
	}
}

// step does something, and returns what.
func (m *melee) step() (what string, err error) {
	i := m.rnd.IntN(len(m.agents))
	a, tokens := m.agents[i], m.tokens[i]
	scope := scopes[m.rnd.IntN(len(scopes))]
	switch n := m.rnd.IntN(100); {
	case n < 25:
		r := m.wish()
		if last := m.last[a.name]; last != nil && n < 10 {
			r = last // again, under the same request id
		}
		m.last[a.name] = r
		out, err := a.AcquireLocks(a.ctx, r)
		m.note(out.GetFence(), out.GetTicket())
		return "acquire", err
	case n < 40:
		m.start(func(ctx context.Context) error {
			r := m.wish()
			r.Wait, r.DryRun = durationpb.New(longWait), false
			return drop(a.AcquireLocks(ctx, r))
		}, a)
		return "wait", nil
	case n < 45 && m.busy:
		return "deaf stream", m.deafStream(a)
	case n < 50:
		out, err := tokens.AcquireToken(a.ctx, &pb.AcquireTokenRequest{
			Type: "review", Scope: scope, Holder: m.holder(), KeepTicket: m.rnd.IntN(2) == 0,
		})
		m.note(out.GetFence(), out.GetTicket())
		return "acquire token", err
	case n < 55:
		holder := m.holder()
		m.start(func(ctx context.Context) error {
			return drop(tokens.AcquireToken(ctx, &pb.AcquireTokenRequest{
				Type: "review", Scope: scope, Holder: holder, Wait: durationpb.New(longWait),
			}))
		}, a)
		return "wait for token", nil
	case n < 65:
		return "release", drop(a.ReleaseLocks(a.ctx, &pb.ReleaseLocksRequest{
			Fences: []int64{m.one(m.fences), m.one(m.fences)}, Tickets: []int64{m.one(m.tickets)},
		}))
	case n < 70:
		return "release paths", drop(a.ReleaseLocks(a.ctx, &pb.ReleaseLocksRequest{
			Paths: m.some(pool), All: m.rnd.IntN(2) == 0, Holder: m.holder(),
		}))
	case n < 75:
		return "release token", drop(tokens.ReleaseToken(a.ctx, &pb.ReleaseTokenRequest{Type: "review", Scope: scope, Holder: m.holder()}))
	case n < 80:
		r := &pb.PassTokenRequest{Type: "review", Scope: scope, Holder: m.holder(), To: &pb.PassTokenRequest_Role{Role: "builder"}}
		if m.rnd.IntN(2) == 0 {
			r.To = &pb.PassTokenRequest_Agent{Agent: m.agents[m.rnd.IntN(len(m.agents))].name}
		}
		return "pass token", drop(tokens.PassToken(a.ctx, r))
	case n < 83:
		return "revoke token", drop(m.revoker.RevokeToken(m.o.ctx, &pb.RevokeTokenRequest{Type: "review", Scope: scope, Reason: "test"}))
	case n < 87:
		return "extend", drop(a.ExtendLocks(a.ctx, &pb.ExtendLocksRequest{Fences: []int64{m.one(m.fences)}}))
	case n < 90:
		return "force", drop(m.o.ForceReleaseLocks(m.o.ctx, &pb.ForceReleaseLocksRequest{Paths: m.some(pool), Reason: "test"}))
	case n < 92:
		return "end", m.end(a)
	case n < 96:
		if len(m.calls) > 0 {
			m.calls[m.rnd.IntN(len(m.calls))].cancel()
		}
		return "cancel", nil
	}
	if m.busy {
		m.clock.Advance(time.Duration(1+m.rnd.IntN(8)) * time.Second)
	}
	return "time", nil
}

func (m *melee) wish() *pb.AcquireLocksRequest {
	r := &pb.AcquireLocksRequest{
		Paths: m.some(pool), Mode: m.mode(), Holder: m.holder(), KeepTicket: m.rnd.IntN(2) == 0, DryRun: m.rnd.IntN(8) == 0,
	}
	if m.rnd.IntN(2) == 0 {
		r.RequestId = newUUID()
	}
	return r
}

// start starts a call, and returns once it waits or has ended.
func (m *melee) start(do func(context.Context) error, a *agent) {
	for len(m.clock.waits) > 0 {
		<-m.clock.waits
	}
	ctx, cancel := context.WithCancel(a.ctx)
	c := &waitingCall{cancel, make(chan error, 1)}
	m.calls = append(m.calls, c)
	ended := make(chan struct{})
	go func() {
		c.done <- do(ctx)
		close(ended)
	}()
	select {
	case <-m.clock.waits:
	case <-ended:
	}
}

// deafStream asks twice in a stream, and breaks it off after the first answer.
func (m *melee) deafStream(a *agent) error {
	ctx, cancel := context.WithCancel(a.ctx)
	defer cancel()
	stream, err := a.Lock(ctx)
	if err != nil {
		return err
	}
	for n := range int64(2) {
		r := m.wish()
		if n == 1 {
			r.Wait, r.DryRun = durationpb.New(longWait), false
		}
		if err := stream.Send(&pb.LockRequest{Number: n + 1, Request: &pb.LockRequest_Acquire{Acquire: r}}); err != nil {
			return err
		}
	}
	return drop(stream.Recv())
}

// fine reports whether an error is a refusal, or that of a dropped function.
func fine(err error) bool {
	switch status.Code(err) {
	case codes.OK, codes.FailedPrecondition, codes.Aborted, codes.ResourceExhausted, codes.NotFound, codes.Canceled:
		return true
	}
	return testkit.Reason(err) == "DROPPED"
}

// run does many steps.
func (m *melee) run(steps int, after func(what string)) {
	m.t.Helper()
	for range steps {
		what, err := m.step()
		if !fine(err) {
			m.t.Fatalf("%s: %v", what, err)
		}
		after(what)
	}
}

// finish takes every grant away until no request waits, and returns once all calls have ended.
func (m *melee) finish() {
	m.t.Helper()
	for round := 0; ; round++ {
		list := m.o.list(&pb.ListLocksRequest{PageSize: 1000})
		held, err := m.revoker.ListTokens(m.o.ctx, &pb.ListTokensRequest{PageSize: 1000})
		must(m.t, err)
		var fences []int64
		for _, l := range list.Locks {
			fences = append(fences, l.Fence)
		}
		if len(fences) > 0 {
			must(m.t, drop(m.o.ForceReleaseLocks(m.o.ctx, &pb.ForceReleaseLocksRequest{Revisions: fences, Reason: "test"})))
		}
		waiting := len(list.Tickets)
		for _, k := range held.Tokens {
			waiting += int(k.Waiting)
			if k.Fence != 0 {
				fences = append(fences, k.Fence)
				must(m.t, drop(m.revoker.RevokeToken(m.o.ctx, &pb.RevokeTokenRequest{Type: k.Type, Scope: k.Scope, Reason: "test"})))
			}
		}
		if len(fences) == 0 && waiting == 0 {
			break
		}
		if len(fences) == 0 || round == 1000 {
			m.t.Fatalf("%d requests wait for ever: %v", waiting, list)
		}
	}
	m.await()
}

// breakOff breaks off the calls that wait.
func (m *melee) breakOff() {
	m.t.Helper()
	for _, c := range m.calls {
		c.cancel()
	}
	m.await()
}

// await returns once all calls have ended.
func (m *melee) await() {
	m.t.Helper()
	for _, c := range m.calls {
		if err := <-c.done; !fine(err) {
			m.t.Errorf("a call that waited: %v", err)
		}
		c.cancel()
	}
	m.calls = nil
}

func TestMemory_EqualsTheRowsWhicheverFunctionsAreDropped(t *testing.T) {
	t.Parallel()
	for _, every := range []int64{2, 3, 5, 7} {
		t.Run(fmt.Sprint("every ", every), func(t *testing.T) {
			t.Parallel()
			d := &dropper{every: every}
			b := newBench(t, d)
			m := &melee{
				t: t, rnd: rand.New(rand.NewPCG(uint64(every), 1)), busy: true, last: map[string]*pb.AcquireLocksRequest{}, o: b.agent(""), revoker: pb.NewTokenServiceClient(b.conn), clock: b.clock,
				end: func(a *agent) error {
					err := b.store.Write(a.ctx, func(tx *store.Tx) error { return drop(b.table.AgentEnded(tx, 1, a.name, locks.Failed)) })
					if fault.KindOf(err) == fault.Unavailable {
						return nil
					}
					return err
				},
			}
			for _, name := range names {
				m.agents, m.tokens = append(m.agents, b.agent(name)), append(m.tokens, m.revoker)
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
			if diff := cmp.Diff(map[string]int{"places": 0, "owners": 0, "left": 0, "calls": 0, "answers": 0}, b.remembered()); diff != "" {
				t.Error(diff)
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
			w := newDaemon(t, apptest.With(func(c *app.Config) { c.Store = func(o *store.Options) { o.Drop = d.drop } }))
			m := &melee{
				t: t, rnd: rand.New(rand.NewPCG(uint64(every), 2)), last: map[string]*pb.AcquireLocksRequest{}, o: w.operator(), revoker: pb.NewTokenServiceClient(w.Operator()), clock: w.Clock,
				end: func(a *agent) error {
					err := drop(a.registry.DeregisterAgent(a.ctx, &pb.DeregisterAgentRequest{}))
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
				must(t, register(a))
				m.agents, m.tokens = append(m.agents, a), append(m.tokens, pb.NewTokenServiceClient(w.In("default", name)))
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

func register(a *agent) error {
	return drop(a.registry.RegisterAgent(a.ctx, &pb.RegisterAgentRequest{Role: "builder", Lease: durationpb.New(apptest.LongLease)}))
}

// answers returns how requests of every agent for each path would stand.
func (m *melee) answers() map[string]*pb.AcquireLocksResponse {
	m.t.Helper()
	all := map[string]*pb.AcquireLocksResponse{}
	for _, a := range m.agents {
		for _, path := range slices.Concat(pool, []string{"d/e/f/g", "none"}) {
			out := a.acquire(&pb.AcquireLocksRequest{Paths: []string{path}, DryRun: true})
			out.HeldUntil, out.AlreadyHeld = nil, false // a restart gives time back; a lost answer is noted later
			for _, o := range out.Obstacles {
				o.HeldUntil = nil
			}
			all[a.name+" "+path] = out
		}
	}
	return all
}

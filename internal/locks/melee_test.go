package locks_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

// A melee is agents that acquire and release at random.
type melee struct {
	t       *testing.T
	rnd     *rand.Rand
	agents  []*agent
	o       *agent
	clock   *clockwork.FakeClock
	waits   <-chan struct{}
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
	a := m.agents[i]
	scope := scopes[m.rnd.IntN(len(scopes))]
	switch n := m.rnd.IntN(100); {
	case n < 25:
		r := m.wish()
		if last := m.last[a.Name]; last != nil && n < 10 {
			r = last // again, under the same request id
		}
		m.last[a.Name] = r
		out, err := a.AcquireLocks(a.Ctx, r)
		m.note(out.GetFence(), out.GetTicket())
		return "acquire", err
	case n < 40:
		r := m.wish()
		r.Wait, r.DryRun = durationpb.New(apptest.LongWait), false
		m.start(func(ctx context.Context) error { return apptest.Err(a.AcquireLocks(ctx, r)) }, a)
		return "wait", nil
	case n < 45 && m.busy:
		return "deaf stream", m.deafStream(a)
	case n < 50:
		out, err := a.AcquireToken(a.Ctx, &pb.AcquireTokenRequest{
			Type: "review", Scope: scope, Holder: m.holder(), KeepTicket: m.rnd.IntN(2) == 0,
		})
		m.note(out.GetFence(), out.GetTicket())
		return "acquire token", err
	case n < 55:
		holder := m.holder()
		m.start(func(ctx context.Context) error {
			return apptest.Err(a.AcquireToken(ctx, &pb.AcquireTokenRequest{
				Type: "review", Scope: scope, Holder: holder, Wait: durationpb.New(apptest.LongWait),
			}))
		}, a)
		return "wait for token", nil
	case n < 65:
		return "release", apptest.Err(a.ReleaseLocks(a.Ctx, &pb.ReleaseLocksRequest{
			Fences: []int64{m.one(m.fences), m.one(m.fences)}, Tickets: []int64{m.one(m.tickets)},
		}))
	case n < 70:
		return "release paths", apptest.Err(a.ReleaseLocks(a.Ctx, &pb.ReleaseLocksRequest{
			Paths: m.some(pool), All: m.rnd.IntN(2) == 0, Holder: m.holder(),
		}))
	case n < 75:
		r := &pb.ReleaseTokenRequest{Type: "review", Scope: scope, Holder: m.holder()}
		return "release token", apptest.Err(a.ReleaseToken(a.Ctx, r))
	case n < 80:
		r := &pb.PassTokenRequest{Type: "review", Scope: scope, Holder: m.holder()}
		r.To = &pb.PassTokenRequest_Role{Role: "builder"}
		if m.rnd.IntN(2) == 0 {
			r.To = &pb.PassTokenRequest_Agent{Agent: m.agents[m.rnd.IntN(len(m.agents))].Name}
		}
		return "pass token", apptest.Err(a.PassToken(a.Ctx, r))
	case n < 83:
		r := &pb.RevokeTokenRequest{Type: "review", Scope: scope, Reason: "test"}
		return "revoke token", apptest.Err(m.o.RevokeToken(m.o.Ctx, r))
	case n < 87:
		return "extend", apptest.Err(a.ExtendLocks(a.Ctx, &pb.ExtendLocksRequest{Fences: []int64{m.one(m.fences)}}))
	case n < 90:
		r := &pb.ForceReleaseLocksRequest{Paths: m.some(pool), Reason: "test"}
		return "force", apptest.Err(m.o.ForceReleaseLocks(m.o.Ctx, r))
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
	for len(m.waits) > 0 {
		<-m.waits
	}
	ctx, cancel := context.WithCancel(a.Ctx)
	c := &waitingCall{cancel, make(chan error, 1)}
	m.calls = append(m.calls, c)
	ended := make(chan struct{})
	go func() {
		c.done <- do(ctx)
		close(ended)
	}()
	select {
	case <-m.waits:
	case <-ended:
	}
}

// deafStream asks twice in a stream, and breaks it off after the first answer.
func (m *melee) deafStream(a *agent) error {
	ctx, cancel := context.WithCancel(a.Ctx)
	defer cancel()
	stream, err := a.Lock(ctx)
	if err != nil {
		return err
	}
	for n := range int64(2) {
		r := m.wish()
		if n == 1 {
			r.Wait, r.DryRun = durationpb.New(apptest.LongWait), false
		}
		if err := stream.Send(&pb.LockRequest{Number: n + 1, Request: &pb.LockRequest_Acquire{Acquire: r}}); err != nil {
			return err
		}
	}
	return apptest.Err(stream.Recv())
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
		held, err := m.o.ListTokens(m.o.Ctx, &pb.ListTokensRequest{PageSize: 1000})
		apptest.NoError(m.t, err)
		var fences []int64
		for _, l := range list.Locks {
			fences = append(fences, l.Fence)
		}
		if len(fences) > 0 {
			apptest.NoError(m.t, apptest.Err(m.o.ForceReleaseLocks(m.o.Ctx, &pb.ForceReleaseLocksRequest{Revisions: fences, Reason: "test"})))
		}
		waiting := len(list.Tickets)
		for _, k := range held.Tokens {
			waiting += int(k.Waiting)
			if k.Fence != 0 {
				fences = append(fences, k.Fence)
				r := &pb.RevokeTokenRequest{Type: k.Type, Scope: k.Scope, Reason: "test"}
				apptest.NoError(m.t, apptest.Err(m.o.RevokeToken(m.o.Ctx, r)))
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

func register(a *agent) error {
	r := &pb.RegisterAgentRequest{Role: "builder", Lease: durationpb.New(apptest.LongLease)}
	return apptest.Err(a.RegisterAgent(a.Ctx, r))
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
			all[a.Name+" "+path] = out
		}
	}
	return all
}

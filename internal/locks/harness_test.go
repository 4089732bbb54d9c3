package locks_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jonboulle/clockwork"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The outcomes, for tables.
const (
	granted = pb.AcquireOutcome_ACQUIRE_OUTCOME_GRANTED
	queued  = pb.AcquireOutcome_ACQUIRE_OUTCOME_QUEUED
	busy    = pb.AcquireOutcome_ACQUIRE_OUTCOME_BUSY
)

// patience is how long a test waits for what should come at once. Machines have been seen to stand still for a minute.
const patience = 5 * time.Minute

// longWait is how long calls wait that are to be woken: like nothing else, and shorter than the time that a read may take, which
// the clock's leap must not exceed.
const longWait = 9876 * time.Millisecond

// A watchedClock tells when somebody begins to wait for longWait.
type watchedClock struct {
	*clockwork.FakeClock
	waits chan struct{}
}

// NewTimer implements clockwork.Clock.
func (c watchedClock) NewTimer(d time.Duration) clockwork.Timer {
	timer := c.FakeClock.NewTimer(d)
	if d == longWait {
		c.waits <- struct{}{}
	}
	return timer
}

// A daemon is a broker whose clock stands still until the test advances it. At the end of the test its
// database must be sound.
type daemon struct {
	*apptest.Broker
	Clock watchedClock
	t     apptest.TB
}

func newDaemon(t apptest.TB, options ...apptest.Option) *daemon {
	t.Helper()
	clock := watchedClock{clockwork.NewFakeClockAt(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)), make(chan struct{}, 100)}
	usual := apptest.With(func(c *app.Config) { c.Clock, c.StopTimeout = clock, apptest.Patience })
	return &daemon{apptest.Start(t, slices.Concat([]apptest.Option{usual}, options)...), clock, t}
}

// An agent is one identity's view of the daemon. The operator has no name.
type agent struct {
	pb.LockServiceClient
	registry pb.AgentServiceClient
	messages pb.MessageServiceClient
	sessions pb.SessionServiceClient
	events   pb.EventServiceClient

	w    *daemon
	t    apptest.TB
	name string
	ctx  context.Context // ends with the test, or when its patience does
}

// in returns somebody's view of a session, who need not be registered.
func (w *daemon) in(session, name string) *agent {
	w.t.Helper()
	conn := w.In(session, name)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	w.t.Cleanup(cancel)
	return &agent{
		pb.NewLockServiceClient(conn), pb.NewAgentServiceClient(conn), pb.NewMessageServiceClient(conn), pb.NewSessionServiceClient(conn),
		pb.NewEventServiceClient(conn), w, w.t, name, ctx,
	}
}

func (w *daemon) operator() *agent { return w.in("default", "") }

// agent returns a registered agent.
func (w *daemon) agent(name string) *agent {
	w.t.Helper()
	a := w.in("default", name)
	must(w.t, drop(a.registry.RegisterAgent(a.ctx, &pb.RegisterAgentRequest{Role: "builder"})))
	return a
}

// agents returns registered agents.
func (w *daemon) agents(names ...string) []*agent {
	w.t.Helper()
	all := make([]*agent, len(names))
	for i, name := range names {
		all[i] = w.agent(name)
	}
	return all
}

// pass advances the clock.
func (w *daemon) pass(d time.Duration) { w.Clock.Advance(d) }

// history returns the events of types that begin so, oldest first.
func (w *daemon) history(kind string) []*pb.Event {
	w.t.Helper()
	o := w.operator()
	out, err := o.events.ListEvents(o.ctx, &pb.ListEventsRequest{Filter: &pb.EventFilter{Types: []string{kind}}, PageSize: 1000})
	must(w.t, err)
	return out.Events
}

// await returns the first event of a type after a revision.
func (w *daemon) await(kind string, after int64) *pb.Event {
	w.t.Helper()
	o := w.operator()
	sub, err := o.events.SubscribeEvents(o.ctx, &pb.SubscribeEventsRequest{AfterRevision: &after, Filter: &pb.EventFilter{Types: []string{kind}}})
	must(w.t, err)
	for {
		page, err := sub.Recv()
		if err != nil {
			w.t.Fatal("waiting for", kind, err)
		}
		if e := page.GetEvents(); len(e) > 0 {
			return e[0]
		}
	}
}

// awaitUncollected returns once an agent has a grant that it does not know of.
func (w *daemon) awaitUncollected(agent string) {
	w.t.Helper()
	o := w.operator()
	for {
		locks := o.list(&pb.ListLocksRequest{Agent: agent}).Locks
		if len(locks) == 1 && locks[0].Uncollected {
			return
		}
	}
}

// acquire asks for locks.
func (a *agent) acquire(r *pb.AcquireLocksRequest) *pb.AcquireLocksResponse {
	a.t.Helper()
	out, err := a.AcquireLocks(a.ctx, r)
	must(a.t, err)
	return out
}

// try asks for exclusive locks without waiting.
func (a *agent) try(paths ...string) *pb.AcquireLocksResponse {
	a.t.Helper()
	return a.acquire(&pb.AcquireLocksRequest{Paths: paths})
}

// lock takes exclusive locks that must be free, and returns the fence.
func (a *agent) lock(paths ...string) int64 {
	a.t.Helper()
	return a.held(a.try(paths...))
}

// share takes shared locks that must be free, and returns the fence.
func (a *agent) share(paths ...string) int64 {
	a.t.Helper()
	return a.held(a.acquire(&pb.AcquireLocksRequest{Paths: paths, Mode: pb.LockMode_LOCK_MODE_SHARED}))
}

func (a *agent) held(out *pb.AcquireLocksResponse) int64 {
	a.t.Helper()
	if out.Outcome != granted || out.Fence == 0 {
		a.t.Fatal(a.name, "got", out)
	}
	return out.Fence
}

// keep takes a place in the queue that stays.
func (a *agent) keep(paths ...string) int64 {
	a.t.Helper()
	out := a.acquire(&pb.AcquireLocksRequest{Paths: paths, KeepTicket: true})
	if out.Outcome != queued || out.Ticket == 0 {
		a.t.Fatal(a.name, "got", out)
	}
	return out.Ticket
}

// An outcome is what a waiting call got.
type outcome struct {
	*pb.AcquireLocksResponse
	err error
}

// wait has a call wait, and returns once it does. The channel gets the outcome.
func (a *agent) wait(r *pb.AcquireLocksRequest) <-chan outcome {
	a.t.Helper()
	return a.waitIn(a.ctx, r)
}

func (a *agent) waitIn(ctx context.Context, r *pb.AcquireLocksRequest) <-chan outcome {
	a.t.Helper()
	r.Wait = durationpb.New(longWait)
	done := make(chan outcome, 1)
	go func() {
		out, err := a.AcquireLocks(ctx, r)
		done <- outcome{out, err}
	}()
	select {
	case <-a.w.Clock.waits:
	case o := <-done:
		a.t.Fatal(a.name, "does not wait:", o)
	}
	return done
}

// waitFor has a call wait for exclusive locks.
func (a *agent) waitFor(paths ...string) <-chan outcome {
	a.t.Helper()
	return a.wait(&pb.AcquireLocksRequest{Paths: paths})
}

// gets returns the fence of a call that waited and was granted.
func (a *agent) gets(done <-chan outcome) int64 {
	a.t.Helper()
	o := <-done
	must(a.t, o.err)
	return a.held(o.AcquireLocksResponse)
}

// release gives grants back.
func (a *agent) release(fences ...int64) *pb.ReleaseLocksResponse {
	a.t.Helper()
	out, err := a.ReleaseLocks(a.ctx, &pb.ReleaseLocksRequest{Fences: fences})
	must(a.t, err)
	return out
}

func (a *agent) list(r *pb.ListLocksRequest) *pb.ListLocksResponse {
	a.t.Helper()
	out, err := a.ListLocks(a.ctx, r)
	must(a.t, err)
	return out
}

// mail returns the agent's messages of a type.
func (a *agent) mail(kind string) []*pb.Message {
	a.t.Helper()
	out, err := a.messages.ListMessages(a.ctx, &pb.ListMessagesRequest{Filter: &pb.MessageFilter{Types: []string{kind}}})
	must(a.t, err)
	var found []*pb.Message
	for _, i := range out.Items {
		found = append(found, i.Message)
	}
	return found
}

func want[T comparable](t apptest.TB, what string, got, wanted T) {
	t.Helper()
	if got != wanted {
		t.Errorf("%s: %v, not %v", what, got, wanted)
	}
}

func wantList[T comparable](t apptest.TB, what string, got []T, wanted ...T) {
	t.Helper()
	if !slices.Equal(got, wanted) {
		t.Errorf("%s: %v, not %v", what, got, wanted)
	}
}

// wantError checks code and reason of an error.
func wantError(t apptest.TB, err error, code codes.Code, reason string) {
	t.Helper()
	if status.Code(err) != code || testkit.Reason(err) != reason {
		t.Errorf("%v (%s), not %v (%s)", err, testkit.Reason(err), code, reason)
	}
}

// wantField checks that an error names a field as invalid.
func wantField(t testing.TB, err error, field string) {
	t.Helper()
	if status.Code(err) != codes.InvalidArgument || !slices.Contains(testkit.Fields(err), field) {
		t.Errorf("%v (fields %v), not the field %s", err, testkit.Fields(err), field)
	}
}

func must(t apptest.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// drop leaves the error of an answer that does not matter.
func drop[T any](_ T, err error) error { return err }

func newUUID() string { return uuid.Must(uuid.NewV7()).String() }

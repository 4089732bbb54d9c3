package locks_test

import (
	"context"
	"slices"
	"testing"

	"github.com/google/uuid"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The outcomes, for tables.
const (
	granted = pb.AcquireOutcome_ACQUIRE_OUTCOME_GRANTED
	queued  = pb.AcquireOutcome_ACQUIRE_OUTCOME_QUEUED
	busy    = pb.AcquireOutcome_ACQUIRE_OUTCOME_BUSY
)

// A daemon is a broker whose clock stands still until the test advances it. At the end of the test its
// database must be sound.
type daemon struct{ *apptest.Broker }

func newDaemon(t apptest.TB, options ...apptest.Option) *daemon {
	t.Helper()
	return &daemon{apptest.Start(t, append([]apptest.Option{apptest.WithFakeClock()}, options...)...)}
}

// An agent is a caller of the daemon. The operator has no name.
type agent struct {
	*apptest.Actor
	w *daemon
}

// in returns a caller in a session, which need not be registered.
func (w *daemon) in(session, name string) *agent { return &agent{w.Actor(session, name), w} }

func (w *daemon) operator() *agent { return w.in("default", "") }

// await returns the first event of a type after a revision.
func (w *daemon) await(kind string, after int64) *pb.Event {
	w.Helper()
	return w.Root().AwaitEvents(kind, 1, after)[0]
}

// agent returns a registered agent.
func (w *daemon) agent(name string) *agent {
	w.Helper()
	a := w.in("default", name)
	apptest.Must(w, a.RegisterAgent, &pb.RegisterAgentRequest{Role: "builder"})
	return a
}

// agents returns registered agents.
func (w *daemon) agents(names ...string) []*agent {
	w.Helper()
	all := make([]*agent, len(names))
	for i, name := range names {
		all[i] = w.agent(name)
	}
	return all
}

// awaitUncollected returns once an agent has a grant that it does not know of.
func (w *daemon) awaitUncollected(agent string) {
	w.Helper()
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
	a.Helper()
	return apptest.Must(a, a.AcquireLocks, r)
}

// try asks for exclusive locks without waiting.
func (a *agent) try(paths ...string) *pb.AcquireLocksResponse {
	a.Helper()
	return a.acquire(&pb.AcquireLocksRequest{Paths: paths})
}

// lock takes exclusive locks that must be free, and returns the fence.
func (a *agent) lock(paths ...string) int64 {
	a.Helper()
	return a.held(a.try(paths...))
}

// share takes shared locks that must be free, and returns the fence.
func (a *agent) share(paths ...string) int64 {
	a.Helper()
	return a.held(a.acquire(&pb.AcquireLocksRequest{Paths: paths, Mode: pb.LockMode_LOCK_MODE_SHARED}))
}

func (a *agent) held(out *pb.AcquireLocksResponse) int64 {
	a.Helper()
	if out.Outcome != granted || out.Fence == 0 {
		a.Fatal(a.Name, "got", out)
	}
	return out.Fence
}

// keep takes a place in the queue that stays.
func (a *agent) keep(paths ...string) int64 {
	a.Helper()
	out := a.acquire(&pb.AcquireLocksRequest{Paths: paths, KeepTicket: true})
	if out.Outcome != queued || out.Ticket == 0 {
		a.Fatal(a.Name, "got", out)
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
	a.Helper()
	return a.waitIn(a.Ctx, r)
}

func (a *agent) waitIn(ctx context.Context, r *pb.AcquireLocksRequest) <-chan outcome {
	a.Helper()
	r.Wait = durationpb.New(apptest.LongWait)
	done := make(chan outcome, 1)
	go func() {
		out, err := a.AcquireLocks(ctx, r)
		done <- outcome{out, err}
	}()
	select {
	case <-a.w.Waits:
	case o := <-done:
		a.Fatal(a.Name, "does not wait:", o)
	}
	return done
}

// waitFor has a call wait for exclusive locks.
func (a *agent) waitFor(paths ...string) <-chan outcome {
	a.Helper()
	return a.wait(&pb.AcquireLocksRequest{Paths: paths})
}

// gets returns the fence of a call that waited and was granted.
func (a *agent) gets(done <-chan outcome) int64 {
	a.Helper()
	o := <-done
	apptest.NoError(a, o.err)
	return a.held(o.AcquireLocksResponse)
}

// release gives grants back.
func (a *agent) release(fences ...int64) *pb.ReleaseLocksResponse {
	a.Helper()
	return apptest.Must(a, a.ReleaseLocks, &pb.ReleaseLocksRequest{Fences: fences})
}

func (a *agent) list(r *pb.ListLocksRequest) *pb.ListLocksResponse {
	a.Helper()
	return apptest.Must(a, a.ListLocks, r)
}

// mail returns the agent's messages of a type.
func (a *agent) mail(kind string) []*pb.Message {
	a.Helper()
	out := apptest.Must(a, a.ListMessages,
		&pb.ListMessagesRequest{Filter: &pb.MessageFilter{Types: []string{kind}}})
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

func newUUID() string { return uuid.Must(uuid.NewV7()).String() }

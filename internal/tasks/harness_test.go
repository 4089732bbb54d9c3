package tasks_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jonboulle/clockwork"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
	"brokerd/internal/tasks"
	"brokerd/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.Histories(30, 60)
	tasks.ToldWitnesses()
	goleak.VerifyTestMain(m)
}

// The states, for tables.
const (
	waiting   = pb.TaskState_TASK_STATE_WAITING
	ready     = pb.TaskState_TASK_STATE_READY
	claimed   = pb.TaskState_TASK_STATE_CLAIMED
	blocked   = pb.TaskState_TASK_STATE_BLOCKED
	done      = pb.TaskState_TASK_STATE_DONE
	failed    = pb.TaskState_TASK_STATE_FAILED
	cancelled = pb.TaskState_TASK_STATE_CANCELLED
)

// patience is how long a call may take that should succeed at once.
const patience = 5 * time.Minute

// longWait is how long calls wait that the test is to wake. No other timer has this duration.
const longWait = 987654 * time.Millisecond

// A watchedClock reports each call that begins to wait for longWait.
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

// A daemon is a broker whose clock does not move until the test advances it.
type daemon struct {
	*apptest.Broker
	Clock watchedClock
}

func newDaemon(t apptest.TB) *daemon {
	t.Helper()
	clock := newClock()
	return &daemon{apptest.Start(t, apptest.With(func(c *app.Config) { c.Clock, c.StopTimeout = clock, apptest.Patience })), clock}
}

func newClock() watchedClock {
	return watchedClock{clockwork.NewFakeClockAt(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)), make(chan struct{}, 100)}
}

// agent registers an agent of the role builder.
func (d *daemon) agent(name string, capabilities ...string) *apptest.Actor {
	d.Helper()
	return d.member(name, "builder", capabilities...)
}

func (d *daemon) member(name, role string, capabilities ...string) *apptest.Actor {
	d.Helper()
	a := d.Actor("default", name)
	register(a, role, capabilities...)
	return a
}

func register(a *apptest.Actor, role string, capabilities ...string) {
	a.Helper()
	apptest.Must(a, a.RegisterAgent, &pb.RegisterAgentRequest{Role: role, Capabilities: capabilities, Lease: durationpb.New(apptest.LongLease)})
}

// create creates tasks. A text is an id, optionally with dependencies behind a colon: "c: a b".
func create(a *apptest.Actor, texts ...string) *pb.CreateTasksResponse {
	a.Helper()
	var all []*pb.NewTask
	for _, text := range texts {
		id, needs, _ := strings.Cut(text, ":")
		all = append(all, &pb.NewTask{Id: id, Title: "the title of " + id, DependsOn: strings.Fields(needs)})
	}
	return createAll(a, all...)
}

func createAll(a *apptest.Actor, all ...*pb.NewTask) *pb.CreateTasksResponse {
	a.Helper()
	return apptest.Must(a, a.CreateTasks, &pb.CreateTasksRequest{Tasks: all})
}

// claim claims the first task that matches, and returns its id; empty if there is none.
func claim(a *apptest.Actor) string {
	a.Helper()
	return apptest.Must(a, a.ClaimTask, &pb.ClaimTaskRequest{}).GetTask().GetId()
}

// take claims the given task and returns the fence.
func take(a *apptest.Actor, id string) int64 {
	a.Helper()
	return apptest.Must(a, a.ClaimTask, &pb.ClaimTaskRequest{Id: id}).GetTask().GetFence()
}

func complete(a *apptest.Actor, id string) *pb.CompleteTaskResponse {
	a.Helper()
	return apptest.Must(a, a.CompleteTask, &pb.CompleteTaskRequest{Id: id})
}

func fail(a *apptest.Actor, id string, fatal bool) *pb.FailTaskResponse {
	a.Helper()
	return apptest.Must(a, a.FailTask, &pb.FailTaskRequest{Id: id, Error: "it broke", Fatal: fatal})
}

func task(a *apptest.Actor, id string) *pb.Task {
	a.Helper()
	return full(a, id).GetTask()
}

func full(a *apptest.Actor, id string) *pb.GetTaskResponse {
	a.Helper()
	return apptest.Must(a, a.GetTask, &pb.GetTaskRequest{Id: id, View: pb.TaskView_TASK_VIEW_FULL})
}

// state wants tasks to be in a state.
func wantState(a *apptest.Actor, want pb.TaskState, ids ...string) {
	a.Helper()
	for _, id := range ids {
		if got := task(a, id).GetState(); got != want {
			a.Errorf("task %s is %v, want %v", id, got, want)
		}
	}
}

// An outcome is the outcome of a call that waits.
type outcome[R any] struct {
	answer R
	err    error
}

// begin makes a call that waits, and returns once the broker lets it wait.
func begin[R any](d *daemon, call func(ctx context.Context) (R, error)) (<-chan outcome[R], context.CancelFunc) {
	d.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	d.Cleanup(cancel)
	ended := make(chan outcome[R], 1)
	go func() {
		answer, err := call(ctx)
		ended <- outcome[R]{answer, err}
	}()
	select {
	case <-d.Clock.waits:
	case o := <-ended:
		d.Fatal("the call did not wait:", o.answer, o.err)
	}
	return ended, cancel
}

// awaitClaim begins a ClaimTask that waits.
func (d *daemon) awaitClaim(a *apptest.Actor, in *pb.ClaimTaskRequest) (<-chan outcome[*pb.ClaimTaskResponse], context.CancelFunc) {
	d.Helper()
	in.Wait = durationpb.New(longWait)
	return begin(d, func(ctx context.Context) (*pb.ClaimTaskResponse, error) { return a.ClaimTask(ctx, in) })
}

// mail returns the messages of a type in the caller's mailbox that wait or were not read, the newest first.
func mail(a *apptest.Actor, kind string) []*pb.InboxItem {
	a.Helper()
	return apptest.Must(a, a.ListMessages, &pb.ListMessagesRequest{Filter: &pb.MessageFilter{Types: []string{kind}}}).GetItems()
}

// refused wants an error with a reason.
func refused(t apptest.TB, err error, want string) {
	t.Helper()
	if got := testkit.Reason(err); got != want {
		t.Errorf("the reason is %q (%v), want %q", got, err, want)
	}
}

func want[V comparable](t apptest.TB, what string, got, want V) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func newID() string { return uuid.Must(uuid.NewV7()).String() }

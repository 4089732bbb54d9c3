package tasks_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jonboulle/clockwork"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
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
	t     apptest.TB
}

func newDaemon(t apptest.TB) *daemon {
	t.Helper()
	clock := newClock()
	return &daemon{apptest.Start(t, apptest.With(func(c *app.Config) { c.Clock, c.StopTimeout = clock, apptest.Patience })), clock, t}
}

func newClock() watchedClock {
	return watchedClock{clockwork.NewFakeClockAt(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)), make(chan struct{}, 100)}
}

// An agent is a client with an identity. The operator has no name.
type agent struct {
	pb.TaskServiceClient
	registry pb.AgentServiceClient
	messages pb.MessageServiceClient
	events   pb.EventServiceClient
	sessions pb.SessionServiceClient
	admin    pb.AdminServiceClient

	t    apptest.TB
	name string
	ctx  context.Context
}

func (d *daemon) in(session, name string) *agent {
	d.t.Helper()
	conn := d.In(session, name)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	d.t.Cleanup(cancel)
	return &agent{pb.NewTaskServiceClient(conn), pb.NewAgentServiceClient(conn), pb.NewMessageServiceClient(conn),
		pb.NewEventServiceClient(conn), pb.NewSessionServiceClient(conn), pb.NewAdminServiceClient(conn), d.t, name, ctx}
}

func (d *daemon) operator() *agent { return d.in("default", "") }

// agent registers an agent of the role builder.
func (d *daemon) agent(name string, capabilities ...string) *agent {
	d.t.Helper()
	return d.member(name, "builder", capabilities...)
}

func (d *daemon) member(name, role string, capabilities ...string) *agent {
	d.t.Helper()
	a := d.in("default", name)
	a.register(role, capabilities...)
	return a
}

func (a *agent) register(role string, capabilities ...string) {
	a.t.Helper()
	_, err := a.registry.RegisterAgent(a.ctx, &pb.RegisterAgentRequest{Role: role, Capabilities: capabilities, Lease: durationpb.New(apptest.LongLease)})
	check(a.t, err)
}

// create creates tasks. A text is an id, optionally with dependencies behind a colon: "c: a b".
func (a *agent) create(texts ...string) *pb.CreateTasksResponse {
	a.t.Helper()
	var all []*pb.NewTask
	for _, text := range texts {
		id, needs, _ := strings.Cut(text, ":")
		all = append(all, &pb.NewTask{Id: id, Title: "the title of " + id, DependsOn: strings.Fields(needs)})
	}
	return a.createAll(all...)
}

func (a *agent) createAll(all ...*pb.NewTask) *pb.CreateTasksResponse {
	a.t.Helper()
	out, err := a.CreateTasks(a.ctx, &pb.CreateTasksRequest{Tasks: all})
	check(a.t, err)
	return out
}

// claim claims the first task that matches, and returns its id; empty if there is none.
func (a *agent) claim() string {
	a.t.Helper()
	out, err := a.ClaimTask(a.ctx, &pb.ClaimTaskRequest{})
	check(a.t, err)
	return out.GetTask().GetId()
}

// take claims the given task and returns the fence.
func (a *agent) take(id string) int64 {
	a.t.Helper()
	out, err := a.ClaimTask(a.ctx, &pb.ClaimTaskRequest{Id: id})
	check(a.t, err)
	return out.GetTask().GetFence()
}

func (a *agent) complete(id string) *pb.CompleteTaskResponse {
	a.t.Helper()
	out, err := a.CompleteTask(a.ctx, &pb.CompleteTaskRequest{Id: id})
	check(a.t, err)
	return out
}

func (a *agent) fail(id string, fatal bool) *pb.FailTaskResponse {
	a.t.Helper()
	out, err := a.FailTask(a.ctx, &pb.FailTaskRequest{Id: id, Error: "it broke", Fatal: fatal})
	check(a.t, err)
	return out
}

func (a *agent) task(id string) *pb.Task {
	a.t.Helper()
	return a.full(id).GetTask()
}

func (a *agent) full(id string) *pb.GetTaskResponse {
	a.t.Helper()
	out, err := a.GetTask(a.ctx, &pb.GetTaskRequest{Id: id, View: pb.TaskView_TASK_VIEW_FULL})
	check(a.t, err)
	return out
}

// state wants tasks to be in a state.
func (a *agent) state(want pb.TaskState, ids ...string) {
	a.t.Helper()
	for _, id := range ids {
		if got := a.task(id).GetState(); got != want {
			a.t.Errorf("task %s is %v, want %v", id, got, want)
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
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	d.t.Cleanup(cancel)
	ended := make(chan outcome[R], 1)
	go func() {
		answer, err := call(ctx)
		ended <- outcome[R]{answer, err}
	}()
	select {
	case <-d.Clock.waits:
	case o := <-ended:
		d.t.Fatal("the call did not wait:", o.answer, o.err)
	}
	return ended, cancel
}

// awaitClaim begins a ClaimTask that waits.
func (d *daemon) awaitClaim(a *agent, in *pb.ClaimTaskRequest) (<-chan outcome[*pb.ClaimTaskResponse], context.CancelFunc) {
	d.t.Helper()
	in.Wait = durationpb.New(longWait)
	return begin(d, func(ctx context.Context) (*pb.ClaimTaskResponse, error) { return a.ClaimTask(ctx, in) })
}

// mail returns the messages of a type in the caller's mailbox that wait or were not read, the newest first.
func (a *agent) mail(kind string) []*pb.InboxItem {
	a.t.Helper()
	out, err := a.messages.ListMessages(a.ctx, &pb.ListMessagesRequest{Filter: &pb.MessageFilter{Types: []string{kind}}})
	check(a.t, err)
	return out.GetItems()
}

// refused wants an error with a reason.
func refused(t apptest.TB, err error, want string) {
	t.Helper()
	if got := reason(err); got != want {
		t.Errorf("the reason is %q (%v), want %q", got, err, want)
	}
}

func reason(err error) string {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	return ""
}

func check(t apptest.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func want[V comparable](t apptest.TB, what string, got, want V) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func newID() string { return uuid.Must(uuid.NewV7()).String() }

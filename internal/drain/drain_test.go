package drain_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

// longWait is how long calls wait that the test is to wake. No other timer has this duration.
const longWait = 987654 * time.Millisecond

// A watchedClock stands still, and reports each call that begins to wait for longWait.
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

// A world is a daemon with the agents a and b.
type world struct {
	*apptest.Broker
	t     *testing.T
	ctx   context.Context
	clock watchedClock
	admin pb.AdminServiceClient
	a, b  *grpc.ClientConn
}

func newWorld(t *testing.T, options ...apptest.Option) *world {
	t.Helper()
	clock := watchedClock{clockwork.NewFakeClockAt(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)), make(chan struct{}, 10)}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	w := &world{t: t, ctx: ctx, clock: clock}
	w.Broker = apptest.Start(t, append(options, apptest.With(func(c *app.Config) { c.Clock = clock }))...)
	w.connect()
	return w
}

// connect registers the agents at the daemon that runs now.
func (w *world) connect() {
	w.admin = pb.NewAdminServiceClient(w.Operator())
	w.a, w.b = w.Registered("a", "worker"), w.Registered("b", "worker")
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// drain makes a call that has to succeed.
func (w *world) drain(in *pb.DrainRequest) *pb.DrainResponse {
	w.t.Helper()
	return apptest.Must(w.t, w.admin.Drain, in)
}

// send sends a message of a type to an agent or, with an empty name, to the role, and returns its id.
func (w *world) send(kind, agent string) string {
	w.t.Helper()
	to := &pb.Target{To: &pb.Target_Role{Role: "worker"}}
	if agent != "" {
		to = &pb.Target{To: &pb.Target_Agent{Agent: agent}}
	}
	out := apptest.Must(w.t, w.Root().SendMessages,
		&pb.SendMessagesRequest{Messages: []*pb.Message{{Target: to, Type: kind, Subject: "x"}}})
	if e := out.GetResults()[0].GetError(); e != nil {
		w.t.Fatal(e)
	}
	return out.GetResults()[0].GetId()
}

func (w *world) createTask(id string) {
	w.t.Helper()
	apptest.Must(w.t, w.Root().CreateTasks, &pb.CreateTasksRequest{Tasks: []*pb.NewTask{{Id: id, Title: "x"}}})
}

// begin starts a call that waits for longWait. The channel receives its outcome.
func begin[R any](w *world, call func() (R, error)) <-chan R {
	w.t.Helper()
	ended := make(chan R, 1)
	go func() {
		answer, err := call()
		if err != nil {
			w.t.Error(err)
		}
		ended <- answer
	}()
	select {
	case <-w.clock.waits:
	case <-w.ctx.Done():
		w.t.Fatal("the call does not wait")
	}
	return ended
}

// outcome receives from a channel in time.
func outcome[R any](w *world, from <-chan R) (r R) {
	w.t.Helper()
	select {
	case r = <-from:
	case <-w.ctx.Done():
		w.t.Fatal("the call has not ended")
	}
	return r
}

func refused(t *testing.T, err error, code codes.Code, reason string) {
	t.Helper()
	if status.Code(err) != code || reason != "" && testkit.Reason(err) != reason {
		t.Errorf("got %v, want %v and the reason %q", err, code, reason)
	}
}

func TestDrain_StartsNoClaimUntilItEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := pb.NewMessageServiceClient(w.a), pb.NewMessageServiceClient(w.b)
	jobs := pb.NewTaskServiceClient(w.a)
	stream, err := b.Claim(w.ctx)
	w.must(err)
	w.must(stream.Send(&pb.ClaimRequest{Open: &pb.ClaimOpen{MaxInFlight: 10}}))
	if in, err := stream.Recv(); err != nil || in.GetOpened() == nil {
		t.Fatal(in, err)
	}
	task := begin(w, func() (*pb.ClaimTaskResponse, error) {
		return jobs.ClaimTask(w.ctx, &pb.ClaimTaskRequest{Wait: durationpb.New(longWait)})
	})
	if out := w.drain(&pb.DrainRequest{}); out.GetDrainingSince() == nil || out.GetMessages()+out.GetTasks() != 0 {
		t.Errorf("the drain: %v", out)
	}
	forRole, forA, forTask := w.send("note", ""), w.send("note", "a"), "t"
	w.createTask(forTask)

	out := apptest.Must(w.t, a.ClaimMessages, &pb.ClaimMessagesRequest{})
	if len(out.GetClaims()) > 0 || out.GetEmptyReason() != pb.EmptyReason_EMPTY_REASON_DRAINING {
		t.Errorf("a claim: %v", out)
	}
	_, err = a.ClaimMessages(w.ctx, &pb.ClaimMessagesRequest{Ids: []string{forA}})
	refused(t, err, codes.FailedPrecondition, "DRAINING")
	none := apptest.Must(w.t, pb.NewTaskServiceClient(w.b).ClaimTask, &pb.ClaimTaskRequest{})
	if none.GetTask() != nil || none.GetEmptyReason() != pb.TaskEmptyReason_TASK_EMPTY_REASON_DRAINING {
		t.Errorf("a claim of a task: %v", none)
	}
	apptest.Refuses(t, jobs.ClaimTask, &pb.ClaimTaskRequest{Id: forTask}, codes.FailedPrecondition, "DRAINING")
	if got := w.received(a, true); len(got) > 0 {
		t.Errorf("with auto_ack: %v", got)
	}
	if got := w.received(a, false); len(got) != 1 || got[0] != forA {
		t.Errorf("without auto_ack: %v", got)
	}
	if out := w.drain(&pb.DrainRequest{}); out.GetMessages()+out.GetTasks() != 0 {
		t.Errorf("during the drain: %v", out)
	}
	w.send("nudge", "b")
	in, err := stream.Recv()
	w.must(err)
	if c := in.GetDeliver().GetClaims(); len(c) != 1 || c[0].GetMessage().GetType() != "nudge" {
		t.Errorf("a directive: %v", in)
	}

	if out := w.drain(&pb.DrainRequest{Resume: true}); out.GetDrainingSince() != nil {
		t.Errorf("the end: %v", out)
	}
	if in, err = stream.Recv(); err != nil || len(in.GetDeliver().GetClaims()) != 1 || in.GetDeliver().GetClaims()[0].GetMessage().GetId() != forRole {
		t.Errorf("the stream after the drain: %v, %v", in, err)
	}
	if got := outcome(w, task).GetTask().GetId(); got != forTask {
		t.Errorf("the waiting claim of a task after the drain: %q", got)
	}
	out, err = a.ClaimMessages(w.ctx, &pb.ClaimMessagesRequest{Ids: []string{forA}})
	if err != nil || len(out.GetClaims()) != 1 {
		t.Errorf("a claim after the drain: %v, %v", out, err)
	}
	w.must(stream.CloseSend())
}

// received returns the ids of the messages that Receive shows.
func (w *world) received(c pb.MessageServiceClient, autoAck bool) (ids []string) {
	w.t.Helper()
	stream, err := c.Receive(w.ctx, &pb.ReceiveRequest{AutoAck: autoAck})
	w.must(err)
	for {
		in, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return ids
		}
		w.must(err)
		for _, item := range in.GetItems() {
			ids = append(ids, item.GetMessage().GetId())
		}
	}
}

func TestDrain_WaitsForTheEndOfAllClaims(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, jobs := pb.NewMessageServiceClient(w.a), pb.NewTaskServiceClient(w.b)
	id := w.send("note", "a")
	w.createTask("t")
	mail := apptest.Must(w.t, a.ClaimMessages, &pb.ClaimMessagesRequest{Ids: []string{id}})
	job := apptest.Must(w.t, jobs.ClaimTask, &pb.ClaimTaskRequest{})
	out := w.drain(&pb.DrainRequest{})
	if out.GetMessages() != 1 || out.GetTasks() != 1 || len(out.GetHolders()) != 2 ||
		out.GetHolders()[0].GetAgent() != "a" || out.GetHolders()[0].GetSession() != "default" || out.GetHolders()[1].GetTasks() != 1 {
		t.Errorf("the open claims: %v", out)
	}
	ended := begin(w, func() (*pb.DrainResponse, error) {
		return w.admin.Drain(w.ctx, &pb.DrainRequest{Wait: durationpb.New(longWait)})
	})
	apptest.Must(w.t, a.AckMessages, &pb.AckMessagesRequest{Ids: []string{mail.GetClaims()[0].GetClaimId()}})
	apptest.Must(w.t, jobs.CompleteTask, &pb.CompleteTaskRequest{Id: "t", Fence: job.GetTask().GetFence()})
	if out := outcome(w, ended); out.GetMessages()+out.GetTasks() != 0 || out.GetDrainingSince() == nil {
		t.Errorf("after all claims: %v", out)
	}
}

func TestDrain_EndsItsWaitWhenAnotherCallEndsTheDrain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.send("note", "a")
	apptest.Must(w.t, pb.NewMessageServiceClient(w.a).ClaimMessages, &pb.ClaimMessagesRequest{Ids: []string{id}})
	ended := begin(w, func() (error, error) {
		_, err := w.admin.Drain(w.ctx, &pb.DrainRequest{Wait: durationpb.New(longWait)})
		return err, nil
	})
	w.drain(&pb.DrainRequest{Resume: true})
	refused(t, outcome(w, ended), codes.FailedPrecondition, "DRAIN_ENDED")
	_, err := w.admin.Drain(w.ctx, &pb.DrainRequest{Resume: true, Wait: durationpb.New(time.Second)})
	refused(t, err, codes.InvalidArgument, "")
	apptest.Refuses(t, pb.NewAdminServiceClient(w.a).Drain, &pb.DrainRequest{}, codes.PermissionDenied, "OPERATOR_ONLY")
}

func TestDrain_SurvivesARestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	began := w.drain(&pb.DrainRequest{}).GetDrainingSince()
	w.drain(&pb.DrainRequest{})
	w.Restart()
	w.connect()
	w.send("note", "a")
	a := pb.NewMessageServiceClient(w.a)
	out := apptest.Must(w.t, a.ClaimMessages, &pb.ClaimMessagesRequest{})
	if out.GetEmptyReason() != pb.EmptyReason_EMPTY_REASON_DRAINING {
		t.Errorf("after the restart: %v", out)
	}
	state := apptest.Must(w.t, w.admin.GetStatus, &pb.GetStatusRequest{})
	if !state.GetDrainingSince().AsTime().Equal(began.AsTime()) {
		t.Errorf("the status says %v, want %v", state.GetDrainingSince(), began)
	}
	w.drain(&pb.DrainRequest{Resume: true})
	w.drain(&pb.DrainRequest{Resume: true})
	if out, err := a.ClaimMessages(w.ctx, &pb.ClaimMessagesRequest{}); err != nil || len(out.GetClaims()) != 1 {
		t.Errorf("after the drain: %v, %v", out, err)
	}
	happened := apptest.Must(w.t, w.Root().ListEvents,
		&pb.ListEventsRequest{Filter: &pb.EventFilter{Types: []string{"broker.draining", "broker.resumed"}}})
	if e := happened.GetEvents(); len(e) != 2 {
		t.Errorf("the events: %v", e)
	}
}

package client_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jonboulle/clockwork"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/processtest"
)

// taskHand is a WorkTasks in a goroutine, whose handlers return what the test decides.
type taskHand struct {
	begun chan *taskRun
	stop  context.CancelFunc
	done  chan error
}

// taskRun is one running handler.
type taskRun struct {
	ctx   context.Context
	claim *client.TaskClaim
	give  chan error // that it is to return
}

func workTasks(t *testing.T, c *client.Client, o client.TaskOptions) *taskHand {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &taskHand{begun: make(chan *taskRun, 64), stop: cancel, done: make(chan error, 1)}
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		w.done <- c.WorkTasks(ctx, o, func(ctx context.Context, claim *client.TaskClaim) error {
			r := &taskRun{ctx: ctx, claim: claim, give: make(chan error, 1)}
			w.begun <- r
			select {
			case err := <-r.give:
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		next(t, finished)
	})
	return w
}

func create(t *testing.T, c *client.Client, tasks ...*pb.NewTask) {
	t.Helper()
	apptest.NoError(t, apptest.Err(c.Tasks().CreateTasks(t.Context(), &pb.CreateTasksRequest{Tasks: tasks})))
}

func taskOf(t *testing.T, c *client.Client, id string) *pb.Task {
	t.Helper()
	answer, err := c.Tasks().GetTask(t.Context(), &pb.GetTaskRequest{Id: id})
	apptest.NoError(t, err)
	return answer.GetTask()
}

// settledTask returns a task once it is no longer claimed.
func settledTask(t *testing.T, c *client.Client, id string) *pb.Task {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		task := taskOf(t, c, id)
		if task.GetState() != pb.TaskState_TASK_STATE_CLAIMED {
			return task
		}
		if time.Now().After(deadline) {
			t.Fatalf("task %s is still claimed", id)
		}
	}
}

func TestWorkTasks_TheHandlersResultDecides(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	worker := d.agent(t, "worker", "")
	boom := errors.New("boom")
	for _, c := range []struct {
		id       string
		give     error
		state    pb.TaskState
		attempts int32
		error    string
	}{
		{"done", nil, pb.TaskState_TASK_STATE_DONE, 0, ""},
		{"failed", boom, pb.TaskState_TASK_STATE_READY, 1, "boom"},
		{"fatal", client.Fatal(boom), pb.TaskState_TASK_STATE_FAILED, 1, "boom"},
		{"released", client.Release(boom), pb.TaskState_TASK_STATE_READY, 0, ""},
	} {
		create(t, worker, &pb.NewTask{Id: c.id, Title: c.id, Labels: map[string]string{"case": c.id}})
		w := workTasks(t, worker, client.TaskOptions{Labels: map[string]string{"case": c.id}})
		r := next(t, w.begun)
		if r.claim.Task.GetId() != c.id || r.claim.Attempt != 1 || r.claim.Resumed {
			t.Errorf("%s: %+v", c.id, r.claim)
		}
		if err := r.claim.Report(t.Context(), 0.5, "half"); err != nil {
			t.Error(err)
		}
		r.claim.Result, r.claim.Artifacts = "fine", []string{"a"}
		w.stop()
		r.give <- c.give
		if err := next(t, w.done); err != nil {
			t.Error(err)
		}
		task := taskOf(t, worker, c.id)
		if task.GetState() != c.state || task.GetAttempts() != c.attempts || task.GetError() != c.error || task.GetNote() != "half" {
			t.Errorf("%s: %v", c.id, task)
		}
		if c.give == nil && (task.GetResult() != "fine" || !cmp.Equal(task.GetResultArtifacts(), []string{"a"})) {
			t.Errorf("the result is %q with %q", task.GetResult(), task.GetResultArtifacts())
		}
	}
}

func TestWorkTasks_ALostClaimCancelsItsHandlerAndNoOther(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	worker := d.agent(t, "worker", "")
	create(t, worker, &pb.NewTask{Id: "a", Title: "A"}, &pb.NewTask{Id: "b", Title: "B"})
	w := workTasks(t, worker, client.TaskOptions{Concurrency: 2})
	by := map[string]*taskRun{}
	for range 2 {
		r := next(t, w.begun)
		by[r.claim.Task.GetId()] = r
	}
	apptest.NoError(t, apptest.Err(worker.Tasks().CancelTask(t.Context(), &pb.CancelTaskRequest{Id: "a"})))
	next(t, by["a"].ctx.Done())
	wantIs(t, context.Cause(by["a"].ctx), client.ErrClaimLost)
	if err := by["b"].ctx.Err(); err != nil {
		t.Error(err)
	}
	by["b"].give <- nil
	if state := settledTask(t, worker, "b").GetState(); state != pb.TaskState_TASK_STATE_DONE {
		t.Errorf("b is %v", state)
	}
}

func TestWorkTasks_ReportsAnOutcomeThatTheBrokerRefuses(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	worker := d.agent(t, "worker", "")
	create(t, worker, &pb.NewTask{Id: "a", Title: "A"})
	lost := make(chan error, 1)
	done := make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		done <- worker.WorkTasks(ctx, client.TaskOptions{OnLost: func(_ *client.TaskClaim, err error) { lost <- err }},
			func(_ context.Context, c *client.TaskClaim) error {
				_, err := worker.Tasks().ReleaseTask(t.Context(), &pb.ReleaseTaskRequest{Id: c.Task.GetId()})
				stop()
				return err
			})
	}()
	if err := next(t, lost); client.Reason(err) != "TASK_LOST" {
		t.Errorf("lost: %v", err)
	}
	if err := next(t, done); err != nil {
		t.Error(err)
	}
}

// The test advances the broker's clock by twice stale_after, while the handler does not report.
func TestWorkTasks_KeepsTheClaimOfASilentHandler(t *testing.T) {
	t.Parallel()
	clock := clockwork.NewFakeClockAt(time.Now())
	d := newDaemonWith(t, clock)
	worker := d.agent(t, "worker", "")
	create(t, worker, &pb.NewTask{Id: "a", Title: "A", StaleAfter: durationpb.New(time.Second)})
	w := workTasks(t, worker, client.TaskOptions{})
	r := next(t, w.begun)
	for range 4 {
		clock.Advance(time.Second / 2)
		for deadline := time.Now().Add(patience); taskOf(t, worker, "a").GetUpdatedAt().AsTime().Before(clock.Now().Truncate(time.Millisecond)); {
			if time.Now().After(deadline) {
				t.Fatal("the worker does not update its task")
			}
		}
	}
	if r.ctx.Err() != nil || taskOf(t, worker, "a").GetFence() != r.claim.Task.GetFence() {
		t.Errorf("the claim is lost: %v", context.Cause(r.ctx))
	}
	r.give <- nil
}

func TestWorkTasks_DrainTimeoutReleasesWhatIsNotFinished(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	worker := d.agent(t, "worker", "")
	create(t, worker, &pb.NewTask{Id: "a", Title: "A"})
	w := workTasks(t, worker, client.TaskOptions{DrainTimeout: time.Millisecond})
	r := next(t, w.begun)
	w.stop()
	if err := next(t, w.done); err != nil {
		t.Error(err)
	}
	wantIs(t, context.Cause(r.ctx), client.ErrStopped)
	if task := taskOf(t, worker, "a"); task.GetState() != pb.TaskState_TASK_STATE_READY || task.GetAttempts() != 0 {
		t.Errorf("%v", task)
	}
}

func TestWorkTasks_ResumesTheTasksThatTheAgentHolds(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	worker := d.agent(t, "worker", "")
	create(t, worker, &pb.NewTask{Id: "held", Title: "Held"}, &pb.NewTask{Id: "urgent", Title: "Urgent", Priority: 10})
	apptest.NoError(t, apptest.Err(worker.Tasks().ClaimTask(t.Context(), &pb.ClaimTaskRequest{Id: "held"})))
	w := workTasks(t, worker, client.TaskOptions{Resume: true})
	for _, want := range []string{"held", "urgent"} {
		r := next(t, w.begun)
		if r.claim.Task.GetId() != want || r.claim.Resumed != (want == "held") {
			t.Errorf("%+v, want %s", r.claim, want)
		}
		r.give <- nil
	}
}

func TestWorkTasks_AStopBeforeTheFirstClaimIsNoError(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	worker := d.agent(t, "worker", "")
	ctx, stop := context.WithCancel(t.Context())
	stop()
	err := worker.WorkTasks(ctx, client.TaskOptions{}, func(context.Context, *client.TaskClaim) error { return nil })
	if err != nil {
		t.Error(err)
	}
}

func TestWorkTasks_AnErrorThatNoRetryHealsEndsIt(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	worker := d.agent(t, "worker", "")
	create(t, worker, &pb.NewTask{Id: "a", Title: "A"})
	w := workTasks(t, worker, client.TaskOptions{Concurrency: 2})
	r := next(t, w.begun)
	apptest.NoError(t, apptest.Err(worker.Agents().DeregisterAgent(t.Context(), &pb.DeregisterAgentRequest{})))
	wantCode(t, next(t, w.done), codes.FailedPrecondition)
	wantIs(t, context.Cause(r.ctx), client.ErrClaimLost)
}

// Two workers process a graph of tasks while the broker is killed three times.
func TestWorkTasks_KillsOfTheBrokerLoseNoTaskAndRepeatNone(t *testing.T) {
	t.Parallel()
	d := processtest.New(t, processtest.Build(t))
	apptest.NoError(t, d.Start(t.Context()))
	agent := func(name string) *client.Client {
		c, err := client.Dial(t.Context(), client.WithAddress(d.Address()), client.WithAgent(name))
		apptest.NoError(t, err)
		t.Cleanup(c.Close)
		apptest.NoError(t, apptest.Err(c.Agents().RegisterAgent(t.Context(), &pb.RegisterAgentRequest{})))
		return c
	}
	const count = 90
	var tasks []*pb.NewTask
	for i := range count {
		task := &pb.NewTask{Id: fmt.Sprintf("task-%d", i), Title: "A task"}
		if i >= 5 {
			task.DependsOn = []string{fmt.Sprintf("task-%d", i-5), fmt.Sprintf("task-%d", i-3)}
		}
		tasks = append(tasks, task)
	}
	lead, workers := agent("lead"), []*client.Client{agent("worker-1"), agent("worker-2")}
	create(t, lead, tasks...)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	handled := make(chan string, 10*count)
	var loops sync.WaitGroup
	for _, c := range workers {
		loops.Go(func() {
			err := c.WorkTasks(ctx, client.TaskOptions{Concurrency: 3}, func(_ context.Context, claim *client.TaskClaim) error {
				handled <- claim.Task.GetId()
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	times := map[string]int{}
	for n := 1; n <= count; n++ {
		times[next(t, handled)]++
		if n%(count/4) == 0 && n < count {
			d.Kill()
			apptest.NoError(t, d.Start(t.Context()))
		}
	}
	for _, task := range tasks {
		if state := settledTask(t, lead, task.GetId()).GetState(); state != pb.TaskState_TASK_STATE_DONE || times[task.GetId()] != 1 {
			t.Errorf("%s is %v and was handled %d times", task.GetId(), state, times[task.GetId()])
		}
	}
	stop()
	loops.Wait()
}

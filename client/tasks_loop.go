package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
)

// claimWait is how long one call of ClaimTask waits.
const claimWait = 10 * time.Minute

// lossEvents are the types of the events that end a claim without its worker.
var lossEvents = []string{"task.released", "task.attempt_failed", "task.failed", "task.cancelled"}

// taskWorker is one call of WorkTasks.
type taskWorker struct {
	client  *Client
	o       TaskOptions
	handler TaskHandler

	taking     context.Context // once it has ended, the worker claims nothing more
	stopTaking context.CancelFunc
	handling   context.Context // of the handlers
	cancel     context.CancelCauseFunc
	settling   context.Context // ends when WorkTasks returns
	since      int64           // watch reads the events after this revision

	mu     sync.Mutex          // guards the fields below
	jobs   map[string]*taskJob // by task
	failed error               // the error that no retry heals
}

// taskJob is a claim with its running handler.
type taskJob struct {
	claim  *TaskClaim
	cancel context.CancelCauseFunc
}

// run claims and handles tasks until taking ends, and then waits for the handlers.
func (w *taskWorker) run() error {
	held, err := w.held()
	switch {
	case err != nil && w.taking.Err() != nil: // it was stopped before it claimed a task
		return w.fault()
	case err != nil:
		return err
	}
	var slots, watch sync.WaitGroup
	watching, unwatch := context.WithCancel(w.settling)
	watch.Go(func() { w.watch(watching) })
	defer watch.Wait()
	defer unwatch()
	for range w.o.Concurrency {
		slots.Go(func() { w.slot(held) })
	}
	done := make(chan struct{})
	go func() {
		slots.Wait()
		close(done)
	}()
	<-w.taking.Done()
	drained := time.NewTimer(w.o.DrainTimeout)
	defer drained.Stop()
	select {
	case <-done:
		return w.fault()
	case <-drained.C:
	}
	w.cancel(ErrStopped)
	drained.Reset(stopGrace)
	select {
	case <-done:
		return w.fault()
	case <-drained.C:
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	err = fmt.Errorf("stop working: %d tasks were not settled within %v", len(w.jobs), w.o.DrainTimeout+stopGrace)
	return errors.Join(w.failed, err)
}

// held returns the ids of the tasks that the agent already holds, if the worker is to resume them. It
// also notes the revision after which watch begins.
func (w *taskWorker) held() (<-chan string, error) {
	var ids []string
	request := &pb.ListTasksRequest{
		Holder: w.client.identity.Agent, States: []pb.TaskState{pb.TaskState_TASK_STATE_CLAIMED}, OldestFirst: true, PageSize: 1000,
	}
	for more := true; more; {
		var page *pb.ListTasksResponse
		err := w.persist(w.taking, func(ctx context.Context) (err error) {
			page, err = w.client.Tasks().ListTasks(ctx, request, grpc.WaitForReady(true))
			return err
		})
		if err != nil {
			return nil, err
		}
		if request.GetPageToken() == "" {
			w.since = page.GetRevision()
		}
		for _, task := range page.GetTasks() {
			ids = append(ids, task.GetId())
		}
		request.PageToken = page.GetNextPageToken()
		more = w.o.Resume && request.GetPageToken() != ""
	}
	if !w.o.Resume {
		ids = nil
	}
	queue := make(chan string, len(ids))
	for _, id := range ids {
		queue <- id
	}
	close(queue)
	return queue, nil
}

// slot handles one task after the other.
func (w *taskWorker) slot(held <-chan string) {
	for id := range held {
		if w.taking.Err() != nil {
			return
		}
		w.take(&pb.ClaimTaskRequest{Id: id})
	}
	for w.taking.Err() == nil {
		w.take(&pb.ClaimTaskRequest{Labels: w.o.Labels, Wait: durationpb.New(claimWait)})
	}
}

// take claims a task, handles it and settles it.
func (w *taskWorker) take(r *pb.ClaimTaskRequest) {
	r.RequestId = requestID() // a repeated call returns the claim whose answer was lost
	var answer *pb.ClaimTaskResponse
	err := w.persist(w.taking, func(ctx context.Context) (err error) {
		answer, err = w.client.Tasks().ClaimTask(ctx, r, grpc.WaitForReady(true))
		return err
	})
	switch {
	case w.taking.Err() != nil && err != nil:
		w.undo(r)
	case r.GetId() != "" && strings.HasPrefix(Reason(err), "TASK_"): // it has changed since it was listed
	case err != nil:
		w.fail(err)
	case answer.GetTask() != nil:
		w.handle(&TaskClaim{
			Task: answer.GetTask(), Attempt: int(answer.GetAttempt()), Resumed: answer.GetResumed(),
			History: answer.GetHistory(), client: w.client,
		})
	}
}

// undo releases the task of a claim whose answer was lost because the worker stopped. A request that
// differs only in its wait is refused if the claim was made, and does not wait otherwise.
func (w *taskWorker) undo(r *pb.ClaimTaskRequest) {
	ctx, cancel := context.WithTimeout(w.settling, stopGrace)
	defer cancel()
	probe := proto.CloneOf(r)
	probe.Wait = nil
	answer, err := w.client.Tasks().ClaimTask(ctx, probe)
	if Reason(err) == "REQUEST_ID_REUSED" {
		answer, err = w.client.Tasks().ClaimTask(ctx, r)
	}
	if err == nil && answer.GetTask() != nil && !answer.GetResumed() {
		w.settle(&TaskClaim{Task: answer.GetTask(), client: w.client}, Release(nil))
	}
}

// handle runs the handler on one claim, keeps the claim meanwhile, and settles it.
func (w *taskWorker) handle(c *TaskClaim) {
	ctx, cancel := context.WithCancelCause(w.handling)
	defer cancel(nil)
	w.mu.Lock()
	w.jobs[c.Task.GetId()] = &taskJob{c, cancel}
	w.mu.Unlock()
	var keeper sync.WaitGroup
	keeper.Go(func() { w.keep(ctx, c) })
	err := w.handler(ctx, c)
	cause := context.Cause(ctx)
	cancel(nil)
	keeper.Wait()
	if err != nil && errors.Is(cause, ErrStopped) {
		err = Release(err)
	}
	if w.fault() == nil && (err == nil || !errors.Is(cause, ErrClaimLost)) {
		w.settle(c, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.jobs, c.Task.GetId())
}

// keep restarts the stale_after of a task until ctx ends. The open stream of watch keeps the lease.
func (w *taskWorker) keep(ctx context.Context, c *TaskClaim) {
	stale := c.Task.GetStaleAfter().AsDuration()
	if stale <= 0 {
		return
	}
	ticker := time.NewTicker(stale / 3)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		_, err := w.client.Tasks().UpdateTask(ctx, c.update())
		if err != nil && !transient(err) && ctx.Err() == nil {
			w.lose(c.Task.GetId(), err)
		}
	}
}

// watch follows the events that end claims, and cancels the handlers of lost claims at once.
func (w *taskWorker) watch(ctx context.Context) {
	filter := &pb.EventFilter{Types: lossEvents}
	for e, err := range w.client.FollowEvents(ctx, EventOptions{After: w.since, Filter: filter}) {
		if err != nil {
			w.fail(err)
			return
		}
		w.mu.Lock()
		j := w.jobs[e.GetTaskId()]
		w.mu.Unlock()
		if j == nil {
			continue
		}
		var answer *pb.GetTaskResponse
		err = w.persist(ctx, func(ctx context.Context) (err error) {
			answer, err = w.client.Tasks().GetTask(ctx, &pb.GetTaskRequest{Id: e.GetTaskId()})
			return err
		})
		if err == nil && answer.GetTask().GetFence() != j.claim.Task.GetFence() {
			w.lose(e.GetTaskId(), errors.New(e.GetSummary()))
		}
	}
}

// lose cancels the handler of a claim that has ended.
func (w *taskWorker) lose(task string, why error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if j := w.jobs[task]; j != nil {
		j.cancel(fmt.Errorf("%w: %w", ErrClaimLost, why))
	}
}

// settle reports the outcome of a task to the broker until it accepts or refuses it.
func (w *taskWorker) settle(c *TaskClaim, outcome error) {
	id, task, fence, calls := requestID(), c.Task.GetId(), c.Task.GetFence(), w.client.Tasks()
	var v *verdict
	err := w.persist(w.settling, func(ctx context.Context) (err error) {
		switch ready := grpc.WaitForReady(true); {
		case outcome == nil:
			_, err = calls.CompleteTask(ctx, &pb.CompleteTaskRequest{
				RequestId: id, Id: task, Fence: fence, Result: c.Result, Artifacts: c.Artifacts,
			}, ready)
		case errors.Is(outcome, errRelease):
			_, err = calls.ReleaseTask(ctx, &pb.ReleaseTaskRequest{
				RequestId: id, Id: task, Fence: fence, Reason: errorText(outcome),
			}, ready)
		default:
			_, err = calls.FailTask(ctx, &pb.FailTaskRequest{
				RequestId: id, Id: task, Fence: fence, Error: errorText(outcome),
				Fatal: errors.As(outcome, &v) && v.fatal,
			}, ready)
		}
		return err
	})
	if err != nil && w.settling.Err() == nil && w.o.OnLost != nil {
		w.o.OnLost(c, err)
	}
}

// persist makes a call again while its error is transient and ctx has not ended.
func (w *taskWorker) persist(ctx context.Context, call func(context.Context) error) error {
	r := retry{link: w.client.link}
	for {
		err := call(ctx)
		if err == nil || !transient(err) || !r.wait(ctx, err) {
			return err
		}
	}
}

// fail ends the worker with an error that no retry heals.
func (w *taskWorker) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed == nil && w.taking.Err() == nil {
		w.failed = err
		w.stopTaking()
		w.cancel(fmt.Errorf("%w: %w", ErrClaimLost, err))
	}
}

func (w *taskWorker) fault() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failed
}

// requestID returns an id of version 7. The broker's index of request ids grows at its end with such
// ids; random ids cost more.
func requestID() string { return uuid.Must(uuid.NewV7()).String() }

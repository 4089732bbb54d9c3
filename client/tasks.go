package client

import (
	"context"
	"fmt"
	"time"

	pb "brokerd/gen/brokerd/v1"
)

// Tasks returns the stub of TaskService; WorkTasks claims tasks and settles them by itself.
func (c *Client) Tasks() pb.TaskServiceClient { return pb.NewTaskServiceClient(c.calls) }

// TaskOptions select tasks and bound the work on them. The zero value takes one task at a time, of
// all that the agent may claim.
type TaskOptions struct {
	// Labels that a task must have.
	Labels map[string]string
	// Concurrency is how many handlers run at the same time; 0 = 1, at most 1,000.
	Concurrency int
	// Resume begins with the tasks that the agent holds already. Set it only if no other worker acts
	// as the same agent.
	Resume bool
	// DrainTimeout is how long handlers may continue once ctx has ended; 0 = DefaultDrainTimeout. Then
	// WorkTasks cancels their contexts.
	DrainTimeout time.Duration
	// OnLost, if set, receives the claims whose outcome the broker refused, because they had ended
	// before. WorkTasks calls it concurrently with handlers; it must return quickly.
	OnLost func(c *TaskClaim, err error)
}

// A TaskClaim is a task that a handler works on. The handler owns it until it returns.
type TaskClaim struct {
	Task    *pb.Task // as it was when the worker claimed it
	Attempt int      // from 1
	Resumed bool     // the agent held the task before this worker started
	History []*pb.TaskAttempt

	// The outcome that the broker keeps with the task if the handler returns nil.
	Result    string
	Artifacts []string

	client *Client
}

// Report sets the progress, 0 to 1, and the note of the task; an empty note leaves the last one. It
// fails with FAILED_PRECONDITION (TASK_LOST) if the claim has ended.
func (c *TaskClaim) Report(ctx context.Context, progress float64, note string) error {
	r := c.update()
	r.Progress = &progress
	if note != "" {
		r.Note = &note
	}
	_, err := c.client.Tasks().UpdateTask(ctx, r)
	return err
}

func (c *TaskClaim) update() *pb.UpdateTaskRequest {
	return &pb.UpdateTaskRequest{Id: c.Task.GetId(), Fence: c.Task.GetFence()}
}

// A TaskHandler works on one task. Its result decides what becomes of the task: nil completes it,
// Release(…) returns it without a counted attempt, Fatal(…) fails it for good, and any other error
// is a failed attempt, which the broker retries after a backoff (RetryAfter does not change that).
// ctx is cancelled when the claim is lost (cause ErrClaimLost) or the worker has to stop (cause
// ErrStopped); an error returned after the latter releases the task.
type TaskHandler func(ctx context.Context, c *TaskClaim) error

// WorkTasks claims tasks and runs handler for each, until ctx ends. Handlers run in separate
// goroutines, at most Concurrency at the same time. Meanwhile, WorkTasks keeps the agent's lease and
// the claims: no claim ends because the handler does not report. While the broker cannot be reached,
// handlers continue; WorkTasks reconnects, and settles each task once.
//
// When ctx ends, WorkTasks claims no further task, waits for the handlers as long as DrainTimeout
// permits, settles their tasks, and returns nil. It also ends with an error that a retry does not
// heal, such as FAILED_PRECONDITION for an agent that is not registered, and cancels the handlers'
// contexts.
func (c *Client) WorkTasks(ctx context.Context, o TaskOptions, handler TaskHandler) error {
	o.Concurrency = max(o.Concurrency, 1)
	if o.Concurrency > maxInFlight {
		return fmt.Errorf("work on tasks: Concurrency is %d; %d is allowed", o.Concurrency, maxInFlight)
	}
	if o.DrainTimeout <= 0 {
		o.DrainTimeout = DefaultDrainTimeout
	}
	w := &taskWorker{client: c, o: o, handler: handler, jobs: map[string]*taskJob{}}
	w.taking, w.stopTaking = context.WithCancel(ctx)
	defer w.stopTaking()
	w.handling, w.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	defer w.cancel(nil)
	var stop context.CancelFunc
	w.settling, stop = context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	return w.run()
}

package crashtest_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
)

const (
	boardSession = "board" // of the tasks that several workers work through
	boardWorkers = 4
	boardBacklog = 60 // unfinished tasks at which the planner pauses
)

func registerBoard(ctx context.Context, d *daemon) error {
	_, err := d.sessions.CreateSession(ctx, &pb.CreateSessionRequest{Name: boardSession, Settings: &pb.SessionSettings{
		SendRate: proto.Float64(0), StaleAfter: durationpb.New(0),
	}})
	for i := range boardWorkers {
		if err == nil {
			_, err = d.agents.RegisterAgent(onBoard(ctx, boardWorker(i)), &pb.RegisterAgentRequest{Lease: durationpb.New(24 * time.Hour)})
		}
	}
	return err
}

func boardWorker(i int) string { return fmt.Sprintf("worker-%d", i) }

// onBoard is for calls of an agent, or of an operator if that is empty.
func onBoard(ctx context.Context, agent string) context.Context {
	if agent != "" {
		ctx = as(ctx, agent)
	}
	return metadata.AppendToOutgoingContext(ctx, "brokerd-session", boardSession)
}

// A board is what the planner and the workers know of the tasks.
type board struct {
	record *record

	mu    sync.Mutex // guards tasks
	tasks map[string]*boardTask
	order []string // ids of the tasks
}

// A boardTask is a task that the planner has asked for.
type boardTask struct {
	needs []string
	asked bool   // a worker has asked to complete it
	done  string // the worker that has completed it, confirmed
	fence int64  // of the newest claim that a worker knows
}

func newBoard(r *record) *board { return &board{record: r, tasks: map[string]*boardTask{}} }

// claimed notes a claim. All that the task needs must be done, and fences must grow.
func (b *board) claimed(worker string, t *pb.Task, resumed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	known := b.tasks[t.GetId()]
	switch {
	case known == nil:
		b.record.wrong("%s was granted %v, which the planner has not created", worker, t)
		return
	case known.done != "":
		b.record.wrong("%s was granted %s, which %s has completed", worker, t.GetId(), known.done)
	case t.GetFence() < known.fence, t.GetFence() == known.fence && !resumed:
		b.record.wrong("%s was granted %s with fence %d after fence %d", worker, t.GetId(), t.GetFence(), known.fence)
	}
	for _, need := range known.needs {
		if !b.tasks[need].asked {
			b.record.wrong("%s was granted %s before %s is done", worker, t.GetId(), need)
		}
	}
	known.fence = t.GetFence()
}

// asked notes that a worker is about to complete a task.
func (b *board) asked(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tasks[id].asked = true
}

// completed notes a confirmed completion.
func (b *board) completed(worker, id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if by := b.tasks[id].done; by != "" {
		b.record.wrong("%s and %s have both completed %s", by, worker, id)
	}
	b.tasks[id].done = worker
}

// backlog returns how many tasks are not known to be done.
func (b *board) backlog() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for _, t := range b.tasks {
		if t.done == "" {
			n++
		}
	}
	return n
}

// A planner creates tasks that depend on each other.
type planner struct {
	*board
	random *rand.Rand
	number int
	open   *pb.CreateTasksRequest // without an answer
}

func (p *planner) makeUp(ctx context.Context, d *daemon) error {
	if p.open == nil {
		return nil
	}
	_, err := d.tasks.CreateTasks(onBoard(ctx, ""), p.open)
	if err == nil {
		p.open = nil
	}
	return err
}

func (p *planner) load(ctx context.Context, d *daemon) error {
	for ctx.Err() == nil {
		if err := p.makeUp(ctx, d); err != nil {
			return err
		}
		if p.backlog() < boardBacklog {
			p.open = p.plan()
		}
		breathe(ctx, p.random)
	}
	return ctx.Err()
}

// plan is a call for a few tasks; each may need others of the call and before it.
func (p *planner) plan() *pb.CreateTasksRequest {
	p.mu.Lock()
	defer p.mu.Unlock()
	request := &pb.CreateTasksRequest{RequestId: requestID()}
	for range 1 + p.random.IntN(5) {
		p.number++
		t := &pb.NewTask{Id: fmt.Sprintf("task-%d", p.number), Title: "a task", Priority: int32(1 + p.random.IntN(10)), MaxAttempts: 100}
		for range min(p.random.IntN(3), len(p.order)) {
			need := p.order[max(0, len(p.order)-1-p.random.IntN(20))]
			if !slices.Contains(t.DependsOn, need) {
				t.DependsOn = append(t.DependsOn, need)
			}
		}
		request.Tasks = append(request.Tasks, t)
		p.tasks[t.Id] = &boardTask{needs: t.DependsOn}
		p.order = append(p.order, t.Id)
	}
	return request
}

// A taskWorker claims tasks and completes them, after it has failed or released some.
type taskWorker struct {
	*board
	name   string
	random *rand.Rand
	open   job // without an answer
}

func (w *taskWorker) makeUp(ctx context.Context, d *daemon) error {
	if w.open == nil {
		return nil
	}
	err := w.open(onBoard(ctx, w.name), d)
	if err == nil {
		w.open = nil
	}
	return err
}

func (w *taskWorker) load(ctx context.Context, d *daemon) error {
	for {
		if err := w.makeUp(ctx, d); err != nil {
			return err
		}
		if _, err := w.work(ctx, d, 200*time.Millisecond); err != nil {
			return err
		}
	}
}

// work claims a task and settles it. It returns false if there was none.
func (w *taskWorker) work(ctx context.Context, d *daemon, wait time.Duration) (bool, error) {
	got, err := d.tasks.ClaimTask(onBoard(ctx, w.name), &pb.ClaimTaskRequest{Resume: true, Wait: durationpb.New(wait)})
	if err != nil || got.GetTask() == nil {
		return false, err
	}
	w.claimed(w.name, got.GetTask(), got.GetResumed())
	w.open = w.settle(got.GetTask())
	return true, w.makeUp(ctx, d)
}

func (w *taskWorker) settle(t *pb.Task) job {
	request := requestID()
	switch w.random.IntN(20) {
	case 0:
		return func(ctx context.Context, d *daemon) error {
			_, err := d.tasks.FailTask(ctx, &pb.FailTaskRequest{RequestId: request, Id: t.GetId(), Fence: t.GetFence(), Error: "no luck"})
			return err
		}
	case 1:
		return func(ctx context.Context, d *daemon) error {
			_, err := d.tasks.ReleaseTask(ctx, &pb.ReleaseTaskRequest{RequestId: request, Id: t.GetId(), Fence: t.GetFence()})
			return err
		}
	case 2:
		progress := w.random.Float64()
		return func(ctx context.Context, d *daemon) error {
			_, err := d.tasks.UpdateTask(ctx, &pb.UpdateTaskRequest{
				RequestId: request, Id: t.GetId(), Fence: t.GetFence(), Progress: &progress,
			})
			return err
		}
	}
	w.asked(t.GetId())
	return func(ctx context.Context, d *daemon) error {
		_, err := d.tasks.CompleteTask(ctx, &pb.CompleteTaskRequest{RequestId: request, Id: t.GetId(), Fence: t.GetFence(), Result: w.name})
		if err == nil {
			w.completed(w.name, t.GetId())
		}
		return err
	}
}

// verify works through what is left, and compares the tasks and their events with the board.
func (b *board) verify(ctx context.Context, d *daemon, workers []*taskWorker) error {
	unfinished := func() (int32, error) {
		page, err := d.tasks.ListTasks(onBoard(ctx, ""), &pb.ListTasksRequest{PageSize: 1, States: []pb.TaskState{
			pb.TaskState_TASK_STATE_WAITING, pb.TaskState_TASK_STATE_READY, pb.TaskState_TASK_STATE_CLAIMED, pb.TaskState_TASK_STATE_BLOCKED,
		}})
		return int32(len(page.GetTasks())), err
	}
	for {
		left, err := unfinished()
		if err != nil {
			return err
		}
		if left == 0 {
			break
		}
		for _, w := range workers {
			if _, err := w.work(ctx, d, time.Second); err != nil {
				return err
			}
		}
	}
	found := map[string]*pb.Task{}
	for request := (&pb.ListTasksRequest{PageSize: 1000}); ; {
		page, err := d.tasks.ListTasks(onBoard(ctx, ""), request)
		if err != nil {
			return err
		}
		for _, t := range page.GetTasks() {
			found[t.GetId()] = t
		}
		if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
			break
		}
	}
	completions := map[string]int{}
	err := listEvents(onBoard(ctx, ""), d, func(e *pb.Event) {
		if e.GetType() == "task.completed" {
			completions[e.GetTaskId()]++
		}
	})
	for id, known := range b.tasks {
		t := found[id]
		if t.GetState() != pb.TaskState_TASK_STATE_DONE || t.GetHolder() != known.done || completions[id] != 1 {
			b.record.wrong("%s was completed by %q, and is completed %d times: %v", id, known.done, completions[id], t)
		}
	}
	if len(found) != len(b.tasks) {
		b.record.wrong("there are %d tasks, and %d were created", len(found), len(b.tasks))
	}
	return err
}

package blockers_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
)

// claim creates a task and claims it.
func (a *actor) claim(id string) {
	a.t.Helper()
	_, err := a.tasks.CreateTasks(a.ctx, &pb.CreateTasksRequest{Tasks: []*pb.NewTask{{Id: id, Title: "Login page"}}})
	must(a.t, err)
	_, err = a.tasks.ClaimTask(a.ctx, &pb.ClaimTaskRequest{Id: id})
	must(a.t, err)
}

// wantTask checks the state of a task.
func (a *actor) wantTask(id string, want pb.TaskState) {
	a.t.Helper()
	out, err := a.tasks.GetTask(a.ctx, &pb.GetTaskRequest{Id: id})
	must(a.t, err)
	if out.Task.State != want {
		a.t.Errorf("task %s is %v, want %v", id, out.Task.State, want)
	}
}

func TestTask_IsBlockedUntilTheLastOfItsBlockersIsResolved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "builder")
	a.claim("t1")
	first, second := a.raise(&pb.RaiseBlockerRequest{TaskId: "t1"}), a.raise(&pb.RaiseBlockerRequest{TaskId: "t1"})
	if !first.TaskBlocked || !second.TaskBlocked {
		t.Errorf("raised %v and %v", first, second)
	}
	a.wantTask("t1", pb.TaskState_TASK_STATE_BLOCKED)
	a.resolve(first.Id, "")
	a.wantTask("t1", pb.TaskState_TASK_STATE_BLOCKED)
	a.resolve(second.Id, "")
	a.wantTask("t1", pb.TaskState_TASK_STATE_CLAIMED)
}

func TestTask_OfAnotherHolderIsBlockedByAnOperatorOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b, o := w.agent("a", "builder"), w.agent("b", "builder"), w.operator()
	a.claim("t1")
	if x := b.raise(&pb.RaiseBlockerRequest{TaskId: "t1"}); x.TaskBlocked {
		t.Errorf("another agent has blocked it: %v", x)
	}
	a.wantTask("t1", pb.TaskState_TASK_STATE_CLAIMED)
	x := o.raise(&pb.RaiseBlockerRequest{TaskId: "t1"})
	a.wantTask("t1", pb.TaskState_TASK_STATE_BLOCKED)
	b.resolve(x.Id, "")
	a.wantTask("t1", pb.TaskState_TASK_STATE_CLAIMED)
}

func TestTask_ThatIsAwaitedResolvesTheBlockerWhenItIsDone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.agent("a", "builder"), w.agent("b", "builder")
	b.claim("schema")
	in := &pb.RaiseBlockerRequest{AutoResolve: true, Awaited: &pb.AwaitedObject{Object: &pb.AwaitedObject_TaskId{TaskId: "schema"}}}
	x := a.raise(in)
	_, err := b.tasks.CompleteTask(b.ctx, &pb.CompleteTaskRequest{Id: "schema"})
	must(t, err)
	if got := a.get(x.Id); got.State != pb.BlockerState_BLOCKER_STATE_RESOLVED || got.Resolution != "the task schema is done" {
		t.Errorf("got %v", got)
	}
	if again := a.raise(in); again.State != pb.BlockerState_BLOCKER_STATE_RESOLVED {
		t.Errorf("a blocker for a task that is done: %v", again)
	}
}

func TestTask_OfADeregisteredAgentIsReadyAndItsBlockerResolved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.agent("a", "builder"), w.agent("b", "builder")
	a.claim("t1")
	x := a.raise(&pb.RaiseBlockerRequest{TaskId: "t1"})
	_, err := a.registry.DeregisterAgent(a.ctx, &pb.DeregisterAgentRequest{})
	must(t, err)
	b.wantTask("t1", pb.TaskState_TASK_STATE_READY)
	out, err := b.tasks.GetTask(b.ctx, &pb.GetTaskRequest{Id: "t1"})
	must(t, err)
	if out.Task.Error != "its holder a has deregistered" {
		t.Errorf("the attempt ended with %q", out.Task.Error)
	}
	if got := b.get(x.Id); got.State != pb.BlockerState_BLOCKER_STATE_RESOLVED {
		t.Errorf("got %v", got)
	}
}

func TestTask_NamesTheBlockersThatCarryItsID(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "builder")
	a.claim("t1")
	first, second := a.raise(&pb.RaiseBlockerRequest{TaskId: "t1"}), a.raise(&pb.RaiseBlockerRequest{TaskId: "t1", Reason: "no time"})
	a.raise(&pb.RaiseBlockerRequest{})
	out, err := a.tasks.GetTask(a.ctx, &pb.GetTaskRequest{Id: "t1", View: pb.TaskView_TASK_VIEW_FULL})
	must(t, err)
	var ids []string
	for _, r := range out.References {
		if r.Kind == "blocker" {
			ids = append(ids, r.Id+" "+r.Title)
		}
	}
	if d := cmp.Diff([]string{second.Id + " no time", first.Id + " no credentials"}, ids); d != "" {
		t.Error(d)
	}
}

func TestTask_StaysBlockedWhileABlockerIsNotResolved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "builder")
	a.claim("t1")
	first, second := a.raise(&pb.RaiseBlockerRequest{TaskId: "t1"}), a.raise(&pb.RaiseBlockerRequest{TaskId: "t1"})
	unblock := func() error {
		_, err := a.tasks.UpdateTask(a.ctx, &pb.UpdateTaskRequest{Id: "t1", BlockChange: &pb.UpdateTaskRequest_Unblock{Unblock: true}})
		return err
	}
	err := unblock()
	refused(t, err, codes.FailedPrecondition, "TASK_BLOCKED")
	if text := `task "t1" stays blocked until the blockers ` + first.Id + ", " + second.Id + " are resolved"; !strings.Contains(status.Convert(err).Message(), text) {
		t.Errorf("got %v, want %s", err, text)
	}
	a.wantTask("t1", pb.TaskState_TASK_STATE_BLOCKED)
	a.resolve(first.Id, "")
	refused(t, unblock(), codes.FailedPrecondition, "TASK_BLOCKED")
	a.resolve(second.Id, "")
	events, err := a.events.ListEvents(a.ctx, &pb.ListEventsRequest{Filter: &pb.EventFilter{Types: []string{"blocker.resolved"}}})
	must(t, err)
	if len(events.Events) != 2 || !strings.HasPrefix(events.Events[0].Summary, "a has resolved its own blocker after ") {
		t.Errorf("events %v", events.Events)
	}
	_, err = a.tasks.UpdateTask(a.ctx, &pb.UpdateTaskRequest{Id: "t1", BlockChange: &pb.UpdateTaskRequest_Block{Block: "tired"}})
	must(t, err)
	must(t, unblock()) // blocked by its holder alone
}

func TestTask_ThatEndsIsNoLongerBlocked(t *testing.T) {
	t.Parallel()
	ends := map[string]func(a *actor) error{
		"complete": func(a *actor) error {
			_, err := a.tasks.CompleteTask(a.ctx, &pb.CompleteTaskRequest{Id: "t1"})
			return err
		},
		"fail": func(a *actor) error {
			_, err := a.tasks.FailTask(a.ctx, &pb.FailTaskRequest{Id: "t1", Error: "no key"})
			return err
		},
		"release": func(a *actor) error {
			_, err := a.tasks.ReleaseTask(a.ctx, &pb.ReleaseTaskRequest{Id: "t1"})
			return err
		},
		"cancel": func(a *actor) error {
			_, err := a.tasks.CancelTask(a.ctx, &pb.CancelTaskRequest{Id: "t1"})
			return err
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			a, b := w.agent("a", "builder"), w.agent("b", "builder")
			a.claim("t1")
			x := a.raise(&pb.RaiseBlockerRequest{TaskId: "t1"})
			must(t, end(a))
			if got := a.get(x.Id); got.TaskBlocked || got.State != pb.BlockerState_BLOCKER_STATE_OPEN {
				t.Errorf("after the end of the claim: %v", got)
			}
			if name != "release" {
				return
			}
			_, err := b.tasks.ClaimTask(b.ctx, &pb.ClaimTaskRequest{Id: "t1"})
			must(t, err)
			_, err = b.tasks.UpdateTask(b.ctx, &pb.UpdateTaskRequest{Id: "t1", BlockChange: &pb.UpdateTaskRequest_Block{Block: "tired"}})
			must(t, err)
			a.resolve(x.Id, "") // not the reason of b
			b.wantTask("t1", pb.TaskState_TASK_STATE_BLOCKED)
		})
	}
}

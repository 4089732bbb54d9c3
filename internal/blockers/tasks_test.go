package blockers_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// claim creates a task and claims it.
func claim(a *apptest.Actor, id string) {
	a.Helper()
	apptest.Must(a, a.CreateTasks, &pb.CreateTasksRequest{Tasks: []*pb.NewTask{{Id: id, Title: "Login page"}}})
	apptest.Must(a, a.ClaimTask, &pb.ClaimTaskRequest{Id: id})
}

// wantTask checks the state of a task.
func wantTask(a *apptest.Actor, id string, want pb.TaskState) {
	a.Helper()
	out := apptest.Must(a, a.GetTask, &pb.GetTaskRequest{Id: id})
	if out.Task.State != want {
		a.Errorf("task %s is %v, want %v", id, out.Task.State, want)
	}
}

func TestTask_IsBlockedUntilTheLastOfItsBlockersIsResolved(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a := w.Agent("a", "builder")
	claim(a, "t1")
	first, second := raise(a, &pb.RaiseBlockerRequest{TaskId: "t1"}), raise(a, &pb.RaiseBlockerRequest{TaskId: "t1"})
	if !first.TaskBlocked || !second.TaskBlocked {
		t.Errorf("raised %v and %v", first, second)
	}
	wantTask(a, "t1", pb.TaskState_TASK_STATE_BLOCKED)
	resolve(a, first.Id, "")
	wantTask(a, "t1", pb.TaskState_TASK_STATE_BLOCKED)
	resolve(a, second.Id, "")
	wantTask(a, "t1", pb.TaskState_TASK_STATE_CLAIMED)
}

func TestTask_OfAnotherHolderIsBlockedByAnOperatorOnly(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a, b, o := w.Agent("a", "builder"), w.Agent("b", "builder"), w.Root()
	claim(a, "t1")
	if x := raise(b, &pb.RaiseBlockerRequest{TaskId: "t1"}); x.TaskBlocked {
		t.Errorf("another agent has blocked it: %v", x)
	}
	wantTask(a, "t1", pb.TaskState_TASK_STATE_CLAIMED)
	x := raise(o, &pb.RaiseBlockerRequest{TaskId: "t1"})
	wantTask(a, "t1", pb.TaskState_TASK_STATE_BLOCKED)
	resolve(b, x.Id, "")
	wantTask(a, "t1", pb.TaskState_TASK_STATE_CLAIMED)
}

func TestTask_ThatIsAwaitedResolvesTheBlockerWhenItIsDone(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a, b := w.Agent("a", "builder"), w.Agent("b", "builder")
	claim(b, "schema")
	in := &pb.RaiseBlockerRequest{AutoResolve: true, Awaited: &pb.AwaitedObject{Object: &pb.AwaitedObject_TaskId{TaskId: "schema"}}}
	x := raise(a, in)
	apptest.Must(t, b.CompleteTask, &pb.CompleteTaskRequest{Id: "schema"})
	if got := get(a, x.Id); got.State != pb.BlockerState_BLOCKER_STATE_RESOLVED || got.Resolution != "the task schema is done" {
		t.Errorf("got %v", got)
	}
	if again := raise(a, in); again.State != pb.BlockerState_BLOCKER_STATE_RESOLVED {
		t.Errorf("a blocker for a task that is done: %v", again)
	}
}

func TestTask_OfADeregisteredAgentIsReadyAndItsBlockerResolved(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a, b := w.Agent("a", "builder"), w.Agent("b", "builder")
	claim(a, "t1")
	x := raise(a, &pb.RaiseBlockerRequest{TaskId: "t1"})
	apptest.Must(t, a.DeregisterAgent, &pb.DeregisterAgentRequest{})
	wantTask(b, "t1", pb.TaskState_TASK_STATE_READY)
	out := apptest.Must(t, b.GetTask, &pb.GetTaskRequest{Id: "t1"})
	if out.Task.Error != "its holder a has deregistered" {
		t.Errorf("the attempt ended with %q", out.Task.Error)
	}
	if got := get(b, x.Id); got.State != pb.BlockerState_BLOCKER_STATE_RESOLVED {
		t.Errorf("got %v", got)
	}
}

func TestTask_NamesTheBlockersThatCarryItsID(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a := w.Agent("a", "builder")
	claim(a, "t1")
	first, second := raise(a, &pb.RaiseBlockerRequest{TaskId: "t1"}), raise(a, &pb.RaiseBlockerRequest{TaskId: "t1", Reason: "no time"})
	raise(a, &pb.RaiseBlockerRequest{})
	out := apptest.Must(t, a.GetTask, &pb.GetTaskRequest{Id: "t1", View: pb.TaskView_TASK_VIEW_FULL})
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
	w := apptest.Start(t, apptest.WithFakeClock())
	a := w.Agent("a", "builder")
	claim(a, "t1")
	first, second := raise(a, &pb.RaiseBlockerRequest{TaskId: "t1"}), raise(a, &pb.RaiseBlockerRequest{TaskId: "t1"})
	unblock := func() error {
		return apptest.Err(a.UpdateTask(a.Ctx, &pb.UpdateTaskRequest{Id: "t1", BlockChange: &pb.UpdateTaskRequest_Unblock{Unblock: true}}))
	}
	err := unblock()
	apptest.Refused(t, err, codes.FailedPrecondition, "TASK_BLOCKED")
	if text := `task "t1" stays blocked until the blockers ` + first.Id + ", " + second.Id + " are resolved"; !strings.Contains(status.Convert(err).Message(), text) {
		t.Errorf("got %v, want %s", err, text)
	}
	wantTask(a, "t1", pb.TaskState_TASK_STATE_BLOCKED)
	resolve(a, first.Id, "")
	apptest.Refused(t, unblock(), codes.FailedPrecondition, "TASK_BLOCKED")
	resolve(a, second.Id, "")
	events := apptest.Must(t, a.ListEvents, &pb.ListEventsRequest{Filter: &pb.EventFilter{Types: []string{"blocker.resolved"}}})
	if len(events.Events) != 2 || !strings.HasPrefix(events.Events[0].Summary, "a has resolved its own blocker after ") {
		t.Errorf("events %v", events.Events)
	}
	apptest.Must(t, a.UpdateTask, &pb.UpdateTaskRequest{Id: "t1", BlockChange: &pb.UpdateTaskRequest_Block{Block: "tired"}})
	apptest.NoError(t, unblock()) // blocked by its holder alone
}

func TestTask_ThatEndsIsNoLongerBlocked(t *testing.T) {
	t.Parallel()
	ends := map[string]func(a *apptest.Actor) error{
		"complete": func(a *apptest.Actor) error {
			return apptest.Err(a.CompleteTask(a.Ctx, &pb.CompleteTaskRequest{Id: "t1"}))
		},
		"fail": func(a *apptest.Actor) error {
			return apptest.Err(a.FailTask(a.Ctx, &pb.FailTaskRequest{Id: "t1", Error: "no key"}))
		},
		"release": func(a *apptest.Actor) error {
			return apptest.Err(a.ReleaseTask(a.Ctx, &pb.ReleaseTaskRequest{Id: "t1"}))
		},
		"cancel": func(a *apptest.Actor) error {
			return apptest.Err(a.CancelTask(a.Ctx, &pb.CancelTaskRequest{Id: "t1"}))
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			w := apptest.Start(t, apptest.WithFakeClock())
			a, b := w.Agent("a", "builder"), w.Agent("b", "builder")
			claim(a, "t1")
			x := raise(a, &pb.RaiseBlockerRequest{TaskId: "t1"})
			apptest.NoError(t, end(a))
			if got := get(a, x.Id); got.TaskBlocked || got.State != pb.BlockerState_BLOCKER_STATE_OPEN {
				t.Errorf("after the end of the claim: %v", got)
			}
			if name != "release" {
				return
			}
			apptest.Must(t, b.ClaimTask, &pb.ClaimTaskRequest{Id: "t1"})
			apptest.Must(t, b.UpdateTask, &pb.UpdateTaskRequest{Id: "t1", BlockChange: &pb.UpdateTaskRequest_Block{Block: "tired"}})
			resolve(a, x.Id, "") // not the reason of b
			wantTask(b, "t1", pb.TaskState_TASK_STATE_BLOCKED)
		})
	}
}

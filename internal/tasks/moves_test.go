package tasks_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/tasks"
)

// TestTask_EachStatePermitsTheCallsOfItsMoves makes each call in each state, by an agent that is the creator, the
// assignee and the holder.
func TestTask_EachStatePermitsTheCallsOfItsMoves(t *testing.T) {
	t.Parallel()
	a := newDaemon(t).agent("a")
	create(a, "need")
	update := func(change func(in *pb.UpdateTaskRequest)) func(id string) error {
		return func(id string) error {
			in := &pb.UpdateTaskRequest{Id: id}
			change(in)
			return apptest.Err(a.UpdateTask(a.Ctx, in))
		}
	}
	block := update(func(in *pb.UpdateTaskRequest) { in.BlockChange = &pb.UpdateTaskRequest_Block{Block: "why"} })
	calls := map[string]struct {
		make    func(id string) error
		refusal string
	}{
		"claim": {func(id string) error {
			return apptest.Err(a.ClaimTask(a.Ctx, &pb.ClaimTaskRequest{Id: id}))
		}, "TASK_FINISHED"},
		"report": {update(func(in *pb.UpdateTaskRequest) { in.Progress = proto.Float64(0.5) }), "TASK_LOST"},
		"block":  {block, "TASK_LOST"},
		"unblock": {update(func(in *pb.UpdateTaskRequest) {
			in.BlockChange = &pb.UpdateTaskRequest_Unblock{Unblock: true}
		}), "TASK_LOST"},
		"describe": {update(func(in *pb.UpdateTaskRequest) { in.Title = proto.String("y") }), "TASK_FINISHED"},
		"complete": {func(id string) error {
			return apptest.Err(a.CompleteTask(a.Ctx, &pb.CompleteTaskRequest{Id: id}))
		}, "TASK_LOST"},
		"fail": {func(id string) error {
			return apptest.Err(a.FailTask(a.Ctx, &pb.FailTaskRequest{Id: id, Fatal: true}))
		}, "TASK_LOST"},
		"release": {func(id string) error {
			return apptest.Err(a.ReleaseTask(a.Ctx, &pb.ReleaseTaskRequest{Id: id}))
		}, "TASK_LOST"},
		"decline": {func(id string) error {
			return apptest.Err(a.ReleaseTask(a.Ctx, &pb.ReleaseTaskRequest{Id: id, Decline: true, Reason: "no"}))
		}, "TASK_FINISHED"},
		"cancel": {func(id string) error {
			return apptest.Err(a.CancelTask(a.Ctx, &pb.CancelTaskRequest{Id: id}))
		}, "TASK_FINISHED"},
		"retry": {func(id string) error {
			return apptest.Err(a.RetryTask(a.Ctx, &pb.RetryTaskRequest{Id: id}))
		}, "TASK_NOT_FAILED"},
	}
	others := map[pb.TaskState]map[string]string{ // refusals that depend on the state
		waiting: {"claim": "TASK_WAITING"}, claimed: {"unblock": "TASK_NOT_BLOCKED"},
	}
	take := func(id string) error { return calls["claim"].make(id) }
	for state, path := range map[pb.TaskState][]func(id string) error{
		waiting: nil, ready: nil, claimed: {take}, blocked: {take, block}, done: {take, calls["complete"].make},
		failed: {take, calls["fail"].make}, cancelled: {calls["cancel"].make},
	} {
		for name, call := range calls {
			id := name + "-" + state.String()
			n := &pb.NewTask{Id: id, Title: "x", Assignee: "a"}
			if state == waiting {
				n.DependsOn = []string{"need"}
			}
			createAll(a, n)
			for _, step := range path {
				apptest.NoError(t, step(id))
			}
			wantState(a, state, id)
			refusal := call.refusal
			if other := others[state][name]; other != "" {
				refusal = other
			}
			if tasks.Permits(state, name) {
				refusal = ""
			}
			refused(t, call.make(id), refusal)
		}
	}
}

package tasks_test

import (
	"fmt"
	"testing"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestTask_QueuesOfASessionAreLimitedForEveryCallThatAddsOne(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a, b := d.member("lead", "lead"), d.agent("a", "gone"), d.agent("b")
	mine := many("mine", 3, func(_ int, n *pb.NewTask) { n.Assignee = "a" })
	createAll(lead, append(mine, &pb.NewTask{Id: "failed", Title: "x", Capabilities: []string{"gone"}})...)
	take(a, "failed")
	fail(a, "failed", true)
	for page := range 10 { // with the queue of the assignee, 10,000
		createAll(lead, many(fmt.Sprint("t", page), 1000-page/9, func(i int, n *pb.NewTask) {
			n.Capabilities = []string{fmt.Sprintf("c-%d-%d", page, i)}
		})...)
	}
	take(a, "mine-001")
	offer := apptest.Must(t, a.CreateHandoff, &pb.CreateHandoffRequest{Title: "x", ToAgent: "b", TaskId: "mine-001", TransferTask: true})
	create := func(capability string) error {
		return apptest.Err(lead.CreateTasks(lead.Ctx, &pb.CreateTasksRequest{Tasks: []*pb.NewTask{{Title: "x", Capabilities: []string{capability}}}}))
	}
	calls := map[string]func() error{
		"create": func() error { return create("new") },
		"retry":  func() error { return apptest.Err(lead.RetryTask(lead.Ctx, &pb.RetryTaskRequest{Id: "failed"})) },
		"decline": func() error {
			return apptest.Err(a.ReleaseTask(a.Ctx, &pb.ReleaseTaskRequest{Id: "mine-002", Decline: true, Reason: "no"}))
		},
		"accept a handoff": func() error {
			return apptest.Err(b.AcceptHandoff(b.Ctx, &pb.AcceptHandoffRequest{Id: offer.GetHandoff().GetId()}))
		},
	}
	for name, call := range calls {
		t.Log(name)
		refused(t, call(), "TOO_MANY_QUEUES")
	}
	apptest.NoError(t, create("c-0-0")) // in a queue that exists
	want(t, "queues", d.number(`SELECT count(*) FROM task_queues`), 10_000)
	wantState(lead, failed, "failed")
	want(t, "the assignee of a task that was not declined", task(lead, "mine-002").GetAssignee(), "a")
	want(t, "the holder of a task that was not handed off", task(lead, "mine-001").GetHolder(), "a")
	for i := range len(calls) {
		apptest.Must(t, lead.CancelTask, &pb.CancelTaskRequest{Id: fmt.Sprintf("t1-%03d", i)})
	}
	for name, call := range calls {
		t.Log(name)
		apptest.NoError(t, call())
	}
	want(t, "queues", d.number(`SELECT count(*) FROM task_queues`), 10_000)
}

package tasks_test

import (
	"fmt"
	"testing"

	pb "brokerd/gen/brokerd/v1"
)

func TestTask_QueuesOfASessionAreLimitedForEveryCallThatAddsOne(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a, b := d.member("lead", "lead"), d.agent("a", "gone"), d.agent("b")
	mine := many("mine", 3, func(_ int, n *pb.NewTask) { n.Assignee = "a" })
	lead.createAll(append(mine, &pb.NewTask{Id: "failed", Title: "x", Capabilities: []string{"gone"}})...)
	a.take("failed")
	a.fail("failed", true)
	for page := range 10 { // with the queue of the assignee, 10,000
		lead.createAll(many(fmt.Sprint("t", page), 1000-page/9, func(i int, n *pb.NewTask) {
			n.Capabilities = []string{fmt.Sprintf("c-%d-%d", page, i)}
		})...)
	}
	a.take("mine-001")
	from, to := pb.NewHandoffServiceClient(d.In("default", "a")), pb.NewHandoffServiceClient(d.In("default", "b"))
	offer, err := from.CreateHandoff(a.ctx, &pb.CreateHandoffRequest{Title: "x", ToAgent: "b", TaskId: "mine-001", TransferTask: true})
	check(t, err)
	create := func(capability string) error {
		return drop(lead.CreateTasks(lead.ctx, &pb.CreateTasksRequest{Tasks: []*pb.NewTask{{Title: "x", Capabilities: []string{capability}}}}))
	}
	calls := map[string]func() error{
		"create": func() error { return create("new") },
		"retry":  func() error { return drop(lead.RetryTask(lead.ctx, &pb.RetryTaskRequest{Id: "failed"})) },
		"decline": func() error {
			return drop(a.ReleaseTask(a.ctx, &pb.ReleaseTaskRequest{Id: "mine-002", Decline: true, Reason: "no"}))
		},
		"accept a handoff": func() error {
			return drop(to.AcceptHandoff(b.ctx, &pb.AcceptHandoffRequest{Id: offer.GetHandoff().GetId()}))
		},
	}
	for name, call := range calls {
		t.Log(name)
		refused(t, call(), "TOO_MANY_QUEUES")
	}
	check(t, create("c-0-0")) // in a queue that exists
	want(t, "queues", d.number(`SELECT count(*) FROM task_queues`), 10_000)
	lead.state(failed, "failed")
	want(t, "the assignee of a task that was not declined", lead.task("mine-002").GetAssignee(), "a")
	want(t, "the holder of a task that was not handed off", lead.task("mine-001").GetHolder(), "a")
	for i := range len(calls) {
		check(t, drop(lead.CancelTask(lead.ctx, &pb.CancelTaskRequest{Id: fmt.Sprintf("t1-%03d", i)})))
	}
	for name, call := range calls {
		t.Log(name)
		check(t, call())
	}
	want(t, "queues", d.number(`SELECT count(*) FROM task_queues`), 10_000)
}

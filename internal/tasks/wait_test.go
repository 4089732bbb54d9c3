package tasks_test

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
)

// await begins a WaitTasks that waits.
func (d *daemon) await(a *agent, in *pb.WaitTasksRequest) <-chan outcome[*pb.WaitTasksResponse] {
	d.t.Helper()
	in.Wait = durationpb.New(longWait)
	ended, _ := begin(d, func(ctx context.Context) (*pb.WaitTasksResponse, error) { return a.WaitTasks(ctx, in) })
	return ended
}

// The outcomes of a wait, for tables.
const (
	allDone   = pb.WaitOutcome_WAIT_OUTCOME_DONE
	attention = pb.WaitOutcome_WAIT_OUTCOME_ATTENTION
	timedOut  = pb.WaitOutcome_WAIT_OUTCOME_TIMEOUT
)

func TestWaitTasks_EndsWithAllOrAnyOfThem(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a := d.member("lead", "lead"), d.agent("a")
	lead.create("t", "u")
	all := d.await(lead, &pb.WaitTasksRequest{TaskIds: []string{"t", "u"}, Agents: []string{"a"}})
	some := d.await(lead, &pb.WaitTasksRequest{TaskIds: []string{"t", "u"}, Mode: pb.WaitMode_WAIT_MODE_ANY})
	a.take("u")
	a.complete("u")
	got := <-some
	check(t, got.err)
	want(t, "the outcome of any", got.answer.GetOutcome(), allDone)
	want(t, "the state of u", got.answer.GetTasks()[1].GetState(), done)
	a.take("t")
	a.complete("t")
	status := pb.AgentStatus_AGENT_STATUS_COMPLETED
	check(t, drop(a.registry.Heartbeat(a.ctx, &pb.HeartbeatRequest{Status: status})))
	got = <-all
	check(t, got.err)
	want(t, "the outcome of all", got.answer.GetOutcome(), allDone)
	want(t, "completed agents", strings.Join(got.answer.GetCompletedAgents(), " "), "a")
}

func TestWaitTasks_ReturnsEarlyWhenATaskNeedsAttention(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a := d.member("lead", "lead"), d.agent("a")
	lead.create("t", "u")
	a.take("t")
	block := func(reason string) {
		check(t, drop(a.UpdateTask(a.ctx, &pb.UpdateTaskRequest{TaskId: "t", BlockChange: &pb.UpdateTaskRequest_Block{Block: reason}})))
	}
	after := int64(0)
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"blocked", func() { block("no key") }},
		{"unblocked", func() {
			check(t, drop(a.UpdateTask(a.ctx, &pb.UpdateTaskRequest{TaskId: "t", BlockChange: &pb.UpdateTaskRequest_Unblock{Unblock: true}})))
		}},
		{"failed", func() { a.fail("t", true) }},
	} {
		ended := d.await(lead, &pb.WaitTasksRequest{TaskIds: []string{"t", "u"}, AfterRevision: after})
		step.do()
		got := <-ended
		check(t, got.err)
		if got.answer.GetOutcome() != attention || strings.Join(got.answer.GetAttention(), " ") != "t" {
			t.Errorf("%s: %v", step.name, got.answer)
		}
		after = got.answer.GetRevision()
	}
	now, err := lead.WaitTasks(lead.ctx, &pb.WaitTasksRequest{TaskIds: []string{"t", "u"}})
	check(t, err)
	want(t, "a task that has failed before", now.GetOutcome(), attention)
	later := d.await(lead, &pb.WaitTasksRequest{TaskIds: []string{"t", "u"}, AfterRevision: after})
	d.Clock.Advance(longWait)
	want(t, "with nothing new", (<-later).answer.GetOutcome(), timedOut)
}

func TestWaitTasks_RefusesToWaitForOnesOwnWork(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a := d.member("lead", "lead"), d.agent("a")
	lead.create("root", "middle: root", "last: middle", "other")
	a.take("root")
	for id, says := range map[string]string{"root": "you hold task root", "last": "last → middle → root"} {
		_, err := a.WaitTasks(a.ctx, &pb.WaitTasksRequest{TaskIds: []string{"other", id}, Wait: durationpb.New(longWait)})
		refused(t, err, "WOULD_WAIT_FOREVER")
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v does not say %q", err, says)
		}
	}
	check(t, drop(a.WaitTasks(a.ctx, &pb.WaitTasksRequest{TaskIds: []string{"other"}})))
	check(t, drop(lead.WaitTasks(lead.ctx, &pb.WaitTasksRequest{TaskIds: []string{"last"}})))
	refused(t, drop(a.WaitTasks(a.ctx, &pb.WaitTasksRequest{TaskIds: []string{"nothing"}})), "TASK_NOT_FOUND")
	refused(t, drop(a.WaitTasks(a.ctx, &pb.WaitTasksRequest{Agents: []string{"leaf"}})), "AGENT_NOT_FOUND")
}

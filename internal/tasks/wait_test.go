package tasks_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// await begins a WaitTasks that waits.
func (d *daemon) await(a *apptest.Actor, in *pb.WaitTasksRequest) <-chan outcome[*pb.WaitTasksResponse] {
	d.Helper()
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
	create(lead, "t", "u")
	all := d.await(lead, &pb.WaitTasksRequest{TaskIds: []string{"t", "u"}, Agents: []string{"a"}})
	some := d.await(lead, &pb.WaitTasksRequest{TaskIds: []string{"t", "u"}, Mode: pb.WaitMode_WAIT_MODE_ANY})
	take(a, "u")
	complete(a, "u")
	got := <-some
	apptest.NoError(t, got.err)
	want(t, "the outcome of any", got.answer.GetOutcome(), allDone)
	want(t, "the state of u", got.answer.GetTasks()[1].GetState(), done)
	take(a, "t")
	complete(a, "t")
	status := pb.AgentStatus_AGENT_STATUS_COMPLETED
	apptest.Must(t, a.Heartbeat, &pb.HeartbeatRequest{Status: status})
	got = <-all
	apptest.NoError(t, got.err)
	want(t, "the outcome of all", got.answer.GetOutcome(), allDone)
	want(t, "completed agents", strings.Join(got.answer.GetCompletedAgents(), " "), "a")
}

func TestWaitTasks_ReturnsEarlyWhenATaskNeedsAttention(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a := d.member("lead", "lead"), d.agent("a")
	create(lead, "t", "u")
	take(a, "t")
	block := func(reason string) {
		apptest.Must(t, a.UpdateTask, &pb.UpdateTaskRequest{Id: "t", BlockChange: &pb.UpdateTaskRequest_Block{Block: reason}})
	}
	after := int64(0)
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"blocked", func() { block("no key") }},
		{"unblocked", func() {
			apptest.Must(t, a.UpdateTask, &pb.UpdateTaskRequest{Id: "t", BlockChange: &pb.UpdateTaskRequest_Unblock{Unblock: true}})
		}},
		{"failed", func() { fail(a, "t", true) }},
	} {
		ended := d.await(lead, &pb.WaitTasksRequest{TaskIds: []string{"t", "u"}, AfterRevision: after})
		step.do()
		got := <-ended
		apptest.NoError(t, got.err)
		if got.answer.GetOutcome() != attention || strings.Join(got.answer.GetAttention(), " ") != "t" {
			t.Errorf("%s: %v", step.name, got.answer)
		}
		after = got.answer.GetRevision()
	}
	now := apptest.Must(t, lead.WaitTasks, &pb.WaitTasksRequest{TaskIds: []string{"t", "u"}})
	want(t, "a task that has failed before", now.GetOutcome(), attention)
	later := d.await(lead, &pb.WaitTasksRequest{TaskIds: []string{"t", "u"}, AfterRevision: after})
	d.Clock.Advance(longWait)
	want(t, "with nothing new", (<-later).answer.GetOutcome(), timedOut)
}

func TestWaitTasks_RefusesToWaitForOnesOwnWork(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a := d.member("lead", "lead"), d.agent("a")
	create(lead, "root", "middle: root", "last: middle", "other")
	take(a, "root")
	for id, says := range map[string]string{"root": "you hold task root", "last": "last → middle → root"} {
		_, err := a.WaitTasks(a.Ctx, &pb.WaitTasksRequest{TaskIds: []string{"other", id}, Wait: durationpb.New(longWait)})
		refused(t, err, "WOULD_WAIT_FOREVER")
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v does not say %q", err, says)
		}
	}
	apptest.Must(t, a.WaitTasks, &pb.WaitTasksRequest{TaskIds: []string{"other"}})
	apptest.Must(t, lead.WaitTasks, &pb.WaitTasksRequest{TaskIds: []string{"last"}})
	refused(t, apptest.Err(a.WaitTasks(a.Ctx, &pb.WaitTasksRequest{TaskIds: []string{"nothing"}})), "TASK_NOT_FOUND")
	refused(t, apptest.Err(a.WaitTasks(a.Ctx, &pb.WaitTasksRequest{Agents: []string{"leaf"}})), "AGENT_NOT_FOUND")
}

func TestWaitTasks_KeepsTheStateOfATaskThatRetentionHasRemoved(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a := d.member("lead", "lead"), d.agent("a")
	create(lead, "x", "y")
	ended := d.await(lead, &pb.WaitTasksRequest{TaskIds: []string{"x", "y"}})
	take(a, "x")
	complete(a, "x")
	d.Clock.Advance(2 * time.Second) // a snapshot may become 10 s old
	o := d.Root()
	in := &pb.PruneDataRequest{OlderThan: durationpb.New(time.Second), Kinds: []pb.DataKind{pb.DataKind_DATA_KIND_WORK}}
	apptest.Must(t, o.PruneData, in)
	refused(t, apptest.Err(lead.GetTask(lead.Ctx, &pb.GetTaskRequest{Id: "x"})), "TASK_NOT_FOUND")
	take(a, "y")
	complete(a, "y")
	got := <-ended
	apptest.NoError(t, got.err)
	want(t, "the outcome", got.answer.GetOutcome(), allDone)
	want(t, "the state of the removed task", got.answer.GetTasks()[0].GetState(), done)
}

func TestWaitTasks_FindsTheOutcomeOfATaskThatEndedAndWasRemovedUnseen(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead := d.member("lead", "lead")
	create(lead, "x", "y", "z")
	ended := d.await(lead, &pb.WaitTasksRequest{TaskIds: []string{"x", "z"}})
	quiet := d.await(lead, &pb.WaitTasksRequest{TaskIds: []string{"y", "z"}})
	// The rows vanish without a wake-up; only y has no event of its end.
	d.database(`DELETE FROM tasks WHERE id IN ('x', 'y')`,
		`UPDATE events SET type = 'task.completed', revision = revision + 1 WHERE type = 'task.created' AND task_id = 'x'`)
	apptest.Must(t, lead.CancelTask, &pb.CancelTaskRequest{Id: "z"})
	got := <-ended
	apptest.NoError(t, got.err)
	want(t, "the state of x", got.answer.GetTasks()[0].GetState(), done)
	want(t, "tasks that need attention", strings.Join(got.answer.GetAttention(), " "), "z")
	got = <-quiet
	apptest.NoError(t, got.err)
	want(t, "tasks that need attention", strings.Join(got.answer.GetAttention(), " "), "y z")
}

package tasks_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestClaimTask_TakesTheBestTaskThatMatches(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, goer, tester := d.member("lead", "lead"), d.agent("goer", "go", "sql"), d.member("tester", "tester")
	createAll(lead,
		&pb.NewTask{Id: "plain", Title: "x"},
		&pb.NewTask{Id: "urgent", Title: "x", Priority: 9},
		&pb.NewTask{Id: "for-testers", Title: "x", Priority: 10, Role: "tester"},
		&pb.NewTask{Id: "for-goer", Title: "x", Priority: 8, Assignee: "goer"},
		&pb.NewTask{Id: "needs-go", Title: "x", Priority: 7, Capabilities: []string{"go"}},
		&pb.NewTask{Id: "needs-both", Title: "x", Priority: 6, Capabilities: []string{"sql", "go"}},
		&pb.NewTask{Id: "needs-rust", Title: "x", Priority: 10, Capabilities: []string{"go", "rust"}},
		&pb.NewTask{Id: "labelled", Title: "x", Priority: 1, Labels: map[string]string{"area": "ui"}},
	)
	labelled := apptest.Must(t, goer.ClaimTask, &pb.ClaimTaskRequest{Labels: map[string]string{"area": "ui"}})
	want(t, "by label", labelled.GetTask().GetId(), "labelled")
	for _, id := range []string{"urgent", "for-goer", "needs-go", "needs-both", "plain", ""} {
		want(t, "goer's next", claim(goer), id)
	}
	want(t, "tester's next", claim(tester), "for-testers")
	empty := apptest.Must(t, tester.ClaimTask, &pb.ClaimTaskRequest{})
	want(t, "the reason", empty.GetEmptyReason(), pb.TaskEmptyReason_TASK_EMPTY_REASON_NO_MATCH)
	refused(t, apptest.Err(tester.ClaimTask(tester.Ctx, &pb.ClaimTaskRequest{Id: "needs-rust"})), "TASK_NOT_YOURS")
}

func TestClaimTask_ReturnsTheSameClaimToItsHolder(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a := d.member("lead", "lead"), d.agent("a")
	create(lead, "t", "u")
	fence := take(a, "t")
	for name, in := range map[string]*pb.ClaimTaskRequest{"given": {Id: "t"}, "resume": {Resume: true}} {
		out := apptest.Must(t, a.ClaimTask, in)
		if !out.GetResumed() || out.GetTask().GetFence() != fence || out.GetTask().GetId() != "t" {
			t.Errorf("%s: %v", name, out)
		}
	}
	in := &pb.ClaimTaskRequest{RequestId: newID()}
	first := apptest.Must(t, a.ClaimTask, in)
	again := apptest.Must(t, a.ClaimTask, in)
	want(t, "the task of the repeated request", again.GetTask().GetId(), "u")
	want(t, "its fence", again.GetTask().GetFence(), first.GetTask().GetFence())
}

func TestClaimTask_WaitersGetTasksInTheOrderOfTheirArrival(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead := d.member("lead", "lead")
	const n = 5
	var calls []<-chan outcome[*pb.ClaimTaskResponse]
	tester := d.member("tester", "tester")
	other, _ := d.awaitClaim(tester, &pb.ClaimTaskRequest{})
	for i := range n {
		ended, _ := d.awaitClaim(d.agent(fmt.Sprintf("a%d", i)), &pb.ClaimTaskRequest{RequestId: newID()})
		calls = append(calls, ended)
	}
	for i, ended := range calls {
		id := fmt.Sprintf("t%d", i)
		createAll(lead, &pb.NewTask{Id: id, Title: "x", Role: "builder"})
		got := <-ended
		apptest.NoError(t, got.err)
		want(t, fmt.Sprintf("the task of waiter %d", i), got.answer.GetTask().GetId(), id)
	}
	createAll(lead, &pb.NewTask{Id: "last", Title: "x", Role: "tester"})
	want(t, "the tester's task", (<-other).answer.GetTask().GetId(), "last")
}

func TestClaimTask_OneTaskWakesOneWaiter(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead := d.member("lead", "lead")
	first, _ := d.awaitClaim(d.agent("a"), &pb.ClaimTaskRequest{})
	second, _ := d.awaitClaim(d.agent("b"), &pb.ClaimTaskRequest{})
	create(lead, "t")
	want(t, "the first waiter", (<-first).answer.GetTask().GetId(), "t")
	d.Clock.Advance(longWait)
	got := <-second
	apptest.NoError(t, got.err)
	if got.answer.GetTask() != nil || got.answer.GetEmptyReason() != pb.TaskEmptyReason_TASK_EMPTY_REASON_EMPTY {
		t.Errorf("the second waiter got %v", got.answer)
	}
}

func TestClaimTask_ACancelledCallLeavesNoClaim(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	a, b := d.agent("a"), d.agent("b")
	ended, cancel := d.awaitClaim(a, &pb.ClaimTaskRequest{RequestId: newID()})
	next, _ := d.awaitClaim(b, &pb.ClaimTaskRequest{})
	cancel()
	if got := <-ended; status.Code(got.err) != codes.Canceled {
		t.Errorf("the cancelled call: %v", got.err)
	}
	create(a, "t") // on the connection of the call: the broker has seen its end before
	got := <-next  // whether or not the broker gave it to the first call
	apptest.NoError(t, got.err)
	want(t, "the task of the other call", got.answer.GetTask().GetId(), "t")
	want(t, "the number of the attempt", got.answer.GetAttempt(), 1)
	want(t, "failed attempts", task(b, "t").GetAttempts(), 0)
}

func TestClaimTask_WaitsForAGivenTask(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a, b := d.member("lead", "lead"), d.agent("a"), d.agent("b")
	create(lead, "t", "u: t")
	take(a, "t")
	released, _ := d.awaitClaim(b, &pb.ClaimTaskRequest{Id: "t"})
	apptest.Must(t, a.ReleaseTask, &pb.ReleaseTaskRequest{Id: "t"})
	want(t, "the task", (<-released).answer.GetTask().GetId(), "t")
	finished, _ := d.awaitClaim(a, &pb.ClaimTaskRequest{Id: "t"})
	dependent, _ := d.awaitClaim(a, &pb.ClaimTaskRequest{Id: "u"})
	complete(b, "t")
	refused(t, (<-finished).err, "TASK_FINISHED")
	want(t, "the dependent", (<-dependent).answer.GetTask().GetId(), "u")
	timeout, _ := d.awaitClaim(b, &pb.ClaimTaskRequest{Id: "u"})
	d.Clock.Advance(longWait)
	refused(t, (<-timeout).err, "TASK_CLAIMED")
}

func TestClaimTask_ACallThatHasWaitedLongEnoughForAGivenTaskDoesNotGetItLater(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	a, b := d.agent("a"), d.agent("b")
	create(a, "t")
	take(a, "t")
	over, _ := d.awaitClaim(b, &pb.ClaimTaskRequest{Id: "t"})
	d.Clock.Advance(longWait)
	refused(t, (<-over).err, "TASK_CLAIMED")
	apptest.Must(t, a.ReleaseTask, &pb.ReleaseTaskRequest{Id: "t"})
	wantState(a, ready, "t")
}

func TestClaimTask_AWaiterIsServedWithItsPresentCapabilities(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a := d.member("lead", "lead"), d.agent("a")
	createAll(lead, &pb.NewTask{Id: "t", Title: "x", Capabilities: []string{"go"}})
	ended, _ := d.awaitClaim(a, &pb.ClaimTaskRequest{})
	register(a, "builder", "go")
	got := <-ended
	apptest.NoError(t, got.err)
	want(t, "the task", got.answer.GetTask().GetId(), "t")
}

func TestClaimTask_AHaltedAgentGetsNoTask(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	a := d.agent("a")
	ended, _ := d.awaitClaim(a, &pb.ClaimTaskRequest{})
	direct := func(kind string) {
		apptest.Must(t, d.Root().SendMessages, &pb.SendMessagesRequest{Messages: []*pb.Message{{
			Target: &pb.Target{To: &pb.Target_Agent{Agent: "a"}}, Type: kind}}})
	}
	direct("halt")
	create(d.Root(), "t")
	out := apptest.Must(t, a.ClaimTask, &pb.ClaimTaskRequest{})
	want(t, "the reason", out.GetEmptyReason(), pb.TaskEmptyReason_TASK_EMPTY_REASON_HALTED)
	refused(t, apptest.Err(a.ClaimTask(a.Ctx, &pb.ClaimTaskRequest{Id: "t"})), "HALTED")
	direct("resume")
	got := <-ended
	apptest.NoError(t, got.err)
	want(t, "the task after the resume", got.answer.GetTask().GetId(), "t")
}

// TestClaimTask_EachTaskGoesToOneOfManyWorkers lets workers compete for tasks in a chain of
// dependencies.
func TestClaimTask_EachTaskGoesToOneOfManyWorkers(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead := d.member("lead", "lead")
	const workers, tasks = 8, 120
	texts := make([]string, tasks)
	for i := range texts {
		texts[i] = fmt.Sprintf("t%d", i)
		if i >= 10 {
			texts[i] += fmt.Sprintf(": t%d t%d", i-10, i/2)
		}
	}
	var mu sync.Mutex // guards holders
	holders := map[string]string{}
	var running sync.WaitGroup
	ctx, stop := context.WithCancel(lead.Ctx)
	for w := range workers {
		a := d.agent(fmt.Sprintf("w%d", w))
		running.Go(func() {
			for {
				out, err := a.ClaimTask(ctx, &pb.ClaimTaskRequest{Wait: durationpb.New(longWait)})
				if ctx.Err() != nil {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
				id := out.GetTask().GetId()
				mu.Lock()
				if former, twice := holders[id]; twice {
					t.Errorf("task %s went to %s and to %s", id, former, a.Name)
				}
				holders[id] = a.Name
				mu.Unlock()
				complete(a, id)
			}
		})
	}
	drained := make(chan struct{})
	go func() { // the waits of the workers are not for this test
		for {
			select {
			case <-d.Clock.waits:
			case <-drained:
				return
			}
		}
	}()
	create(lead, texts...)
	for {
		out := apptest.Must(t, lead.WaitTasks, &pb.WaitTasksRequest{TaskIds: []string{fmt.Sprintf("t%d", tasks-1), fmt.Sprintf("t%d", tasks-2)},
			Wait: durationpb.New(longWait)})
		if out.GetOutcome() == pb.WaitOutcome_WAIT_OUTCOME_DONE {
			break
		}
	}
	for {
		out := apptest.Must(t, lead.ListTasks, &pb.ListTasksRequest{States: []pb.TaskState{waiting, ready, claimed}, PageSize: 1})
		if len(out.GetTasks()) == 0 {
			break
		}
		apptest.Must(t, lead.WaitTasks, &pb.WaitTasksRequest{TaskIds: []string{out.GetTasks()[0].GetId()}, Wait: durationpb.New(longWait)})
	}
	stop()
	running.Wait()
	close(drained)
	want(t, "tasks that were claimed", len(holders), tasks)
}

func TestClaimTask_ItsFenceGuardsOtherChanges(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a := d.member("lead", "lead"), d.agent("a")
	create(lead, "t")
	fence := take(a, "t")
	fenced := metadata.AppendToOutgoingContext(a.Ctx, "brokerd-fence", fmt.Sprint(fence))
	put := func() error {
		return apptest.Err(a.PutState(fenced, &pb.PutStateRequest{Key: "k", Value: &pb.StateValue{Value: &pb.StateValue_StringValue{StringValue: "v"}}}))
	}
	apptest.NoError(t, put())
	complete(a, "t")
	if err := put(); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), fmt.Sprint(fence)) {
		t.Errorf("a put with the fence of a completed task: %v", err)
	}
}

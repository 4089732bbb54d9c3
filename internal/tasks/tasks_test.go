package tasks_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

// TestTask_EachCallIsAllowedInItsStatesAlone makes every call in every state.
func TestTask_EachCallIsAllowedInItsStatesAlone(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, holder := d.member("lead", "lead"), d.agent("holder")
	reach := map[pb.TaskState]func(id string){
		waiting: func(id string) { create(lead, "before-"+id, id+": before-"+id) },
		ready:   func(id string) { create(lead, id) },
		claimed: func(id string) { create(lead, id); take(holder, id) },
		blocked: func(id string) {
			create(lead, id)
			take(holder, id)
			apptest.Must(t, holder.UpdateTask, &pb.UpdateTaskRequest{Id: id, BlockChange: &pb.UpdateTaskRequest_Block{Block: "no key"}})
		},
		done:   func(id string) { create(lead, id); take(holder, id); complete(holder, id) },
		failed: func(id string) { create(lead, id); take(holder, id); fail(holder, id, true) },
		cancelled: func(id string) {
			create(lead, id)
			apptest.Must(t, lead.CancelTask, &pb.CancelTaskRequest{Id: id})
		},
	}
	calls := map[string]func(id string) error{
		"claim": func(id string) error {
			return apptest.Err(holder.ClaimTask(holder.Ctx, &pb.ClaimTaskRequest{Id: id}))
		},
		"update": func(id string) error {
			_, err := holder.UpdateTask(holder.Ctx, &pb.UpdateTaskRequest{Id: id, Progress: proto.Float64(0.5)})
			return err
		},
		"block": func(id string) error {
			_, err := holder.UpdateTask(holder.Ctx, &pb.UpdateTaskRequest{Id: id, BlockChange: &pb.UpdateTaskRequest_Block{Block: "why"}})
			return err
		},
		"unblock": func(id string) error {
			_, err := holder.UpdateTask(holder.Ctx, &pb.UpdateTaskRequest{Id: id, BlockChange: &pb.UpdateTaskRequest_Unblock{Unblock: true}})
			return err
		},
		"describe": func(id string) error {
			return apptest.Err(lead.UpdateTask(lead.Ctx, &pb.UpdateTaskRequest{Id: id, Title: proto.String("new")}))
		},
		"complete": func(id string) error {
			return apptest.Err(holder.CompleteTask(holder.Ctx, &pb.CompleteTaskRequest{Id: id}))
		},
		"fail": func(id string) error {
			return apptest.Err(holder.FailTask(holder.Ctx, &pb.FailTaskRequest{Id: id, Fatal: true}))
		},
		"release": func(id string) error {
			return apptest.Err(holder.ReleaseTask(holder.Ctx, &pb.ReleaseTaskRequest{Id: id}))
		},
		"cancel": func(id string) error {
			return apptest.Err(lead.CancelTask(lead.Ctx, &pb.CancelTaskRequest{Id: id}))
		},
		"retry": func(id string) error {
			return apptest.Err(lead.RetryTask(lead.Ctx, &pb.RetryTaskRequest{Id: id}))
		},
	}
	const lost, ended = "TASK_LOST", "TASK_FINISHED"
	for call, outcomes := range map[string]map[pb.TaskState]any{ // the next state, or the reason of the refusal
		"claim":    {waiting: "TASK_WAITING", ready: claimed, claimed: claimed, blocked: blocked, done: ended, failed: ended, cancelled: ended},
		"update":   {waiting: lost, ready: lost, claimed: claimed, blocked: blocked, done: lost, failed: lost, cancelled: lost},
		"block":    {waiting: lost, ready: lost, claimed: blocked, blocked: blocked, done: lost, failed: lost, cancelled: lost},
		"unblock":  {waiting: lost, ready: lost, claimed: "TASK_NOT_BLOCKED", blocked: claimed, done: lost, failed: lost, cancelled: lost},
		"describe": {waiting: waiting, ready: ready, claimed: claimed, blocked: blocked, done: ended, failed: ended, cancelled: ended},
		"complete": {waiting: lost, ready: lost, claimed: done, blocked: done, done: done, failed: lost, cancelled: lost},
		"fail":     {waiting: lost, ready: lost, claimed: failed, blocked: failed, done: lost, failed: lost, cancelled: lost},
		"release":  {waiting: lost, ready: lost, claimed: ready, blocked: ready, done: lost, failed: lost, cancelled: lost},
		"cancel":   {waiting: cancelled, ready: cancelled, claimed: cancelled, blocked: cancelled, done: ended, failed: ended, cancelled: cancelled},
		"retry": {waiting: "TASK_NOT_FAILED", ready: "TASK_NOT_FAILED", claimed: "TASK_NOT_FAILED", blocked: "TASK_NOT_FAILED",
			done: "TASK_NOT_FAILED", failed: ready, cancelled: "TASK_NOT_FAILED"},
	} {
		for state, outcome := range outcomes {
			id := call + "-" + strings.ToLower(strings.TrimPrefix(state.String(), "TASK_STATE_"))
			reach[state](id)
			wantState(lead, state, id)
			err := calls[call](id)
			if next, allowed := outcome.(pb.TaskState); allowed {
				if err != nil {
					t.Errorf("%s in %v: %v", call, state, err)
				}
				wantState(lead, next, id)
				continue
			}
			if testkit.Reason(err) != outcome {
				t.Errorf("%s in %v: %v, want the reason %v", call, state, err, outcome)
			}
			wantState(lead, state, id)
		}
	}
}

func TestTask_AnotherAgentCannotChangeIt(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, holder, other := d.member("lead", "lead"), d.agent("holder"), d.agent("other")
	create(lead, "t")
	fence := take(holder, "t")
	for name, err := range map[string]error{
		"claim": apptest.Err(other.ClaimTask(other.Ctx, &pb.ClaimTaskRequest{Id: "t"})),
	} {
		refused(t, err, "TASK_CLAIMED")
		if !strings.Contains(err.Error(), "holder") {
			t.Errorf("%s: the error does not name the holder: %v", name, err)
		}
	}
	refused(t, apptest.Err(other.CompleteTask(other.Ctx, &pb.CompleteTaskRequest{Id: "t"})), "TASK_LOST")
	refused(t, apptest.Err(other.ReleaseTask(other.Ctx, &pb.ReleaseTaskRequest{Id: "t"})), "TASK_LOST")
	refused(t, apptest.Err(holder.CompleteTask(holder.Ctx, &pb.CompleteTaskRequest{Id: "t", Fence: fence + 1})), "TASK_LOST")
	refused(t, apptest.Err(other.CancelTask(other.Ctx, &pb.CancelTaskRequest{Id: "t"})), "NOT_CREATOR")
	refused(t, apptest.Err(other.UpdateTask(other.Ctx, &pb.UpdateTaskRequest{Id: "t", Title: proto.String("x")})), "NOT_CREATOR")
	refused(t, apptest.Err(other.ReleaseTask(other.Ctx, &pb.ReleaseTaskRequest{Id: "t", Decline: true, Reason: "no"})), "NOT_ASSIGNEE")
	refused(t, apptest.Err(d.Root().ClaimTask(other.Ctx, &pb.ClaimTaskRequest{})), "AGENT_REQUIRED")
	wantState(lead, claimed, "t")
}

func TestTask_DependentsBecomeReadyWithTheLastDependency(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a := d.member("lead", "lead"), d.agent("a")
	create(lead, "c: a b", "b: a", "a", "d: c")
	wantState(lead, waiting, "b", "c", "d")
	if got := task(lead, "c").GetWaitsFor().GetId(); got != "a" {
		t.Errorf("c waits for %q, want a", got)
	}
	want(t, "the first task", claim(a), "a")
	want(t, "nothing else", claim(a), "")
	out := complete(a, "a")
	if len(out.GetReady()) != 1 || out.GetReady()[0].GetId() != "b" {
		t.Errorf("ready after a: %v", out.GetReady())
	}
	want(t, "the next task", claim(a), "b")
	complete(a, "b")
	want(t, "the next task", claim(a), "c")
	fail(a, "c", true)
	wantState(lead, waiting, "d")
	if w := task(lead, "d").GetWaitsFor(); w.GetId() != "c" || w.GetState() != failed {
		t.Errorf("d waits for %v", w)
	}
	apptest.Must(t, lead.RetryTask, &pb.RetryTaskRequest{Id: "c"})
	want(t, "the retried task", claim(a), "c")
	complete(a, "c")
	wantState(lead, ready, "d")
	if n := len(full(lead, "c").GetHistory()); n != 1 {
		t.Errorf("the history of c has %d attempts", n)
	}
}

func TestCreateTasks_IsAllOrNothing(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead := d.member("lead", "lead")
	create(lead, "old")
	for name, c := range map[string]struct {
		tasks  []*pb.NewTask
		reason string
		says   string
	}{
		"a cycle":                  {[]*pb.NewTask{{Id: "a", Title: "a", DependsOn: []string{"b"}}, {Id: "b", Title: "b", DependsOn: []string{"a"}}}, "TASK_CYCLE", "a → b → a"},
		"a task that needs itself": {[]*pb.NewTask{{Id: "x", Title: "x", DependsOn: []string{"x"}}}, "TASK_CYCLE", "x → x"},
		"a cycle of parents":       {[]*pb.NewTask{{Id: "a", Title: "a", Parent: "b"}, {Id: "b", Title: "b", Parent: "a"}}, "TASK_CYCLE", "a → b → a"},
		"an unknown dependency":    {[]*pb.NewTask{{Id: "a", Title: "a"}, {Title: "b", DependsOn: []string{"nothing"}}}, "TASK_NOT_FOUND", "nothing"},
		"an unknown parent":        {[]*pb.NewTask{{Title: "b", Parent: "nothing"}}, "TASK_NOT_FOUND", "nothing"},
		"an unknown assignee":      {[]*pb.NewTask{{Title: "b", Assignee: "leaf"}}, "AGENT_NOT_FOUND", "lead"},
		"an id in use":             {[]*pb.NewTask{{Id: "a", Title: "a"}, {Id: "old", Title: "b"}}, "TASK_EXISTS", "old"},
		"an id twice":              {[]*pb.NewTask{{Id: "a", Title: "a"}, {Id: "a", Title: "b"}}, "INVALID_ARGUMENT", "tasks[1].id"},
		"role and assignee":        {[]*pb.NewTask{{Title: "a", Role: "x", Assignee: "lead"}}, "INVALID_ARGUMENT", "tasks[0].role"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := lead.CreateTasks(lead.Ctx, &pb.CreateTasksRequest{Tasks: c.tasks})
			refused(t, err, c.reason)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v does not say %q", err, c.says)
			}
		})
	}
	out := apptest.Must(t, lead.ListTasks, &pb.ListTasksRequest{})
	want(t, "tasks in the end", len(out.GetTasks()), 1)
}

func TestTask_FieldsThatExcludeEachOtherAreRefused(t *testing.T) {
	t.Parallel()
	a := newDaemon(t).agent("a")
	labels := map[string]string{"k": "v"}
	apptest.Invalid(t, apptest.Err(a.ClaimTask(a.Ctx, &pb.ClaimTaskRequest{Id: "t", Labels: labels})), "labels")
	list := &pb.ListTasksRequest{Claimable: true, OldestFirst: true}
	apptest.Invalid(t, apptest.Err(a.ListTasks(a.Ctx, list)), "claimable")
	apptest.Invalid(t, apptest.Err(a.WaitTasks(a.Ctx, &pb.WaitTasksRequest{})), "task_ids")
}

func TestCreateTasks_RefusesManyDependenciesQuickly(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	a := d.agent("a")
	needs := make([]string, 90_000) // a call takes 100,000 items; comparing each with each would take minutes
	for i := range needs {
		needs[i] = fmt.Sprintf("dep%05d", i)
	}
	_, err := a.CreateTasks(a.Ctx, &pb.CreateTasksRequest{Tasks: []*pb.NewTask{{Title: "x", DependsOn: needs}}})
	if status.Code(err) != codes.InvalidArgument || !slices.Contains(testkit.Fields(err), "tasks[0].depends_on") {
		t.Errorf("got %v", err)
	}
}

func TestCreateTasks_AssignsIdsAndWarnsOfRolesWithoutAgents(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead := d.member("lead", "lead")
	out := createAll(lead, &pb.NewTask{Title: "one", Role: "tester"}, &pb.NewTask{Title: "two"})
	if len(out.GetWarnings()) != 1 || !strings.Contains(out.GetWarnings()[0], "tester") {
		t.Errorf("warnings: %q", out.GetWarnings())
	}
	first := task(lead, out.GetTasks()[0].GetId())
	if !strings.HasPrefix(first.GetId(), "t-") || first.GetTitle() != "one" {
		t.Errorf("the first task: %v", first)
	}
	byRevision := task(lead, strings.TrimPrefix(first.GetId(), "t-"))
	want(t, "the task by its revision", byRevision.GetId(), first.GetId())
}

func TestCreateTasks_TheSameRequestCreatesOnce(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead := d.member("lead", "lead")
	in := &pb.CreateTasksRequest{RequestId: newID(), Tasks: []*pb.NewTask{{Title: "one"}}}
	first := apptest.Must(t, lead.CreateTasks, in)
	second := apptest.Must(t, lead.CreateTasks, in)
	if !proto.Equal(first, second) {
		t.Errorf("%v, then %v", first, second)
	}
}

func TestFailTask_WaitsLongerAfterEachAttempt(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a := d.member("lead", "lead"), d.agent("a")
	create(lead, "t")
	for n, wait := range []time.Duration{time.Second, 2 * time.Second} {
		want(t, "the task", claim(a), "t")
		out := fail(a, "t", false)
		want(t, "attempts", out.GetAttempts(), int32(n+1))
		want(t, "backoff", out.GetDueAt().AsTime().Sub(d.Clock.Now()), wait)
		empty := apptest.Must(t, a.ClaimTask, &pb.ClaimTaskRequest{})
		want(t, "the reason", empty.GetEmptyReason(), pb.TaskEmptyReason_TASK_EMPTY_REASON_DELAYED)
		want(t, "the next time", empty.GetNextDue().AsTime(), out.GetDueAt().AsTime())
		refused(t, apptest.Err(a.ClaimTask(a.Ctx, &pb.ClaimTaskRequest{Id: "t"})), "TASK_DELAYED")
		ended, _ := d.awaitClaim(a, &pb.ClaimTaskRequest{})
		d.Clock.Advance(wait)
		got := <-ended
		apptest.NoError(t, got.err)
		want(t, "the task after its backoff", got.answer.GetTask().GetId(), "t")
		want(t, "the number of the attempt", got.answer.GetAttempt(), int32(n+2))
		want(t, "the history", len(got.answer.GetHistory()), n+1)
		apptest.Must(t, a.ReleaseTask, &pb.ReleaseTaskRequest{Id: "t"})
	}
	want(t, "the last attempt", claim(a), "t")
	fail(a, "t", false)
	wantState(lead, failed, "t")
	if mail := mail(lead, "task_failed"); len(mail) != 1 || mail[0].GetMessage().GetTaskId() != "t" {
		t.Errorf("the creator got %v", mail)
	}
}

func TestCancelTask_CascadeReachesDependentsAndSubtasks(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a := d.member("lead", "lead"), d.agent("a")
	createAll(lead, &pb.NewTask{Id: "root", Title: "r"}, &pb.NewTask{Id: "part", Title: "p", Parent: "root"},
		&pb.NewTask{Id: "next", Title: "n", DependsOn: []string{"root"}}, &pb.NewTask{Id: "last", Title: "l", DependsOn: []string{"next"}},
		&pb.NewTask{Id: "other", Title: "o"}, &pb.NewTask{Id: "finished", Title: "f", Parent: "root"})
	take(a, "finished")
	complete(a, "finished")
	take(a, "part")
	out := apptest.Must(t, lead.CancelTask, &pb.CancelTaskRequest{Id: "root", Cascade: true, Reason: "not needed"})
	want(t, "cancelled", out.GetCancelled(), 4)
	wantState(lead, cancelled, "root", "part", "next", "last")
	wantState(lead, ready, "other")
	wantState(lead, done, "finished")
	refused(t, apptest.Err(a.CompleteTask(a.Ctx, &pb.CompleteTaskRequest{Id: "part"})), "TASK_LOST")
	if mail := mail(a, "task_lost"); len(mail) != 1 || !strings.Contains(mail[0].GetMessage().GetSubject(), "not needed") {
		t.Errorf("the holder got %v", mail)
	}
}

func TestGetTask_FullHasEverythingThatCarriesItsId(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead := d.member("lead", "lead")
	create(lead, "t", "u: t")
	apptest.Must(t, lead.SendMessages, &pb.SendMessagesRequest{Messages: []*pb.Message{{
		Target: &pb.Target{To: &pb.Target_Everyone{Everyone: true}}, Subject: "about it", TaskId: "t"}}})
	kinds := map[string]string{}
	parts := full(lead, "t")
	for _, r := range parts.GetReferences() {
		kinds[r.GetKind()] = r.GetTitle()
	}
	want(t, "the message", kinds["message"], "about it")
	want(t, "the event", kinds["event"], "task.created")
	if n := parts.GetDependents(); len(n) != 1 || n[0].GetId() != "u" {
		t.Errorf("dependents: %v", n)
	}
	refused(t, apptest.Err(lead.GetTask(lead.Ctx, &pb.GetTaskRequest{Id: "nothing", View: pb.TaskView_TASK_VIEW_FULL})), "TASK_NOT_FOUND")
	apptest.Must(t, lead.SendMessages, &pb.SendMessagesRequest{Messages: []*pb.Message{{
		Target: &pb.Target{To: &pb.Target_Everyone{Everyone: true}}, Subject: "free", TaskId: "no-row"}}})
	if f := full(lead, "no-row"); f.Task != nil || len(f.GetReferences()) == 0 {
		t.Errorf("an id without a task: %v", f)
	}
}

func TestListTasks_FiltersAndPages(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a := d.member("lead", "lead"), d.agent("a")
	createAll(lead, &pb.NewTask{Id: "1", Title: "x", Labels: map[string]string{"area": "ui"}}, &pb.NewTask{Id: "2", Title: "x", Role: "builder"},
		&pb.NewTask{Id: "3", Title: "x", Assignee: "a", Parent: "1"}, &pb.NewTask{Id: "4", Title: "x", DependsOn: []string{"1"}},
		&pb.NewTask{Id: "5", Title: "x", Priority: 9, Labels: map[string]string{"area": "ui", "size": "s"}})
	take(a, "2")
	for name, c := range map[string]struct {
		in   *pb.ListTasksRequest
		want string
	}{
		"all":                {&pb.ListTasksRequest{}, "54321"},
		"oldest":             {&pb.ListTasksRequest{OldestFirst: true}, "12345"},
		"states":             {&pb.ListTasksRequest{States: []pb.TaskState{claimed, waiting}}, "42"},
		"holder":             {&pb.ListTasksRequest{Holder: "a"}, "2"},
		"role":               {&pb.ListTasksRequest{Role: "builder"}, "2"},
		"assignee":           {&pb.ListTasksRequest{Assignee: "a"}, "3"},
		"parent":             {&pb.ListTasksRequest{Parent: "1"}, "3"},
		"labels":             {&pb.ListTasksRequest{Labels: map[string]string{"area": "ui"}}, "51"},
		"creator":            {&pb.ListTasksRequest{Creator: "a"}, ""},
		"claimable":          {&pb.ListTasksRequest{Claimable: true}, "513"},
		"first of claimable": {&pb.ListTasksRequest{Claimable: true, PageSize: 1}, "5"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, size := range []int32{1, 2, 0} {
				if c.in.GetClaimable() && size > 0 {
					continue
				}
				in := proto.Clone(c.in).(*pb.ListTasksRequest)
				if size > 0 {
					in.PageSize = size
				}
				got := ""
				for {
					out := apptest.Must(t, a.ListTasks, in)
					for _, task := range out.GetTasks() {
						got += task.GetId()
					}
					if in.PageToken = out.GetNextPageToken(); in.PageToken == "" {
						break
					}
				}
				want(t, "tasks", got, c.want)
			}
		})
	}
}

var _ = durationpb.New

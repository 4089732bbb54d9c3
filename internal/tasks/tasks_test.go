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
	"brokerd/internal/testkit"
)

// TestTask_EachCallIsAllowedInItsStatesAlone makes every call in every state.
func TestTask_EachCallIsAllowedInItsStatesAlone(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, holder := d.member("lead", "lead"), d.agent("holder")
	reach := map[pb.TaskState]func(id string){
		waiting: func(id string) { lead.create("before-"+id, id+": before-"+id) },
		ready:   func(id string) { lead.create(id) },
		claimed: func(id string) { lead.create(id); holder.take(id) },
		blocked: func(id string) {
			lead.create(id)
			holder.take(id)
			_, err := holder.UpdateTask(holder.ctx, &pb.UpdateTaskRequest{Id: id, BlockChange: &pb.UpdateTaskRequest_Block{Block: "no key"}})
			check(t, err)
		},
		done:   func(id string) { lead.create(id); holder.take(id); holder.complete(id) },
		failed: func(id string) { lead.create(id); holder.take(id); holder.fail(id, true) },
		cancelled: func(id string) {
			lead.create(id)
			_, err := lead.CancelTask(lead.ctx, &pb.CancelTaskRequest{Id: id})
			check(t, err)
		},
	}
	calls := map[string]func(id string) error{
		"claim": func(id string) error {
			_, err := holder.ClaimTask(holder.ctx, &pb.ClaimTaskRequest{Id: id})
			return err
		},
		"update": func(id string) error {
			_, err := holder.UpdateTask(holder.ctx, &pb.UpdateTaskRequest{Id: id, Progress: proto.Float64(0.5)})
			return err
		},
		"block": func(id string) error {
			_, err := holder.UpdateTask(holder.ctx, &pb.UpdateTaskRequest{Id: id, BlockChange: &pb.UpdateTaskRequest_Block{Block: "why"}})
			return err
		},
		"unblock": func(id string) error {
			_, err := holder.UpdateTask(holder.ctx, &pb.UpdateTaskRequest{Id: id, BlockChange: &pb.UpdateTaskRequest_Unblock{Unblock: true}})
			return err
		},
		"describe": func(id string) error {
			_, err := lead.UpdateTask(lead.ctx, &pb.UpdateTaskRequest{Id: id, Title: proto.String("new")})
			return err
		},
		"complete": func(id string) error {
			_, err := holder.CompleteTask(holder.ctx, &pb.CompleteTaskRequest{Id: id})
			return err
		},
		"fail": func(id string) error {
			_, err := holder.FailTask(holder.ctx, &pb.FailTaskRequest{Id: id, Fatal: true})
			return err
		},
		"release": func(id string) error {
			_, err := holder.ReleaseTask(holder.ctx, &pb.ReleaseTaskRequest{Id: id})
			return err
		},
		"cancel": func(id string) error {
			_, err := lead.CancelTask(lead.ctx, &pb.CancelTaskRequest{Id: id})
			return err
		},
		"retry": func(id string) error {
			_, err := lead.RetryTask(lead.ctx, &pb.RetryTaskRequest{Id: id})
			return err
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
			lead.state(state, id)
			err := calls[call](id)
			if next, allowed := outcome.(pb.TaskState); allowed {
				if err != nil {
					t.Errorf("%s in %v: %v", call, state, err)
				}
				lead.state(next, id)
				continue
			}
			if reason(err) != outcome {
				t.Errorf("%s in %v: %v, want the reason %v", call, state, err, outcome)
			}
			lead.state(state, id)
		}
	}
}

func TestTask_AnotherAgentCannotChangeIt(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, holder, other := d.member("lead", "lead"), d.agent("holder"), d.agent("other")
	lead.create("t")
	fence := holder.take("t")
	for name, err := range map[string]error{
		"claim": drop(other.ClaimTask(other.ctx, &pb.ClaimTaskRequest{Id: "t"})),
	} {
		refused(t, err, "TASK_CLAIMED")
		if !strings.Contains(err.Error(), "holder") {
			t.Errorf("%s: the error does not name the holder: %v", name, err)
		}
	}
	refused(t, drop(other.CompleteTask(other.ctx, &pb.CompleteTaskRequest{Id: "t"})), "TASK_LOST")
	refused(t, drop(other.ReleaseTask(other.ctx, &pb.ReleaseTaskRequest{Id: "t"})), "TASK_LOST")
	refused(t, drop(holder.CompleteTask(holder.ctx, &pb.CompleteTaskRequest{Id: "t", Fence: fence + 1})), "TASK_LOST")
	refused(t, drop(other.CancelTask(other.ctx, &pb.CancelTaskRequest{Id: "t"})), "NOT_CREATOR")
	refused(t, drop(other.UpdateTask(other.ctx, &pb.UpdateTaskRequest{Id: "t", Title: proto.String("x")})), "NOT_CREATOR")
	refused(t, drop(other.ReleaseTask(other.ctx, &pb.ReleaseTaskRequest{Id: "t", Decline: true, Reason: "no"})), "NOT_ASSIGNEE")
	refused(t, drop(d.operator().ClaimTask(other.ctx, &pb.ClaimTaskRequest{})), "AGENT_REQUIRED")
	lead.state(claimed, "t")
}

func TestTask_DependentsBecomeReadyWithTheLastDependency(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a := d.member("lead", "lead"), d.agent("a")
	lead.create("c: a b", "b: a", "a", "d: c")
	lead.state(waiting, "b", "c", "d")
	if got := lead.task("c").GetWaitsFor().GetId(); got != "a" {
		t.Errorf("c waits for %q, want a", got)
	}
	want(t, "the first task", a.claim(), "a")
	want(t, "nothing else", a.claim(), "")
	out := a.complete("a")
	if len(out.GetReady()) != 1 || out.GetReady()[0].GetId() != "b" {
		t.Errorf("ready after a: %v", out.GetReady())
	}
	want(t, "the next task", a.claim(), "b")
	a.complete("b")
	want(t, "the next task", a.claim(), "c")
	a.fail("c", true)
	lead.state(waiting, "d")
	if w := lead.task("d").GetWaitsFor(); w.GetId() != "c" || w.GetState() != failed {
		t.Errorf("d waits for %v", w)
	}
	check(t, drop(lead.RetryTask(lead.ctx, &pb.RetryTaskRequest{Id: "c"})))
	want(t, "the retried task", a.claim(), "c")
	a.complete("c")
	lead.state(ready, "d")
	if n := len(lead.full("c").GetHistory()); n != 1 {
		t.Errorf("the history of c has %d attempts", n)
	}
}

func TestCreateTasks_IsAllOrNothing(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead := d.member("lead", "lead")
	lead.create("old")
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
		"no title":                 {[]*pb.NewTask{{Id: "a"}}, "INVALID_ARGUMENT", "tasks[0].title"},
		"role and assignee":        {[]*pb.NewTask{{Title: "a", Role: "x", Assignee: "lead"}}, "INVALID_ARGUMENT", "tasks[0].role"},
		"too many":                 {make([]*pb.NewTask, 1001), "INVALID_ARGUMENT", "1000"},
		"none":                     {nil, "INVALID_ARGUMENT", "tasks"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := lead.CreateTasks(lead.ctx, &pb.CreateTasksRequest{Tasks: c.tasks})
			refused(t, err, c.reason)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v does not say %q", err, c.says)
			}
		})
	}
	out, err := lead.ListTasks(lead.ctx, &pb.ListTasksRequest{})
	check(t, err)
	want(t, "tasks in the end", len(out.GetTasks()), 1)
}

func TestCreateTasks_RefusesManyDependenciesQuickly(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	a := d.agent("a")
	needs := make([]string, 90_000) // a call takes 100,000 items; comparing each with each would take minutes
	for i := range needs {
		needs[i] = fmt.Sprintf("dep%05d", i)
	}
	_, err := a.CreateTasks(a.ctx, &pb.CreateTasksRequest{Tasks: []*pb.NewTask{{Title: "x", DependsOn: needs}}})
	if status.Code(err) != codes.InvalidArgument || !slices.Contains(testkit.Fields(err), "tasks[0].depends_on") {
		t.Errorf("got %v", err)
	}
}

func TestCreateTasks_AssignsIdsAndWarnsOfRolesWithoutAgents(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead := d.member("lead", "lead")
	out := lead.createAll(&pb.NewTask{Title: "one", Role: "tester"}, &pb.NewTask{Title: "two"})
	if len(out.GetWarnings()) != 1 || !strings.Contains(out.GetWarnings()[0], "tester") {
		t.Errorf("warnings: %q", out.GetWarnings())
	}
	first := lead.task(out.GetTasks()[0].GetId())
	if !strings.HasPrefix(first.GetId(), "t-") || first.GetTitle() != "one" {
		t.Errorf("the first task: %v", first)
	}
	byRevision := lead.task(strings.TrimPrefix(first.GetId(), "t-"))
	want(t, "the task by its revision", byRevision.GetId(), first.GetId())
}

func TestCreateTasks_TheSameRequestCreatesOnce(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead := d.member("lead", "lead")
	in := &pb.CreateTasksRequest{RequestId: newID(), Tasks: []*pb.NewTask{{Title: "one"}}}
	first, err := lead.CreateTasks(lead.ctx, in)
	check(t, err)
	second, err := lead.CreateTasks(lead.ctx, in)
	check(t, err)
	if !proto.Equal(first, second) {
		t.Errorf("%v, then %v", first, second)
	}
}

func TestFailTask_WaitsLongerAfterEachAttempt(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a := d.member("lead", "lead"), d.agent("a")
	lead.create("t")
	for n, wait := range []time.Duration{time.Second, 2 * time.Second} {
		want(t, "the task", a.claim(), "t")
		out := a.fail("t", false)
		want(t, "attempts", out.GetAttempts(), int32(n+1))
		want(t, "backoff", out.GetDueAt().AsTime().Sub(d.Clock.Now()), wait)
		empty, err := a.ClaimTask(a.ctx, &pb.ClaimTaskRequest{})
		check(t, err)
		want(t, "the reason", empty.GetEmptyReason(), pb.TaskEmptyReason_TASK_EMPTY_REASON_DELAYED)
		want(t, "the next time", empty.GetNextDue().AsTime(), out.GetDueAt().AsTime())
		refused(t, drop(a.ClaimTask(a.ctx, &pb.ClaimTaskRequest{Id: "t"})), "TASK_DELAYED")
		ended, _ := d.awaitClaim(a, &pb.ClaimTaskRequest{})
		d.Clock.Advance(wait)
		got := <-ended
		check(t, got.err)
		want(t, "the task after its backoff", got.answer.GetTask().GetId(), "t")
		want(t, "the number of the attempt", got.answer.GetAttempt(), int32(n+2))
		want(t, "the history", len(got.answer.GetHistory()), n+1)
		check(t, drop(a.ReleaseTask(a.ctx, &pb.ReleaseTaskRequest{Id: "t"})))
	}
	want(t, "the last attempt", a.claim(), "t")
	a.fail("t", false)
	lead.state(failed, "t")
	if mail := lead.mail("task_failed"); len(mail) != 1 || mail[0].GetMessage().GetTaskId() != "t" {
		t.Errorf("the creator got %v", mail)
	}
}

func TestCancelTask_CascadeReachesDependentsAndSubtasks(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a := d.member("lead", "lead"), d.agent("a")
	lead.createAll(&pb.NewTask{Id: "root", Title: "r"}, &pb.NewTask{Id: "part", Title: "p", Parent: "root"},
		&pb.NewTask{Id: "next", Title: "n", DependsOn: []string{"root"}}, &pb.NewTask{Id: "last", Title: "l", DependsOn: []string{"next"}},
		&pb.NewTask{Id: "other", Title: "o"}, &pb.NewTask{Id: "finished", Title: "f", Parent: "root"})
	a.take("finished")
	a.complete("finished")
	a.take("part")
	out, err := lead.CancelTask(lead.ctx, &pb.CancelTaskRequest{Id: "root", Cascade: true, Reason: "not needed"})
	check(t, err)
	want(t, "cancelled", out.GetCancelled(), 4)
	lead.state(cancelled, "root", "part", "next", "last")
	lead.state(ready, "other")
	lead.state(done, "finished")
	refused(t, drop(a.CompleteTask(a.ctx, &pb.CompleteTaskRequest{Id: "part"})), "TASK_LOST")
	if mail := a.mail("task_lost"); len(mail) != 1 || !strings.Contains(mail[0].GetMessage().GetSubject(), "not needed") {
		t.Errorf("the holder got %v", mail)
	}
}

func TestGetTask_FullHasEverythingThatCarriesItsId(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead := d.member("lead", "lead")
	lead.create("t", "u: t")
	check(t, drop(lead.messages.SendMessages(lead.ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{{
		Target: &pb.Target{To: &pb.Target_Everyone{Everyone: true}}, Subject: "about it", TaskId: "t"}}})))
	kinds := map[string]string{}
	full := lead.full("t")
	for _, r := range full.GetReferences() {
		kinds[r.GetKind()] = r.GetTitle()
	}
	want(t, "the message", kinds["message"], "about it")
	want(t, "the event", kinds["event"], "task.created")
	if n := full.GetDependents(); len(n) != 1 || n[0].GetId() != "u" {
		t.Errorf("dependents: %v", n)
	}
	refused(t, drop(lead.GetTask(lead.ctx, &pb.GetTaskRequest{Id: "nothing", View: pb.TaskView_TASK_VIEW_FULL})), "TASK_NOT_FOUND")
	check(t, drop(lead.messages.SendMessages(lead.ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{{
		Target: &pb.Target{To: &pb.Target_Everyone{Everyone: true}}, Subject: "free", TaskId: "no-row"}}})))
	if f := lead.full("no-row"); f.Task != nil || len(f.GetReferences()) == 0 {
		t.Errorf("an id without a task: %v", f)
	}
}

func TestListTasks_FiltersAndPages(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a := d.member("lead", "lead"), d.agent("a")
	lead.createAll(&pb.NewTask{Id: "1", Title: "x", Labels: map[string]string{"area": "ui"}}, &pb.NewTask{Id: "2", Title: "x", Role: "builder"},
		&pb.NewTask{Id: "3", Title: "x", Assignee: "a", Parent: "1"}, &pb.NewTask{Id: "4", Title: "x", DependsOn: []string{"1"}},
		&pb.NewTask{Id: "5", Title: "x", Priority: 9, Labels: map[string]string{"area": "ui", "size": "s"}})
	a.take("2")
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
					out, err := a.ListTasks(a.ctx, in)
					check(t, err)
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

func drop[R any](_ R, err error) error { return err }

var _ = durationpb.New

package tasks_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

// database runs statements in the broker's database. Tests stop the backlog at a row with a trigger,
// damage rows, and add many at once.
func (d *daemon) database(statements ...string) {
	d.Helper()
	for _, s := range statements {
		testkit.Change(d, d.Dir(), s)
	}
}

// number returns the result of a query for one number.
func (d *daemon) number(query string) int {
	d.Helper()
	return int(testkit.Number(d, d.Dir(), query))
}

// stopAt makes every change of a task fail, until goOn.
func (d *daemon) stopAt(id string) {
	d.Helper()
	d.database(`CREATE TRIGGER stop BEFORE UPDATE ON tasks WHEN OLD.id = '` + id + `' BEGIN SELECT RAISE(ABORT, 'stopped'); END`)
}

const goOn = `DROP TRIGGER stop`

// many returns drafts with the ids PREFIX-000 and so on.
func many(prefix string, n int, change func(i int, t *pb.NewTask)) []*pb.NewTask {
	all := make([]*pb.NewTask, n)
	for i := range all {
		all[i] = &pb.NewTask{Id: fmt.Sprintf("%s-%03d", prefix, i), Title: "x"}
		if change != nil {
			change(i, all[i])
		}
	}
	return all
}

// awaitTask waits until an agent can claim a task, and claims it.
func awaitTask(a *apptest.Actor, id string) int64 {
	a.Helper()
	return apptest.Must(a, a.ClaimTask, &pb.ClaimTaskRequest{Id: id, Wait: durationpb.New(longWait)}).GetTask().GetFence()
}

func TestCompleteTask_ManyDependentsBecomeReadyInPages(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a := d.member("lead", "lead"), d.agent("a")
	create(lead, "first", "second")
	createAll(lead, many("d", 600, func(i int, n *pb.NewTask) {
		if n.DependsOn = []string{"first"}; i == 599 {
			n.DependsOn = []string{"first", "second"}
		}
	})...)
	take(a, "first")
	d.stopAt("d-400") // a change of all dependents together would fail as a whole
	answer := complete(a, "first")
	want(t, "dependents in the answer", len(answer.GetReady()), 100)
	want(t, "the first of them", answer.GetReady()[0].GetId(), "d-000")
	wantState(lead, waiting, "d-500", "d-599")
	// Until the backlog comes to them, dependents change as others do.
	apptest.Must(t, lead.CancelTask, &pb.CancelTaskRequest{Id: "d-500"})
	create(lead, "late: first")
	wantState(lead, ready, "late")
	take(a, "second")
	complete(a, "second")
	wantState(lead, waiting, "d-599")
	refused(t, apptest.Err(a.ClaimTask(a.Ctx, &pb.ClaimTaskRequest{Id: "d-501"})), "TASK_WAITING")
	d.Check() // the invariants know of the backlog
	d.Restart(func() { d.database(goOn) })
	awaitTask(a, "d-599")
	wantState(lead, ready, "d-400", "d-501")
	wantState(lead, cancelled, "d-500")
}

func TestDeregisterAgent_LeavesManyTasksInPages(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a, b := d.member("lead", "lead"), d.agent("a"), d.agent("b")
	createAll(lead, many("t", 300, func(i int, n *pb.NewTask) { n.Assignee = "a" })...)
	take(a, "t-000")
	d.stopAt("t-290")
	apptest.Must(t, a.DeregisterAgent, &pb.DeregisterAgentRequest{})
	if err := apptest.Err(a.RegisterAgent(a.Ctx, &pb.RegisterAgentRequest{Role: "builder"})); err == nil {
		t.Error("an agent registers again before it has left all tasks")
	}
	want(t, "the assignee in between", task(lead, "t-290").GetAssignee(), "a")
	d.Restart(func() { d.database(goOn) })
	register(a, "builder") // it waits until the agent has left the tasks
	for _, id := range []string{"t-000", "t-290", "t-299"} {
		want(t, "the assignee of "+id, task(lead, id).GetAssignee(), "")
	}
	want(t, "failed attempts", task(lead, "t-000").GetAttempts(), 1)
	take(b, "t-299")
}

func TestTask_ClaimsOfAFailedAgentEndAtOnceAndTheirTasksInPages(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, b := d.member("lead", "lead"), d.agent("b")
	a := d.Actor("default", "a")
	apptest.Must(t, a.RegisterAgent, &pb.RegisterAgentRequest{Role: "builder", Lease: durationpb.New(time.Minute)})
	const held = 300
	createAll(lead, many("t", held, nil)...)
	fences := map[string]int64{}
	for i := range held {
		id := fmt.Sprintf("t-%03d", i)
		fences[id] = take(a, id)
	}
	d.stopAt("t-290")
	next, _ := d.awaitClaim(b, &pb.ClaimTaskRequest{Id: "t-000"})
	d.Clock.Advance(time.Minute)
	apptest.NoError(t, (<-next).err)
	out := apptest.Must(t, a.RegisterAgent, &pb.RegisterAgentRequest{Role: "builder"})
	want(t, "losses", len(out.GetLosses()), held)
	// The task is still CLAIMED, but not by the agent that is back.
	wantState(lead, claimed, "t-299")
	for name, err := range map[string]error{
		"complete":              apptest.Err(a.CompleteTask(a.Ctx, &pb.CompleteTaskRequest{Id: "t-299"})),
		"complete by its fence": apptest.Err(a.CompleteTask(a.Ctx, &pb.CompleteTaskRequest{Id: "t-299", Fence: fences["t-299"]})),
	} {
		t.Log(name)
		refused(t, err, "TASK_LOST")
	}
	refused(t, apptest.Err(a.ClaimTask(a.Ctx, &pb.ClaimTaskRequest{Id: "t-299"})), "TASK_CLAIMED")
	create(lead, "new")
	fence := take(a, "new")
	d.Restart(func() { d.database(goOn) })
	if awaitTask(b, "t-299") == fences["t-299"] {
		t.Error("the fence of the former claim is that of the new one")
	}
	want(t, "the claim after the failure", task(lead, "new").GetFence(), fence)
	want(t, "failed attempts", task(lead, "t-299").GetAttempts(), 1)
	wantState(lead, ready, "t-290", "t-150")
}

func TestCloseSession_ReleasesManyTasksInPages(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	o := d.Root()
	apptest.Must(t, o.CreateSession, &pb.CreateSessionRequest{Name: "s"})
	a := d.Actor("s", "a")
	register(a, "builder")
	const held = 300
	createAll(a, many("t", held, nil)...)
	for i := range held {
		take(a, fmt.Sprintf("t-%03d", i))
	}
	d.stopAt("t-290")
	apptest.Must(t, o.CloseSession, &pb.CloseSessionRequest{Name: "s"})
	refused(t, apptest.Err(a.CompleteTask(a.Ctx, &pb.CompleteTaskRequest{Id: "t-290"})), "SESSION_CLOSED")
	d.Restart(func() { d.database(goOn) })
	reader := d.Actor("s", "")
	for task(reader, "t-299").GetState() != ready || task(reader, "t-290").GetState() != ready {
		apptest.NoError(t, reader.Ctx.Err())
	}
}

func TestCancelTask_ALargeCascadeContinuesAfterTheAnswer(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead := d.member("lead", "lead")
	createAll(lead, &pb.NewTask{Id: "root", Title: "x"})
	createAll(lead, many("part", 1000, func(_ int, n *pb.NewTask) { n.Parent = "root" })...)
	createAll(lead, many("next", 600, func(i int, n *pb.NewTask) { n.DependsOn = []string{fmt.Sprintf("part-%03d", i)} })...)
	create(lead, "last: next-599")
	out := apptest.Must(t, lead.CancelTask, &pb.CancelTaskRequest{Id: "root", Cascade: true, Reason: "why"})
	want(t, "cancelled in the answer", out.GetCancelled(), 1000)
	want(t, "more follow", out.GetMoreFollow(), true)
	wantState(lead, cancelled, "root", "part-000", "part-500")
	wait := apptest.Must(t, lead.WaitTasks, &pb.WaitTasksRequest{TaskIds: []string{"last"}, Wait: durationpb.New(longWait)})
	want(t, "the outcome for the last task", wait.GetOutcome(), attention)
	for _, state := range []string{"1", "2"} {
		for d.number(`SELECT count(*) FROM tasks WHERE state = `+state) > 0 {
			apptest.NoError(t, lead.Ctx.Err())
		}
	}
	want(t, "the reason", task(lead, "last").GetError(), "why")
	create(lead, "small", "part: small")
	out = apptest.Must(t, lead.CancelTask, &pb.CancelTaskRequest{Id: "small", Cascade: true})
	want(t, "cancelled in the answer to a small cascade", out.GetCancelled(), 2)
	want(t, "more follow a small cascade", out.GetMoreFollow(), false)
}

// hold makes an agent the holder of all READY tasks whose ids begin with a prefix.
func (d *daemon) hold(agent, prefix string) {
	d.Helper()
	d.database(`UPDATE tasks SET state = 3, holder = '` + agent + `', fence = created, claimed_at = created_at, updated_at = created_at
		WHERE state = 2 AND id LIKE '` + prefix + `-%'`)
}

func TestCancelTask_ACascadeWhoseEventsGoToManyAgentsContinuesAfterTheAnswer(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a := d.member("lead", "lead"), d.agent("a")
	create(lead, "root")
	createAll(lead, many("part", 999, func(_ int, n *pb.NewTask) { n.Parent = "root" })...)
	d.hold("a", "part")
	const watchers = 1700
	d.database(fmt.Sprintf(`
		WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d)
		INSERT INTO mailboxes (session, kind, name, waiting) SELECT 1, 1, 'watcher-' || i, 0 FROM n`, watchers))
	// The agents of these mailboxes need not be registered. The first subscription makes the channel.
	apptest.Must(t, a.SubscribeChannel, &pb.SubscribeChannelRequest{Channel: "event/task.cancelled"})
	d.database(`INSERT INTO subscriptions (channel, agent) SELECT c.id, w.id FROM mailboxes c, mailboxes w
		WHERE c.kind = 3 AND c.name = 'event/task_cancelled' AND w.name LIKE 'watcher-%'`)
	apptest.Must(t, a.SubscribeChannel, &pb.SubscribeChannelRequest{Channel: "general"}) // the broker reads the subscriptions again
	out := apptest.Must(t, lead.CancelTask, &pb.CancelTaskRequest{Id: "root", Cascade: true})
	d.database(`DELETE FROM subscriptions`) // the other copies are for other tests
	if n := out.GetCancelled(); n < 100 || n > 900 || !out.GetMoreFollow() {
		t.Errorf("the answer has cancelled %d tasks, and more follow: %v", n, out.GetMoreFollow())
	}
	for d.number(`SELECT count(*) FROM tasks WHERE state <> 7`) > 0 {
		apptest.NoError(t, lead.Ctx.Err())
	}
}

func TestTask_TheEndOfALeaseWithManyClaimsAndTasksReadsABoundedNumber(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, o := d.member("lead", "lead"), d.Root()
	a := d.Actor("default", "a")
	apptest.Must(t, a.RegisterAgent, &pb.RegisterAgentRequest{Role: "builder", Lease: durationpb.New(time.Minute)})
	mail := make([]*pb.Message, 1000)
	for i := range mail {
		mail[i] = &pb.Message{Target: &pb.Target{To: &pb.Target_Agent{Agent: "a"}}}
	}
	for i := range 10 { // of each, twice as many as the broker reports
		apptest.Must(t, o.SendMessages, &pb.SendMessagesRequest{Messages: mail})
		out := apptest.Must(t, a.ClaimMessages, &pb.ClaimMessagesRequest{
			Consumer: fmt.Sprint("c", i), Max: 1000, ClaimFor: durationpb.New(time.Hour),
		})
		want(t, "claims", len(out.GetClaims()), 1000)
		createAll(lead, many(fmt.Sprint("t", i), 1000, nil)...)
	}
	d.hold("a", "t%")
	d.Clock.Advance(time.Minute)
	for d.number(`SELECT count(*) FROM events WHERE type = 'agent.failed'`) == 0 {
		apptest.NoError(t, lead.Ctx.Err())
	}
	out := apptest.Must(t, a.RegisterAgent, &pb.RegisterAgentRequest{Role: "builder"})
	want(t, "losses", len(out.GetLosses())+int(out.GetMoreLosses()), 5000+5000)
}

func TestClaimTask_LabelsAreFoundByAnIndex(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a := d.member("lead", "lead"), d.agent("a")
	createAll(lead, many("t", 300, func(_ int, n *pb.NewTask) { n.Labels, n.Priority = map[string]string{"area": "ui"}, 9 })...)
	createAll(lead, &pb.NewTask{Id: "other", Title: "x", Labels: map[string]string{"area": "db"}})
	// A claim that reads the other tasks fails.
	d.Restart(func() { d.database(`UPDATE tasks SET labels = '{' WHERE id LIKE 't-%'`) })
	defer d.database(`UPDATE tasks SET labels = '{"area":"ui"}' WHERE id LIKE 't-%'`)
	out := apptest.Must(t, a.ClaimTask, &pb.ClaimTaskRequest{Labels: map[string]string{"area": "nothing"}})
	want(t, "a task with an absent label", out.GetTask().GetId(), "")
	out = apptest.Must(t, a.ClaimTask, &pb.ClaimTaskRequest{Labels: map[string]string{"area": "db"}})
	want(t, "the task with the label", out.GetTask().GetId(), "other")
}

func TestClaimTask_LabelsFollowEveryChangeOfTheTask(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a, b := d.member("lead", "lead"), d.agent("a"), d.agent("b")
	by := func(agent *apptest.Actor, labels map[string]string) string {
		t.Helper()
		return apptest.Must(t, agent.ClaimTask, &pb.ClaimTaskRequest{Labels: labels}).GetTask().GetId()
	}
	ui, small := map[string]string{"area": "ui"}, map[string]string{"area": "ui", "size": "s"}
	createAll(lead, &pb.NewTask{Id: "t", Title: "x", Labels: ui, Assignee: "a"}, &pb.NewTask{Id: "u", Title: "x", Labels: ui},
		&pb.NewTask{Id: "v", Title: "x", Labels: small}, &pb.NewTask{Id: "w", Title: "x", DependsOn: []string{"v"}, Labels: small})
	want(t, "with both labels", by(a, small), "v")
	want(t, "with both labels again", by(a, small), "")
	complete(a, "v")
	want(t, "a dependent", by(a, small), "w")
	apptest.Must(t, a.ReleaseTask, &pb.ReleaseTaskRequest{Id: "w"})
	apptest.Must(t, lead.UpdateTask, &pb.UpdateTaskRequest{Id: "w", RemoveLabels: []string{"size"}})
	want(t, "without the label", by(a, small), "")
	apptest.Must(t, lead.UpdateTask, &pb.UpdateTaskRequest{Id: "u", SetLabels: map[string]string{"size": "s"}})
	want(t, "with the new label", by(a, small), "u")
	priority := int32(10)
	apptest.Must(t, lead.UpdateTask, &pb.UpdateTaskRequest{Id: "w", Priority: &priority})
	want(t, "not of the assignee", by(b, ui), "w")
	apptest.Must(t, a.ReleaseTask, &pb.ReleaseTaskRequest{Id: "t", Decline: true, Reason: "no"})
	want(t, "after it was declined", by(b, ui), "t")
	fail(b, "t", true)
	want(t, "a failed task", by(b, ui), "")
	apptest.Must(t, lead.RetryTask, &pb.RetryTaskRequest{Id: "t"})
	want(t, "a task that is tried again", by(b, ui), "t")
}

func TestClaimTask_SearchesManyTasksInSeveralFunctionsAndMissesNone(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a := d.member("lead", "lead"), d.agent("a")
	both := map[string]string{"x": "1", "y": "1"}
	for _, label := range []string{"x", "y"} { // disjoint, each more than one function compares
		for i := range 3 {
			createAll(lead, many(fmt.Sprint(label, i), 1000, func(_ int, n *pb.NewTask) { n.Labels = map[string]string{label: "1"} })...)
		}
	}
	out := apptest.Must(t, a.ClaimTask, &pb.ClaimTaskRequest{Labels: both})
	want(t, "a task with both labels", out.GetTask().GetId(), "")
	ended, _ := d.awaitClaim(a, &pb.ClaimTaskRequest{Labels: both})
	createAll(lead, &pb.NewTask{Id: "first", Title: "x", Labels: both})
	got := <-ended
	apptest.NoError(t, got.err)
	want(t, "the task that a waiting claim gets", got.answer.GetTask().GetId(), "first")
	createAll(lead, &pb.NewTask{Id: "second", Title: "x", Labels: both, Priority: 1}, &pb.NewTask{Id: "third", Title: "x", Labels: both, Priority: 1})
	out = apptest.Must(t, a.ClaimTask, &pb.ClaimTaskRequest{Labels: both})
	want(t, "a task behind all others", out.GetTask().GetId(), "second")
	out = apptest.Must(t, a.ClaimTask, &pb.ClaimTaskRequest{Labels: both, Wait: durationpb.New(longWait)})
	want(t, "a task that a claim finds while it waits", out.GetTask().GetId(), "third")
	list := apptest.Must(t, a.ListTasks, &pb.ListTasksRequest{Claimable: true, Labels: map[string]string{"y": "1"}, PageSize: 3})
	var ids []string
	for _, task := range list.GetTasks() {
		ids = append(ids, task.GetId())
	}
	want(t, "the first claimable tasks", strings.Join(ids, " "), "y0-000 y0-001 y0-002")
}

func TestClaimTask_TheEndOfADrainServesManyWaitingClaimsInPages(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a, o := d.member("lead", "lead"), d.agent("a"), d.Root()
	apptest.Must(t, o.Drain, &pb.DrainRequest{})
	const waits = 250
	var claims []<-chan outcome[*pb.ClaimTaskResponse]
	for range waits {
		c, _ := d.awaitClaim(a, &pb.ClaimTaskRequest{})
		claims = append(claims, c)
	}
	createAll(lead, many("t", waits, nil)...)
	wantState(lead, ready, "t-000")
	apptest.Must(t, o.Drain, &pb.DrainRequest{Resume: true})
	got := map[string]bool{}
	for _, c := range claims {
		one := <-c
		apptest.NoError(t, one.err)
		got[one.answer.GetTask().GetId()] = true
	}
	want(t, "tasks that were claimed", len(got), waits)
}

func TestTask_ItsQueueEndsWithItsLastUnfinishedTask(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a := d.member("lead", "lead"), d.agent("a", "c-003")
	createAll(lead, many("t", 50, func(i int, n *pb.NewTask) { n.Capabilities = []string{fmt.Sprintf("c-%03d", i)} })...)
	want(t, "queues", d.number(`SELECT count(*) FROM task_queues`), 50)
	take(a, "t-003")
	fail(a, "t-003", true)
	for i := range 50 {
		if i != 3 {
			apptest.Must(t, lead.CancelTask, &pb.CancelTaskRequest{Id: fmt.Sprintf("t-%03d", i)})
		}
	}
	want(t, "queues without tasks", d.number(`SELECT count(*) FROM task_queues`), 0)
	apptest.Must(t, lead.RetryTask, &pb.RetryTaskRequest{Id: "t-003"})
	want(t, "the task that is tried again", claim(a), "t-003")
	createAll(lead, &pb.NewTask{Id: "mine", Title: "x", Assignee: "a"})
	apptest.Must(t, a.ReleaseTask, &pb.ReleaseTaskRequest{Id: "mine", Decline: true, Reason: "no"})
	want(t, "queues with tasks", d.number(`SELECT count(*) FROM task_queues`), 2)
}

func TestTask_ADamagedOneDelaysNoOtherThatIsDue(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a, b := d.member("lead", "lead"), d.agent("a"), d.agent("b")
	createAll(lead, &pb.NewTask{Id: "damaged", Title: "x", StaleAfter: durationpb.New(time.Minute)},
		&pb.NewTask{Id: "t", Title: "x", StaleAfter: durationpb.New(2 * time.Minute)})
	take(a, "damaged")
	take(a, "t")
	d.Restart(func() { d.database(`UPDATE tasks SET labels = '{' WHERE id = 'damaged'`) })
	defer d.database(`UPDATE tasks SET labels = NULL WHERE id = 'damaged'`)
	next, _ := d.awaitClaim(b, &pb.ClaimTaskRequest{Id: "t"})
	d.Clock.Advance(2 * time.Minute)
	got := <-next
	apptest.NoError(t, got.err)
	want(t, "the number of the attempt", got.answer.GetAttempt(), 2)
}

func TestListTasks_APageReadsABoundedNumberOfTasks(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead := d.member("lead", "lead")
	createAll(lead, &pb.NewTask{Id: "first", Title: "x", Labels: map[string]string{"area": "ui"}}, &pb.NewTask{Id: "copied", Title: "x"})
	apptest.Must(t, lead.CancelTask, &pb.CancelTaskRequest{Id: "copied"})
	d.Restart(func() {
		d.database(`CREATE TEMP TABLE one AS SELECT * FROM tasks WHERE id = 'copied';
			CREATE TEMP TABLE copies AS WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 45000) SELECT n.i, one.* FROM n, one;
			UPDATE copies SET created = 1000000 + i, id = 'copy-' || i;
			ALTER TABLE copies DROP COLUMN i;
			INSERT INTO tasks SELECT * FROM copies;
			UPDATE meta SET revision = 2000000`)
	})
	createAll(lead, &pb.NewTask{Id: "last", Title: "x", Labels: map[string]string{"area": "ui"}})
	for name, in := range map[string]*pb.ListTasksRequest{
		"labels":         {Labels: map[string]string{"area": "ui"}},
		"oldest":         {Labels: map[string]string{"area": "ui"}, OldestFirst: true},
		"creator":        {Labels: map[string]string{"area": "ui"}, Creator: "lead"},
		"several states": {Labels: map[string]string{"area": "ui"}, States: []pb.TaskState{ready, cancelled}},
	} {
		t.Run(name, func(t *testing.T) {
			var ids []string
			pages := 0
			for {
				out := apptest.Must(t, lead.ListTasks, in)
				for _, task := range out.GetTasks() {
					ids = append(ids, task.GetId())
				}
				pages++
				if in.PageToken = out.GetNextPageToken(); in.PageToken == "" {
					break
				}
			}
			expected := "last first"
			if in.OldestFirst {
				expected = "first last"
			}
			want(t, "tasks", strings.Join(ids, " "), expected)
			if pages < 3 {
				t.Errorf("45,002 tasks were read in %d pages", pages)
			}
		})
	}
}

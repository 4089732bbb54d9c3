package tasks_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
)

func TestTask_ReturnsWhenTheLeaseOfItsHolderEnds(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a := d.member("lead", "lead"), d.in("default", "a")
	check(t, drop(a.registry.RegisterAgent(a.ctx, &pb.RegisterAgentRequest{Role: "builder", Lease: durationpb.New(time.Minute)})))
	lead.create("t")
	fence := a.take("t")
	check(t, drop(a.UpdateTask(a.ctx, &pb.UpdateTaskRequest{Id: "t", Progress: proto.Float64(0.5), Note: proto.String("half")})))
	next, _ := d.awaitClaim(d.agent("b"), &pb.ClaimTaskRequest{})
	d.Clock.Advance(time.Minute)
	got := <-next
	check(t, got.err)
	task := got.answer.GetTask()
	if task.GetId() != "t" || got.answer.GetAttempt() != 2 || task.GetProgress() != 0.5 || task.GetNote() != "half" {
		t.Errorf("the next holder got %v", got.answer)
	}
	if h := got.answer.GetHistory(); len(h) != 1 || h[0].GetAgent() != "a" || !strings.Contains(h[0].GetError(), "lease") {
		t.Errorf("the history: %v", h)
	}
	out, err := a.registry.RegisterAgent(a.ctx, &pb.RegisterAgentRequest{Role: "builder"})
	check(t, err)
	if l := out.GetLosses(); len(l) != 1 || l[0].GetKind() != pb.LossKind_LOSS_KIND_TASK || l[0].GetName() != "t" || l[0].GetRevision() != fence {
		t.Errorf("the losses of the former holder: %v", l)
	}
	_, err = a.CompleteTask(a.ctx, &pb.CompleteTaskRequest{Id: "t", Fence: fence})
	refused(t, err, "TASK_LOST")
	if err == nil || !strings.Contains(err.Error(), "claimed by b") {
		t.Errorf("the error does not name the present state: %v", err)
	}
}

func TestTask_AnAgentThatRegistersAgainKeepsItsTasks(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a := d.member("lead", "lead"), d.agent("a")
	lead.create("t")
	fence := a.take("t")
	a.register("builder")
	want(t, "the fence", lead.task("t").GetFence(), fence)
	a.complete("t")
}

func TestTask_SurvivesARestartOfTheBroker(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a := d.member("lead", "lead"), d.agent("a")
	lead.create("t", "u", "v: t")
	fence := a.take("t")
	a.take("u")
	a.fail("u", false)
	d.Restart()
	want(t, "the fence", lead.task("t").GetFence(), fence)
	check(t, drop(a.CompleteTask(a.ctx, &pb.CompleteTaskRequest{Id: "t", Fence: fence})))
	ended, _ := d.awaitClaim(a, &pb.ClaimTaskRequest{Id: "u"})
	d.Clock.Advance(time.Second)
	want(t, "the task after its backoff", (<-ended).answer.GetTask().GetId(), "u")
	want(t, "the dependent", a.claim(), "v")
}

func TestTask_IsReleasedWhenItsHolderSendsNoUpdate(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a, b := d.member("lead", "lead"), d.agent("a"), d.agent("b")
	lead.createAll(&pb.NewTask{Id: "t", Title: "x", StaleAfter: durationpb.New(time.Hour), MaxAttempts: 2},
		&pb.NewTask{Id: "patient", Title: "x", StaleAfter: durationpb.New(0)}, &pb.NewTask{Id: "usual", Title: "x"})
	a.take("t")
	a.take("patient")
	a.take("usual")
	want(t, "the usual time", lead.task("usual").GetStaleAfter().AsDuration(), 2*time.Hour)
	d.Clock.Advance(50 * time.Minute)
	out, err := a.UpdateTask(a.ctx, &pb.UpdateTaskRequest{Id: "t"})
	check(t, err)
	want(t, "the time left", out.GetStaleAt().AsTime().Sub(d.Clock.Now()), time.Hour)
	d.Clock.Advance(50 * time.Minute)
	lead.state(claimed, "t")
	next, _ := d.awaitClaim(b, &pb.ClaimTaskRequest{Id: "t"})
	d.Clock.Advance(10 * time.Minute)
	got := <-next
	check(t, got.err)
	want(t, "the number of the attempt", got.answer.GetAttempt(), 2)
	d.Clock.Advance(50 * time.Minute)
	if mail := a.mail("task_lost"); len(mail) == 0 || !strings.Contains(mail[0].GetMessage().GetSubject(), "task t: its holder a sent no update for 1h") {
		t.Errorf("the former holder got %v", mail)
	}
	wait, _ := begin(d, func(ctx context.Context) (*pb.WaitTasksResponse, error) {
		return lead.WaitTasks(ctx, &pb.WaitTasksRequest{TaskIds: []string{"t"}, Wait: durationpb.New(longWait)})
	})
	d.Clock.Advance(10 * time.Minute)
	ended := <-wait
	check(t, ended.err)
	want(t, "the outcome", ended.answer.GetOutcome(), pb.WaitOutcome_WAIT_OUTCOME_ATTENTION)
	lead.state(failed, "t")
	lead.state(claimed, "patient")
}

func TestTask_BlockedDoesNotBecomeStale(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a := d.member("lead", "lead"), d.agent("a")
	lead.createAll(&pb.NewTask{Id: "t", Title: "x", StaleAfter: durationpb.New(time.Minute)}, &pb.NewTask{Id: "u", Title: "x", StaleAfter: durationpb.New(time.Minute)})
	a.take("t")
	check(t, drop(a.UpdateTask(a.ctx, &pb.UpdateTaskRequest{Id: "t", BlockChange: &pb.UpdateTaskRequest_Block{Block: "why"}})))
	a.take("u")
	next, _ := d.awaitClaim(d.agent("b"), &pb.ClaimTaskRequest{Id: "u"})
	d.Clock.Advance(time.Minute)
	check(t, (<-next).err)
	lead.state(blocked, "t")
	check(t, drop(a.UpdateTask(a.ctx, &pb.UpdateTaskRequest{Id: "t", BlockChange: &pb.UpdateTaskRequest_Unblock{Unblock: true}})))
	want(t, "the time left", lead.task("t").GetStaleAt().AsTime().Sub(d.Clock.Now()), time.Minute)
}

func TestTask_ItsAssigneeGetsALetterUntilItClaims(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a, b := d.member("lead", "lead"), d.agent("a"), d.agent("b")
	lead.createAll(&pb.NewTask{Id: "first", Title: "x"}, &pb.NewTask{Id: "t", Title: "Add login", Description: "with OAuth", Assignee: "a", DependsOn: []string{"first"}})
	want(t, "letters before it is ready", len(a.mail("task_assignment")), 0)
	b.take("first")
	b.complete("first")
	mail := a.mail("task_assignment")
	if len(mail) != 1 {
		t.Fatalf("the assignee got %v", mail)
	}
	m := mail[0].GetMessage()
	want(t, "sender", m.GetSender(), "lead")
	want(t, "subject", m.GetSubject(), "Add login")
	want(t, "payload", m.GetPayload(), `{"depends_on":["first"],"description":"with OAuth","task_id":"t","title":"Add login"}`)
	want(t, "another agent's claim", b.claim(), "")
	want(t, "the assignee's claim", a.claim(), "t")
	got, err := lead.messages.GetMessage(lead.ctx, &pb.GetMessageRequest{Id: m.GetId()})
	check(t, err)
	if s := got.GetDeliveries()[0].GetState(); s != pb.DeliveryState_DELIVERY_STATE_CANCELLED {
		t.Errorf("the letter of a claimed task is %v", s)
	}
}

func TestReleaseTask_DeclineFreesTheTaskForOthers(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a, b := d.member("lead", "lead"), d.agent("a"), d.agent("b")
	for _, hold := range []bool{false, true} {
		id := map[bool]string{false: "unclaimed", true: "held"}[hold]
		lead.createAll(&pb.NewTask{Id: id, Title: "x", Assignee: "a"})
		if hold {
			a.take(id)
		}
		_, err := a.ReleaseTask(a.ctx, &pb.ReleaseTaskRequest{Id: id, Decline: true})
		refused(t, err, "INVALID_ARGUMENT")
		check(t, drop(a.ReleaseTask(a.ctx, &pb.ReleaseTaskRequest{Id: id, Decline: true, Reason: "no time"})))
		task := lead.task(id)
		want(t, "the assignee", task.GetAssignee(), "")
		want(t, "failed attempts", task.GetAttempts(), 0)
		mail := lead.mail("task_rejected")
		if len(mail) == 0 || !strings.Contains(mail[0].GetMessage().GetPayload(), `"reason":"no time"`) {
			t.Errorf("the creator got %v", mail)
		}
		want(t, "another agent's claim", b.claim(), id)
		b.complete(id)
	}
	if mail := lead.mail("task_complete"); len(mail) != 2 {
		t.Errorf("the creator got %d notices of completion", len(mail))
	}
}

func TestTask_LosesItsHolderAndAssigneeWhenTheyDeregister(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a, b := d.member("lead", "lead"), d.agent("a"), d.agent("b")
	lead.createAll(&pb.NewTask{Id: "held", Title: "x", Assignee: "a"}, &pb.NewTask{Id: "assigned", Title: "x", Assignee: "a"}, &pb.NewTask{Id: "free", Title: "x"})
	a.take("held")
	a.take("free")
	waits, _ := d.awaitClaim(a, &pb.ClaimTaskRequest{Id: lead.create("later: free").GetTasks()[0].GetId()})
	check(t, drop(a.registry.DeregisterAgent(a.ctx, &pb.DeregisterAgentRequest{})))
	refused(t, (<-waits).err, "AGENT_NOT_REGISTERED")
	for _, id := range []string{"held", "free"} {
		want(t, "failed attempts of "+id, lead.task(id).GetAttempts(), 1)
	}
	for range 3 {
		if id := b.claim(); id == "" {
			t.Error("a task of the deregistered agent cannot be claimed")
		}
	}
}

func TestTask_IsPartOfWhatItsAgentsSee(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a := d.member("lead", "lead"), d.agent("a")
	lead.createAll(&pb.NewTask{Id: "mine", Title: "x"}, &pb.NewTask{Id: "assigned", Title: "x", Assignee: "a"})
	a.take("mine")
	out, err := a.registry.GetAgent(a.ctx, &pb.GetAgentRequest{View: pb.AgentView_AGENT_VIEW_FULL})
	check(t, err)
	seen := map[string]pb.WorkRelation{}
	for _, w := range out.GetHoldings().GetWork() {
		seen[w.GetId()] = w.GetRelation()
	}
	if seen["mine"] != pb.WorkRelation_WORK_RELATION_HOLDS || seen["assigned"] != pb.WorkRelation_WORK_RELATION_OWES {
		t.Errorf("the agent sees %v", seen)
	}
	st, err := lead.admin.GetStatus(lead.ctx, &pb.GetStatusRequest{})
	check(t, err)
	if !strings.Contains(st.String(), "task") {
		t.Errorf("the status does not count tasks: %v", st)
	}
}

func TestTask_BlockersBlockItUntilTheyAreResolved(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a := d.member("lead", "lead"), d.agent("a")
	lead.create("t")
	a.take("t")
	blockers := pb.NewBlockerServiceClient(d.Conn("a"))
	raised, err := blockers.RaiseBlocker(a.ctx, &pb.RaiseBlockerRequest{Reason: "no key", TaskId: "t"})
	check(t, err)
	lead.state(blocked, "t")
	if holder := lead.task("t").GetHolder(); holder != "a" {
		t.Errorf("a blocked task is held by %q", holder)
	}
	check(t, drop(blockers.ResolveBlocker(a.ctx, &pb.ResolveBlockerRequest{Id: raised.GetBlocker().GetId()})))
	lead.state(claimed, "t")
}

func TestTask_IsReleasedWhenItsSessionIsClosed(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	o := d.operator()
	check(t, drop(o.sessions.CreateSession(o.ctx, &pb.CreateSessionRequest{Name: "s"})))
	a, b := d.in("s", "a"), d.in("s", "b")
	a.register("builder")
	b.register("builder")
	a.create("t")
	a.take("t")
	waits, _ := d.awaitClaim(b, &pb.ClaimTaskRequest{})
	check(t, drop(o.sessions.CloseSession(o.ctx, &pb.CloseSessionRequest{Name: "s"})))
	refused(t, (<-waits).err, "SESSION_CLOSED")
	d.in("s", "").state(ready, "t")
	refused(t, drop(b.ClaimTask(b.ctx, &pb.ClaimTaskRequest{Id: "t"})), "SESSION_CLOSED")
}

func TestTask_ExplainNamesWhatStopsIt(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a := d.member("lead", "lead"), d.agent("a")
	lead.createAll(&pb.NewTask{Id: "broken", Title: "x"}, &pb.NewTask{Id: "after", Title: "x", DependsOn: []string{"broken"}},
		&pb.NewTask{Id: "nobody", Title: "x", Capabilities: []string{"rust"}})
	a.take("broken")
	a.fail("broken", true)
	for id, c := range map[string][2]string{
		"broken": {"it failed after 1 attempt: it broke", "task retry broken"},
		"after":  {"unless task broken, which has failed, is done", "task retry broken"},
		"nobody": {"no registered agent can claim it", "agent list"},
	} {
		out, err := lead.admin.Explain(lead.ctx, &pb.ExplainRequest{Subject: &pb.ExplainRequest_Task{Task: id}})
		check(t, err)
		if len(out.GetFindings()) != 1 {
			t.Fatalf("%s: %v", id, out)
		}
		f := out.GetFindings()[0]
		if !strings.Contains(f.GetSummary(), c[0]) || len(f.GetCommands()) == 0 || !strings.Contains(f.GetCommands()[0], c[1]) {
			t.Errorf("%s: %v", id, f)
		}
	}
	all, err := d.operator().admin.Explain(lead.ctx, &pb.ExplainRequest{})
	check(t, err)
	if n := len(all.GetFindings()); n != 3 {
		t.Errorf("the session has %d findings: %v", n, all)
	}
}

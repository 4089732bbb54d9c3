package tasks_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

func TestTask_ReturnsWhenTheLeaseOfItsHolderEnds(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a := d.member("lead", "lead"), d.Actor("default", "a")
	apptest.Must(t, a.RegisterAgent, &pb.RegisterAgentRequest{Role: "builder", Lease: durationpb.New(time.Minute)})
	create(lead, "t")
	fence := take(a, "t")
	apptest.Must(t, a.UpdateTask, &pb.UpdateTaskRequest{Id: "t", Progress: proto.Float64(0.5), Note: proto.String("half")})
	next, _ := d.awaitClaim(d.agent("b"), &pb.ClaimTaskRequest{})
	d.Clock.Advance(time.Minute)
	got := <-next
	apptest.NoError(t, got.err)
	task := got.answer.GetTask()
	if task.GetId() != "t" || got.answer.GetAttempt() != 2 || task.GetProgress() != 0.5 || task.GetNote() != "half" {
		t.Errorf("the next holder got %v", got.answer)
	}
	if h := got.answer.GetHistory(); len(h) != 1 || h[0].GetAgent() != "a" || !strings.Contains(h[0].GetError(), "lease") {
		t.Errorf("the history: %v", h)
	}
	out := apptest.Must(t, a.RegisterAgent, &pb.RegisterAgentRequest{Role: "builder"})
	if l := out.GetLosses(); len(l) != 1 || l[0].GetKind() != pb.LossKind_LOSS_KIND_TASK || l[0].GetName() != "t" || l[0].GetRevision() != fence {
		t.Errorf("the losses of the former holder: %v", l)
	}
	_, err := a.CompleteTask(a.Ctx, &pb.CompleteTaskRequest{Id: "t", Fence: fence})
	refused(t, err, "TASK_LOST")
	if err == nil || !strings.Contains(err.Error(), "claimed by b") {
		t.Errorf("the error does not name the present state: %v", err)
	}
}

func TestTask_AnAgentThatRegistersAgainKeepsItsTasks(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a := d.member("lead", "lead"), d.agent("a")
	create(lead, "t")
	fence := take(a, "t")
	register(a, "builder")
	want(t, "the fence", task(lead, "t").GetFence(), fence)
	complete(a, "t")
}

func TestTask_SurvivesARestartOfTheBroker(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a := d.member("lead", "lead"), d.agent("a")
	create(lead, "t", "u", "v: t")
	fence := take(a, "t")
	take(a, "u")
	fail(a, "u", false)
	d.Restart()
	want(t, "the fence", task(lead, "t").GetFence(), fence)
	apptest.Must(t, a.CompleteTask, &pb.CompleteTaskRequest{Id: "t", Fence: fence})
	ended, _ := d.awaitClaim(a, &pb.ClaimTaskRequest{Id: "u"})
	d.Clock.Advance(time.Second)
	want(t, "the task after its backoff", (<-ended).answer.GetTask().GetId(), "u")
	want(t, "the dependent", claim(a), "v")
}

func TestTask_IsReleasedWhenItsHolderSendsNoUpdate(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a, b := d.member("lead", "lead"), d.agent("a"), d.agent("b")
	createAll(lead, &pb.NewTask{Id: "t", Title: "x", StaleAfter: durationpb.New(time.Hour), MaxAttempts: 2},
		&pb.NewTask{Id: "patient", Title: "x", StaleAfter: durationpb.New(0)}, &pb.NewTask{Id: "usual", Title: "x"})
	take(a, "t")
	take(a, "patient")
	take(a, "usual")
	want(t, "the usual time", task(lead, "usual").GetStaleAfter().AsDuration(), 2*time.Hour)
	d.Clock.Advance(50 * time.Minute)
	out := apptest.Must(t, a.UpdateTask, &pb.UpdateTaskRequest{Id: "t"})
	want(t, "the time left", out.GetStaleAt().AsTime().Sub(d.Clock.Now()), time.Hour)
	d.Clock.Advance(50 * time.Minute)
	wantState(lead, claimed, "t")
	next, _ := d.awaitClaim(b, &pb.ClaimTaskRequest{Id: "t"})
	d.Clock.Advance(10 * time.Minute)
	got := <-next
	apptest.NoError(t, got.err)
	want(t, "the number of the attempt", got.answer.GetAttempt(), 2)
	d.Clock.Advance(50 * time.Minute)
	if mail := mail(a, "task_lost"); len(mail) == 0 || !strings.Contains(mail[0].GetMessage().GetSubject(), "task t: its holder a sent no update for 1h") {
		t.Errorf("the former holder got %v", mail)
	}
	wait, _ := begin(d, func(ctx context.Context) (*pb.WaitTasksResponse, error) {
		return lead.WaitTasks(ctx, &pb.WaitTasksRequest{TaskIds: []string{"t"}, Wait: durationpb.New(longWait)})
	})
	d.Clock.Advance(10 * time.Minute)
	ended := <-wait
	apptest.NoError(t, ended.err)
	want(t, "the outcome", ended.answer.GetOutcome(), pb.WaitOutcome_WAIT_OUTCOME_ATTENTION)
	wantState(lead, failed, "t")
	wantState(lead, claimed, "patient")
}

func TestTask_BlockedDoesNotBecomeStale(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a := d.member("lead", "lead"), d.agent("a")
	createAll(lead, &pb.NewTask{Id: "t", Title: "x", StaleAfter: durationpb.New(time.Minute)}, &pb.NewTask{Id: "u", Title: "x", StaleAfter: durationpb.New(time.Minute)})
	take(a, "t")
	apptest.Must(t, a.UpdateTask, &pb.UpdateTaskRequest{Id: "t", BlockChange: &pb.UpdateTaskRequest_Block{Block: "why"}})
	take(a, "u")
	next, _ := d.awaitClaim(d.agent("b"), &pb.ClaimTaskRequest{Id: "u"})
	d.Clock.Advance(time.Minute)
	apptest.NoError(t, (<-next).err)
	wantState(lead, blocked, "t")
	apptest.Must(t, a.UpdateTask, &pb.UpdateTaskRequest{Id: "t", BlockChange: &pb.UpdateTaskRequest_Unblock{Unblock: true}})
	want(t, "the time left", task(lead, "t").GetStaleAt().AsTime().Sub(d.Clock.Now()), time.Minute)
}

func TestTask_ItsAssigneeGetsALetterUntilItClaims(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a, b := d.member("lead", "lead"), d.agent("a"), d.agent("b")
	createAll(lead, &pb.NewTask{Id: "first", Title: "x"}, &pb.NewTask{Id: "t", Title: "Add login", Description: "with OAuth", Assignee: "a", DependsOn: []string{"first"}})
	want(t, "letters before it is ready", len(mail(a, "task_assignment")), 0)
	take(b, "first")
	complete(b, "first")
	mail := mail(a, "task_assignment")
	if len(mail) != 1 {
		t.Fatalf("the assignee got %v", mail)
	}
	m := mail[0].GetMessage()
	want(t, "sender", m.GetSender(), "lead")
	want(t, "subject", m.GetSubject(), "Add login")
	want(t, "payload", m.GetPayload(), `{"depends_on":["first"],"description":"with OAuth","task_id":"t","title":"Add login"}`)
	want(t, "another agent's claim", claim(b), "")
	want(t, "the assignee's claim", claim(a), "t")
	got := apptest.Must(t, lead.GetMessage, &pb.GetMessageRequest{Id: m.GetId()})
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
		createAll(lead, &pb.NewTask{Id: id, Title: "x", Assignee: "a"})
		if hold {
			take(a, id)
		}
		_, err := a.ReleaseTask(a.Ctx, &pb.ReleaseTaskRequest{Id: id, Decline: true})
		refused(t, err, "INVALID_ARGUMENT")
		apptest.Must(t, a.ReleaseTask, &pb.ReleaseTaskRequest{Id: id, Decline: true, Reason: "no time"})
		task := task(lead, id)
		want(t, "the assignee", task.GetAssignee(), "")
		want(t, "failed attempts", task.GetAttempts(), 0)
		mail := mail(lead, "task_rejected")
		if len(mail) == 0 || !strings.Contains(mail[0].GetMessage().GetPayload(), `"reason":"no time"`) {
			t.Errorf("the creator got %v", mail)
		}
		want(t, "another agent's claim", claim(b), id)
		complete(b, id)
	}
	if mail := mail(lead, "task_complete"); len(mail) != 2 {
		t.Errorf("the creator got %d notices of completion", len(mail))
	}
}

func TestTask_LosesItsHolderAndAssigneeWhenTheyDeregister(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a, b := d.member("lead", "lead"), d.agent("a"), d.agent("b")
	createAll(lead, &pb.NewTask{Id: "held", Title: "x", Assignee: "a"}, &pb.NewTask{Id: "assigned", Title: "x", Assignee: "a"}, &pb.NewTask{Id: "free", Title: "x"})
	take(a, "held")
	take(a, "free")
	waits, _ := d.awaitClaim(a, &pb.ClaimTaskRequest{Id: create(lead, "later: free").GetTasks()[0].GetId()})
	apptest.Must(t, a.DeregisterAgent, &pb.DeregisterAgentRequest{})
	refused(t, (<-waits).err, "AGENT_NOT_REGISTERED")
	for _, id := range []string{"held", "free"} {
		want(t, "failed attempts of "+id, task(lead, id).GetAttempts(), 1)
	}
	for range 3 {
		if id := claim(b); id == "" {
			t.Error("a task of the deregistered agent cannot be claimed")
		}
	}
}

func TestTask_IsPartOfWhatItsAgentsSee(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a := d.member("lead", "lead"), d.agent("a")
	createAll(lead, &pb.NewTask{Id: "mine", Title: "x"}, &pb.NewTask{Id: "assigned", Title: "x", Assignee: "a"})
	take(a, "mine")
	out := apptest.Must(t, a.GetAgent, &pb.GetAgentRequest{View: pb.AgentView_AGENT_VIEW_FULL})
	seen := map[string][]string{}
	for _, w := range out.GetHoldings().GetWork() {
		seen[w.GetId()] = append([]string{w.GetRelation().String()}, testkit.Calls(w.GetCalls())...)
	}
	if d := cmp.Diff(map[string][]string{
		"mine":     {"WORK_RELATION_HOLDS", `CompleteTask {"id":"mine"}`, `ReleaseTask {"id":"mine"}`},
		"assigned": {"WORK_RELATION_OWES", `ClaimTask {"id":"assigned"}`, `ReleaseTask {"id":"assigned","decline":true} reason`},
	}, seen); d != "" {
		t.Errorf("the work of the agent, wanted (-) and got (+): %s", d)
	}
	st := apptest.Must(t, lead.GetStatus, &pb.GetStatusRequest{})
	if !strings.Contains(st.String(), "task") {
		t.Errorf("the status does not count tasks: %v", st)
	}
}

func TestTask_BlockersBlockItUntilTheyAreResolved(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a := d.member("lead", "lead"), d.agent("a")
	create(lead, "t")
	take(a, "t")
	raised := apptest.Must(t, a.RaiseBlocker, &pb.RaiseBlockerRequest{Reason: "no key", TaskId: "t"})
	wantState(lead, blocked, "t")
	if holder := task(lead, "t").GetHolder(); holder != "a" {
		t.Errorf("a blocked task is held by %q", holder)
	}
	apptest.Must(t, a.ResolveBlocker, &pb.ResolveBlockerRequest{Id: raised.GetBlocker().GetId()})
	wantState(lead, claimed, "t")
}

func TestTask_IsReleasedWhenItsSessionIsClosed(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	o := d.Root()
	apptest.Must(t, o.CreateSession, &pb.CreateSessionRequest{Name: "s"})
	a, b := d.Actor("s", "a"), d.Actor("s", "b")
	register(a, "builder")
	register(b, "builder")
	create(a, "t")
	take(a, "t")
	waits, _ := d.awaitClaim(b, &pb.ClaimTaskRequest{})
	apptest.Must(t, o.CloseSession, &pb.CloseSessionRequest{Name: "s"})
	refused(t, (<-waits).err, "SESSION_CLOSED")
	wantState(d.Actor("s", ""), ready, "t")
	refused(t, apptest.Err(b.ClaimTask(b.Ctx, &pb.ClaimTaskRequest{Id: "t"})), "SESSION_CLOSED")
}

func TestTask_ExplainNamesWhatStopsIt(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, a := d.member("lead", "lead"), d.agent("a")
	createAll(lead, &pb.NewTask{Id: "broken", Title: "x"}, &pb.NewTask{Id: "after", Title: "x", DependsOn: []string{"broken"}},
		&pb.NewTask{Id: "nobody", Title: "x", Capabilities: []string{"rust"}})
	take(a, "broken")
	fail(a, "broken", true)
	for id, c := range map[string][2]string{
		"broken": {"it failed after 1 attempt: it broke", `RetryTask {"id":"broken"}`},
		"after":  {"unless task broken, which has failed, is done", `RetryTask {"id":"broken"}`},
		"nobody": {"no registered agent can claim it", `ListAgents {}`},
	} {
		out := apptest.Must(t, lead.Explain, &pb.ExplainRequest{Subject: &pb.ExplainRequest_Task{Task: id}})
		if len(out.GetFindings()) != 1 {
			t.Fatalf("%s: %v", id, out)
		}
		f := out.GetFindings()[0]
		if !strings.Contains(f.GetSummary(), c[0]) || len(f.GetCalls()) == 0 || testkit.Call(f.GetCalls()[0]) != c[1] {
			t.Errorf("%s: %v", id, f)
		}
	}
	all := apptest.Must(t, d.Root().Explain, &pb.ExplainRequest{})
	if n := len(all.GetFindings()); n != 3 {
		t.Errorf("the session has %d findings: %v", n, all)
	}
}

package decisions_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

func deregister(a *apptest.Actor) {
	a.Helper()
	apptest.Must(a, a.DeregisterAgent, &pb.DeregisterAgentRequest{})
}

func TestAgentGone_ItsDecisionsEndAndOthersDecideThoseItOwes(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	builder, critic, boss := w.Agent("builder-1", "builder"), w.Agent("critic-1", "critic"), w.Agent("boss", "overseer")
	owed := openDecision(builder, &pb.OpenDecisionRequest{Kind: review, To: toAgent("critic-1"), Content: &pb.DecisionContent{Body: "the work"}})
	revised := openDecision(builder, &pb.OpenDecisionRequest{Kind: review, To: toAgent("critic-1")})
	decide(critic, revised.GetId(), "revise")
	opened := openDecision(critic, &pb.OpenDecisionRequest{Kind: plan, To: toAgent("builder-1")})
	deregister(critic)
	if got := get(builder, owed.GetId()); got.GetState() != escalated || got.GetNote() != "critic-1 has deregistered" {
		t.Errorf("owed by the agent: %v", got)
	}
	if m := receives(boss, "escalate")["escalate"]; m.GetBody() != "the work" {
		t.Errorf("escalation: %v", m)
	}
	if got := get(builder, opened.GetId()); got.GetState() != cancelled {
		t.Errorf("opened by the agent: %v", got)
	}
	receives(builder, "revision_requested", "escalate", "decision_cancelled")
	if got := resubmit(builder, revised.GetId()); got.GetState() != escalated || got.GetRound() != 2 {
		t.Errorf("resubmitted to a deregistered agent: %v", got)
	}
	decide(boss, owed.GetId(), "approve")
	decide(boss, revised.GetId(), "reject")
}

func TestAgentGone_OperatorDecidesIfNoRoleHasAnAgent(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	builder, critic := w.Agent("builder-1", "builder"), w.Agent("critic-1", "critic")
	d := openDecision(builder, &pb.OpenDecisionRequest{Kind: review, To: toAgent("critic-1")})
	deregister(critic)
	if got := get(builder, d.GetId()); got.GetState() != escalated || got.GetEscalatedTo() != "" {
		t.Errorf("escalated to no agent: %v", got)
	}
	out := apptest.Must(t, w.Root().Explain, &pb.ExplainRequest{})
	if text := out.String(); !strings.Contains(text, d.GetId()) || !strings.Contains(text, "no agent has a role that the session escalates to") {
		t.Errorf("explanation: %s", text)
	}
	decide(w.Root(), d.GetId(), "approve")
	if got := get(builder, d.GetId()); got.GetRounds()[0].GetDecidedBy() != "system" {
		t.Errorf("decided by the operator: %v", got)
	}
}

func TestEscalation_WithoutRolesTheAddresseeDecides(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	w.Root().Configure(&pb.SessionSettings{EscalateTo: &pb.Names{}})
	builder, critic := w.Agent("builder-1", "builder"), w.Agent("critic-1", "critic")
	d := openDecision(builder, &pb.OpenDecisionRequest{Kind: review, To: toAgent("critic-1"), MaxRounds: 1})
	if got := decide(critic, d.GetId(), "revise").GetDecision(); got.GetState() != escalated {
		t.Errorf("revision of the only round: %v", got)
	}
	decide(critic, d.GetId(), "approve")
}

func TestSessionClosed_UnfinishedDecisionsAreCancelledAndExported(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	operator := w.Root()
	apptest.Must(t, operator.CreateSession, &pb.CreateSessionRequest{Name: "short"})
	builder, critic := w.Actor("short", "builder-1").Register("builder"), w.Actor("short", "critic-1").Register("critic")
	done := openDecision(builder, &pb.OpenDecisionRequest{Kind: review, To: toAgent("critic-1")})
	decide(critic, done.GetId(), "approve")
	d := openDecision(builder, &pb.OpenDecisionRequest{Kind: review, To: toAgent("critic-1")})
	waiting := waiting(builder, d.GetId(), time.Hour)
	apptest.Must(t, operator.CloseSession, &pb.CloseSessionRequest{Name: "short"})
	if got := <-waiting; got.GetState() != cancelled || got.GetNote() != "the session was closed" {
		t.Errorf("after the session was closed: %v", got)
	}
	apptest.Must(t, operator.DeleteSession, &pb.DeleteSessionRequest{Name: "short"})
}

func TestItems_NameBothSidesWithTheCommandThatSettles(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	lead, critic := w.Agent("lead-1", "lead"), w.Agent("critic-1", "critic")
	until := timestamppb.New(w.Clock.Now().Add(time.Hour))
	work := openDecision(lead, &pb.OpenDecisionRequest{Kind: review, To: toRole("critic"), Title: "Login", Deadline: until})
	stop := openDecision(lead, &pb.OpenDecisionRequest{Kind: shutdown, To: toAgent("critic-1")})
	vote := openDecision(critic, &pb.OpenDecisionRequest{Kind: custom, To: toAgent("lead-1"), Verdicts: []string{"yes", "no"}})
	items := func(a *apptest.Actor) map[string]*pb.WorkItem {
		out := apptest.Must(t, a.GetAgent, &pb.GetAgentRequest{Name: a.Name, View: pb.AgentView_AGENT_VIEW_FULL})
		found := map[string]*pb.WorkItem{}
		for _, item := range out.GetHoldings().GetWork() {
			found[item.GetId()] = item
		}
		return found
	}
	for _, row := range []struct {
		who      *apptest.Actor
		id       string
		relation pb.WorkRelation
		other    string
		call     string
	}{
		{critic, work.GetId(), pb.WorkRelation_WORK_RELATION_OWES, "lead-1", `Decide {"id":"` + work.GetId() + `","verdict":"approve"}`},
		{critic, stop.GetId(), pb.WorkRelation_WORK_RELATION_OWES, "lead-1", `Decide {"id":"` + stop.GetId() + `","verdict":"accept"}`},
		{critic, vote.GetId(), pb.WorkRelation_WORK_RELATION_OPENED, "lead-1", `GetDecision {"id":"` + vote.GetId() + `","wait":"600s"}`},
		{lead, work.GetId(), pb.WorkRelation_WORK_RELATION_OPENED, "role:critic", `GetDecision {"id":"` + work.GetId() + `","wait":"600s"}`},
		{lead, vote.GetId(), pb.WorkRelation_WORK_RELATION_OWES, "critic-1", `Decide {"id":"` + vote.GetId() + `","verdict":"yes"}`},
	} {
		item := items(row.who)[row.id]
		if item.GetKind() != "decision" || item.GetRelation() != row.relation || item.GetOther() != row.other || item.GetState() != "open" ||
			len(item.GetCalls()) == 0 || testkit.Call(item.GetCalls()[0]) != row.call {
			t.Errorf("%s of %s: %v, want %v", row.id, row.who.Name, item, row)
		}
	}
	if item := items(critic)[work.GetId()]; item.GetTitle() != "review: Login" || item.GetDue().AsTime() != until.AsTime() {
		t.Errorf("title and due time: %v", item)
	}
	decide(critic, work.GetId(), "revise")
	if item := items(lead)[work.GetId()]; item.GetRelation() != pb.WorkRelation_WORK_RELATION_OWES || item.GetState() != "revising" || item.GetDue() != nil ||
		testkit.Call(item.GetCalls()[0]) != `ResubmitDecision {"id":"`+work.GetId()+`"} content.body` {
		t.Errorf("to resubmit: %v", item)
	}
	if _, still := items(critic)[work.GetId()]; still {
		t.Error("the critic still has the decision that the opener revises")
	}
	out := apptest.Must(t, w.Root().GetStatus, &pb.GetStatusRequest{})
	counts := map[string]int64{}
	for _, c := range out.GetWork() {
		counts[c.GetKind()+" "+c.GetState()] = c.GetCount()
	}
	if counts["decision open"] != 2 || counts["decision revising"] != 1 {
		t.Errorf("counts: %v", counts)
	}
	plan := openDecision(lead, &pb.OpenDecisionRequest{
		Kind: pb.DecisionKind_DECISION_KIND_PLAN, To: toAgent("critic-1"), Scope: "the schema",
	})
	decide(critic, plan.GetId(), "revise")
	if item := items(lead)[plan.GetId()]; testkit.Call(item.GetCalls()[0]) != `ResubmitDecision {"id":"`+plan.GetId()+`"} content.body` {
		t.Errorf("to resubmit the plan: %v", item)
	}
}

func TestExplain_NamesTheAgentThatADecisionWaitsFor(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	builder := w.Agent("builder-1", "builder")
	critic := w.Agent("critic-1", "critic")
	d := openDecision(builder, &pb.OpenDecisionRequest{Kind: review, To: toAgent("critic-1"), Title: "Login"})
	for call, by := range map[string]*apptest.Actor{
		`Explain {"agent":"critic-1"}`: w.Root(), `Decide {"id":"` + d.GetId() + `","verdict":"approve"}`: critic,
	} {
		out := apptest.Must(t, by.Explain, &pb.ExplainRequest{Subject: &pb.ExplainRequest_Decision{Decision: d.GetId()}})
		if text := out.String(); len(out.GetFindings()) != 1 || !strings.Contains(text, "waits for the verdict of critic-1") ||
			testkit.Call(out.GetFindings()[0].GetCalls()[0]) != call {
			t.Errorf("explanation, want the call %s: %s", call, text)
		}
	}
}

func TestList_FiltersAndPages(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	builder, critic := w.Agent("builder-1", "builder"), w.Agent("critic-1", "critic")
	var all []string
	for i := range 5 {
		in := &pb.OpenDecisionRequest{Kind: review, To: toRole("critic")}
		if i == 2 {
			in.TaskId, in.Scope = "t-1", "login"
		}
		all = append([]string{openDecision(builder, in).GetId()}, all...)
	}
	plans := openDecision(critic, &pb.OpenDecisionRequest{Kind: plan, To: toAgent("builder-1")})
	decide(critic, all[0], "approve")
	decide(critic, all[4], "revise")
	for _, row := range []struct {
		in   *pb.ListDecisionsRequest
		want []string
	}{
		{&pb.ListDecisionsRequest{Kind: review}, all},
		{&pb.ListDecisionsRequest{States: []pb.DecisionState{open}, Kind: review}, all[1:4]},
		{&pb.ListDecisionsRequest{States: []pb.DecisionState{open}, OldestFirst: true, Kind: review}, []string{all[3], all[2], all[1]}},
		{&pb.ListDecisionsRequest{States: []pb.DecisionState{decided, revising}}, []string{all[0], all[4]}},
		{&pb.ListDecisionsRequest{OwedBy: "critic-1"}, all[1:4]},
		{&pb.ListDecisionsRequest{OwedBy: "builder-1"}, []string{plans.GetId(), all[4]}},
		{&pb.ListDecisionsRequest{Opener: "critic-1"}, []string{plans.GetId()}},
		{&pb.ListDecisionsRequest{TaskId: "t-1"}, all[2:3]},
		{&pb.ListDecisionsRequest{Scope: "login"}, all[2:3]},
	} {
		for _, size := range []int32{0, 1, 2} {
			var got []string
			for row.in.PageToken = ""; ; {
				row.in.PageSize = size
				out := apptest.Must(t, builder.ListDecisions, row.in)
				for _, d := range out.GetDecisions() {
					got = append(got, d.GetId())
				}
				if row.in.PageToken = out.GetNextPageToken(); row.in.PageToken == "" {
					break
				}
			}
			if strings.Join(got, " ") != strings.Join(row.want, " ") {
				t.Errorf("%v: %v, want %v", row.in, got, row.want)
			}
		}
	}
}

package decisions_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
)

func (a *actor) deregister() {
	a.t.Helper()
	_, err := a.agents.DeregisterAgent(a.ctx, &pb.DeregisterAgentRequest{})
	must(a.t, err)
}

func TestAgentGone_ItsDecisionsEndAndOthersDecideThoseItOwes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	builder, critic, boss := w.agent("builder-1", "builder"), w.agent("critic-1", "critic"), w.agent("boss", "overseer")
	owed := builder.open(&pb.OpenDecisionRequest{Kind: review, To: toAgent("critic-1"), Content: &pb.DecisionContent{Body: "the work"}})
	revised := builder.open(&pb.OpenDecisionRequest{Kind: review, To: toAgent("critic-1")})
	critic.decide(revised.GetId(), "revise")
	opened := critic.open(&pb.OpenDecisionRequest{Kind: plan, To: toAgent("builder-1")})
	critic.deregister()
	if got := builder.get(owed.GetId()); got.GetState() != escalated || got.GetNote() != "critic-1 has deregistered" {
		t.Errorf("owed by the agent: %v", got)
	}
	if m := boss.receives("escalate")["escalate"]; m.GetBody() != "the work" {
		t.Errorf("escalation: %v", m)
	}
	if got := builder.get(opened.GetId()); got.GetState() != cancelled {
		t.Errorf("opened by the agent: %v", got)
	}
	builder.receives("revision_requested", "escalate", "decision_cancelled")
	if got := builder.resubmit(revised.GetId()); got.GetState() != escalated || got.GetRound() != 2 {
		t.Errorf("resubmitted to a deregistered agent: %v", got)
	}
	boss.decide(owed.GetId(), "approve")
	boss.decide(revised.GetId(), "reject")
}

func TestAgentGone_OperatorDecidesIfNoRoleHasAnAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	builder, critic := w.agent("builder-1", "builder"), w.agent("critic-1", "critic")
	d := builder.open(&pb.OpenDecisionRequest{Kind: review, To: toAgent("critic-1")})
	critic.deregister()
	if got := builder.get(d.GetId()); got.GetState() != escalated || got.GetEscalatedTo() != "" {
		t.Errorf("escalated to no agent: %v", got)
	}
	out, err := w.operator().admin.Explain(builder.ctx, &pb.ExplainRequest{})
	must(t, err)
	if text := out.String(); !strings.Contains(text, d.GetId()) || !strings.Contains(text, "no agent has a role that the session escalates to") {
		t.Errorf("explanation: %s", text)
	}
	w.operator().decide(d.GetId(), "approve")
	if got := builder.get(d.GetId()); got.GetRounds()[0].GetDecidedBy() != "system" {
		t.Errorf("decided by the operator: %v", got)
	}
}

func TestEscalation_WithoutRolesTheAddresseeDecides(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	operator := w.operator()
	_, err := operator.sessions.ConfigureSession(operator.ctx, &pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{EscalateTo: &pb.Names{}}})
	must(t, err)
	builder, critic := w.agent("builder-1", "builder"), w.agent("critic-1", "critic")
	d := builder.open(&pb.OpenDecisionRequest{Kind: review, To: toAgent("critic-1"), MaxRounds: 1})
	if got := critic.decide(d.GetId(), "revise").GetDecision(); got.GetState() != escalated {
		t.Errorf("revision of the only round: %v", got)
	}
	critic.decide(d.GetId(), "approve")
}

func TestSessionClosed_UnfinishedDecisionsAreCancelledAndExported(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	operator := w.operator()
	_, err := operator.sessions.CreateSession(operator.ctx, &pb.CreateSessionRequest{Name: "short"})
	must(t, err)
	builder, critic := w.member("short", "builder-1", "builder"), w.member("short", "critic-1", "critic")
	done := builder.open(&pb.OpenDecisionRequest{Kind: review, To: toAgent("critic-1")})
	critic.decide(done.GetId(), "approve")
	d := builder.open(&pb.OpenDecisionRequest{Kind: review, To: toAgent("critic-1")})
	waiting := builder.waiting(d.GetId(), time.Hour)
	_, err = operator.sessions.CloseSession(operator.ctx, &pb.CloseSessionRequest{Name: "short"})
	must(t, err)
	if got := <-waiting; got.GetState() != cancelled || got.GetNote() != "the session was closed" {
		t.Errorf("after the session was closed: %v", got)
	}
	_, err = operator.sessions.DeleteSession(operator.ctx, &pb.DeleteSessionRequest{Name: "short"})
	must(t, err)
}

func TestItems_NameBothSidesWithTheCommandThatSettles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, critic := w.agent("lead-1", "lead"), w.agent("critic-1", "critic")
	until := timestamppb.New(w.Clock.Now().Add(time.Hour))
	work := lead.open(&pb.OpenDecisionRequest{Kind: review, To: toRole("critic"), Title: "Login", Deadline: until})
	stop := lead.open(&pb.OpenDecisionRequest{Kind: shutdown, To: toAgent("critic-1")})
	vote := critic.open(&pb.OpenDecisionRequest{Kind: custom, To: toAgent("lead-1"), Verdicts: []string{"yes", "no"}})
	items := func(a *actor) map[string]*pb.WorkItem {
		out, err := a.agents.GetAgent(a.ctx, &pb.GetAgentRequest{Name: a.name, View: pb.AgentView_AGENT_VIEW_FULL})
		must(t, err)
		found := map[string]*pb.WorkItem{}
		for _, item := range out.GetHoldings().GetWork() {
			found[item.GetId()] = item
		}
		return found
	}
	for _, row := range []struct {
		who      *actor
		id       string
		relation pb.WorkRelation
		other    string
		command  string
	}{
		{critic, work.GetId(), pb.WorkRelation_WORK_RELATION_OWES, "lead-1", "brokerctl review approve " + work.GetId()},
		{critic, stop.GetId(), pb.WorkRelation_WORK_RELATION_OWES, "lead-1", "brokerctl decision accept " + stop.GetId()},
		{critic, vote.GetId(), pb.WorkRelation_WORK_RELATION_OPENED, "lead-1", "brokerctl decision get " + vote.GetId() + " --wait 90s"},
		{lead, work.GetId(), pb.WorkRelation_WORK_RELATION_OPENED, "role:critic", "brokerctl review get " + work.GetId() + " --wait 90s"},
		{lead, vote.GetId(), pb.WorkRelation_WORK_RELATION_OWES, "critic-1", "brokerctl decision decide " + vote.GetId() + " yes"},
	} {
		item := items(row.who)[row.id]
		if item.GetKind() != "decision" || item.GetRelation() != row.relation || item.GetOther() != row.other || item.GetState() != "open" ||
			len(item.GetCommands()) == 0 || item.GetCommands()[0] != row.command {
			t.Errorf("%s of %s: %v, want %v", row.id, row.who.name, item, row)
		}
	}
	if item := items(critic)[work.GetId()]; item.GetTitle() != "review: Login" || item.GetDue().AsTime() != until.AsTime() {
		t.Errorf("title and due time: %v", item)
	}
	critic.decide(work.GetId(), "revise")
	if item := items(lead)[work.GetId()]; item.GetRelation() != pb.WorkRelation_WORK_RELATION_OWES || item.GetState() != "revising" || item.GetDue() != nil ||
		item.GetCommands()[0] != "brokerctl decision resubmit "+work.GetId()+" --body -" {
		t.Errorf("to resubmit: %v", item)
	}
	if _, still := items(critic)[work.GetId()]; still {
		t.Error("the critic still has the decision that the opener revises")
	}
	out, err := w.operator().admin.GetStatus(lead.ctx, &pb.GetStatusRequest{})
	must(t, err)
	counts := map[string]int64{}
	for _, c := range out.GetWork() {
		counts[c.GetKind()+" "+c.GetState()] = c.GetCount()
	}
	if counts["decision open"] != 2 || counts["decision revising"] != 1 {
		t.Errorf("counts: %v", counts)
	}
	plan := lead.open(&pb.OpenDecisionRequest{
		Kind: pb.DecisionKind_DECISION_KIND_PLAN, To: toAgent("critic-1"), Scope: "the schema",
	})
	critic.decide(plan.GetId(), "revise")
	if item := items(lead)[plan.GetId()]; item.GetCommands()[0] != "brokerctl plan submit 'the schema' --body -" {
		t.Errorf("to submit again: %v", item)
	}
}

func TestExplain_NamesTheAgentThatADecisionWaitsFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	builder := w.agent("builder-1", "builder")
	critic := w.agent("critic-1", "critic")
	d := builder.open(&pb.OpenDecisionRequest{Kind: review, To: toAgent("critic-1"), Title: "Login"})
	for command, by := range map[string]*actor{
		"brokerctl explain agent critic-1": w.operator(), "brokerctl review approve " + d.GetId(): critic,
	} {
		out, err := by.admin.Explain(by.ctx, &pb.ExplainRequest{Subject: &pb.ExplainRequest_Decision{Decision: d.GetId()}})
		must(t, err)
		if text := out.String(); len(out.GetFindings()) != 1 || !strings.Contains(text, "waits for the verdict of critic-1") ||
			out.GetFindings()[0].GetCommands()[0] != command {
			t.Errorf("explanation, want the command %s: %s", command, text)
		}
	}
}

func TestList_FiltersAndPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	builder, critic := w.agent("builder-1", "builder"), w.agent("critic-1", "critic")
	var all []string
	for i := range 5 {
		in := &pb.OpenDecisionRequest{Kind: review, To: toRole("critic")}
		if i == 2 {
			in.TaskId, in.Scope = "t-1", "login"
		}
		all = append([]string{builder.open(in).GetId()}, all...)
	}
	plans := critic.open(&pb.OpenDecisionRequest{Kind: plan, To: toAgent("builder-1")})
	critic.decide(all[0], "approve")
	critic.decide(all[4], "revise")
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
				out, err := builder.ListDecisions(builder.ctx, row.in)
				must(t, err)
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

package blockers_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	pb "brokerd/gen/brokerd/v1"
)

func TestItems_ShowEachSideWhatItCanDo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a, idle := w.agent("boss", "lead"), w.agent("a", "builder"), w.agent("idle", "scribe")
	x := a.raise(&pb.RaiseBlockerRequest{})
	want := func(who *actor, relation pb.WorkRelation, command string) {
		t.Helper()
		out, err := who.registry.GetAgent(who.ctx, &pb.GetAgentRequest{View: pb.AgentView_AGENT_VIEW_FULL})
		must(t, err)
		items := out.GetHoldings().GetWork()
		if len(items) != 1 || items[0].Id != x.Id || items[0].Relation != relation || !strings.Contains(items[0].Commands[0], command) {
			t.Errorf("%s has the items %v", who.name, items)
		}
	}
	want(lead, pb.WorkRelation_WORK_RELATION_OWES, "blocker ack "+x.Id)
	want(a, pb.WorkRelation_WORK_RELATION_OPENED, "blocker get "+x.Id)
	lead.ack(x.Id)
	want(lead, pb.WorkRelation_WORK_RELATION_HOLDS, "blocker resolve "+x.Id)
	out, err := idle.registry.GetAgent(idle.ctx, &pb.GetAgentRequest{View: pb.AgentView_AGENT_VIEW_FULL})
	must(t, err)
	if n := len(out.GetHoldings().GetWork()); n != 0 {
		t.Errorf("an agent that has nothing to do with it has %d items", n)
	}
	status, err := w.operator().admin.GetStatus(a.ctx, &pb.GetStatusRequest{})
	must(t, err)
	if len(status.Work) != 1 || status.Work[0].Kind != "blocker" || status.Work[0].State != "acknowledged" || status.Work[0].Count != 1 {
		t.Errorf("the status counts %v", status.Work)
	}
}

// explain returns the first finding about a blocker.
func (a *actor) explain(in *pb.ExplainRequest) *pb.Finding {
	a.t.Helper()
	out, err := a.admin.Explain(a.ctx, in)
	must(a.t, err)
	for _, f := range out.Findings {
		if strings.HasPrefix(f.Subject, "blocker ") {
			return f
		}
	}
	return nil
}

func TestExplain_WarnsOfABlockerThatHasEscalated(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.configure(time.Second, "lead")
	w.agent("boss", "lead")
	a, o := w.agent("a", "builder"), w.operator()
	next := o.follow("blocker.escalated")
	x := a.raise(&pb.RaiseBlockerRequest{})
	if f := o.explain(&pb.ExplainRequest{}); f != nil {
		t.Errorf("before it has escalated, explain says %v", f)
	}
	for n := 1; n <= 10; n++ {
		w.Clock.Advance(time.Second)
		next()
		if n > 1 && n < 10 {
			continue
		}
		f := o.explain(&pb.ExplainRequest{})
		says := strings.Join(f.GetReasons(), ", ")
		if f.GetSeverity() != pb.FindingSeverity_FINDING_SEVERITY_WARNING || strings.Contains(says, "exhausted") != (n == 10) || strings.Contains(says, "no recipient") {
			t.Errorf("after %d escalations, explain says %v", n, f)
		}
		if len(f.GetCommands()) < 2 || !strings.HasSuffix(f.Commands[0], "blocker ack "+x.Id) ||
			!strings.HasSuffix(f.Commands[1], "blocker resolve "+x.Id) {
			t.Errorf("explain suggests %v", f.GetCommands())
		}
	}
}

func TestExplain_WarnsAtOnceOfABlockerOfWhichNoAgentKnows(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.configure(time.Hour, "lead")
	boss, a, o := w.agent("boss", "lead"), w.agent("a", "lead"), w.operator()
	a.raise(&pb.RaiseBlockerRequest{})
	if f := o.explain(&pb.ExplainRequest{}); f != nil {
		t.Errorf("while the lead is there, explain says %v", f)
	}
	_, err := boss.registry.DeregisterAgent(boss.ctx, &pb.DeregisterAgentRequest{})
	must(t, err)
	f := o.explain(&pb.ExplainRequest{})
	if f.GetSeverity() != pb.FindingSeverity_FINDING_SEVERITY_WARNING || !strings.Contains(strings.Join(f.GetReasons(), ", "), "no recipient of a notification") {
		t.Errorf("without another lead, explain says %v", f)
	}
}

func TestExplain_SaysWhyABlockerLasts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "builder")
	o := w.operator()
	explain := o.explain
	x := a.raise(&pb.RaiseBlockerRequest{Awaited: &pb.AwaitedObject{Object: &pb.AwaitedObject_Agent{Agent: "dba-1"}}})
	f := explain(&pb.ExplainRequest{Subject: &pb.ExplainRequest_Blocker{Blocker: x.Id}})
	says := f.GetSummary() + strings.Join(f.GetReasons(), ", ")
	for _, want := range []string{"a is blocked", "dba-1, which is not registered", "no agent was notified"} {
		if !strings.Contains(says, want) {
			t.Errorf("explain does not say %q: %v", want, f)
		}
	}
	if explain(&pb.ExplainRequest{}) == nil || explain(&pb.ExplainRequest{Subject: &pb.ExplainRequest_Agent{Agent: "a"}}) == nil {
		t.Error("explain without a subject, or about the agent, does not name the blocker")
	}
	a.resolve(x.Id, "")
	if f := explain(&pb.ExplainRequest{Subject: &pb.ExplainRequest_Blocker{Blocker: x.Id}}); !strings.Contains(f.GetSummary(), "has resolved") {
		t.Errorf("explain says %v", f)
	}
	if f := explain(&pb.ExplainRequest{}); f != nil {
		t.Errorf("explain still names %v", f)
	}
	_, err := o.admin.Explain(o.ctx, &pb.ExplainRequest{Subject: &pb.ExplainRequest_Blocker{Blocker: "b-99999"}})
	refused(t, err, codes.NotFound, "BLOCKER_NOT_FOUND")
}

package blockers_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

func TestItems_ShowEachSideWhatItCanDo(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	lead, a, idle := w.Agent("boss", "lead"), w.Agent("a", "builder"), w.Agent("idle", "scribe")
	x := raise(a, &pb.RaiseBlockerRequest{})
	want := func(who *apptest.Actor, relation pb.WorkRelation, call string) {
		t.Helper()
		out := apptest.Must(t, who.GetAgent, &pb.GetAgentRequest{View: pb.AgentView_AGENT_VIEW_FULL})
		items := out.GetHoldings().GetWork()
		if len(items) != 1 || items[0].Id != x.Id || items[0].Relation != relation || testkit.Call(items[0].Calls[0]) != call {
			t.Errorf("%s has the items %v", who.Name, items)
		}
	}
	want(lead, pb.WorkRelation_WORK_RELATION_OWES, `AcknowledgeBlocker {"id":"`+x.Id+`"}`)
	want(a, pb.WorkRelation_WORK_RELATION_OPENED, `GetBlocker {"id":"`+x.Id+`","wait":"600s"}`)
	ack(lead, x.Id)
	want(lead, pb.WorkRelation_WORK_RELATION_HOLDS, `ResolveBlocker {"id":"`+x.Id+`"}`)
	out := apptest.Must(t, idle.GetAgent, &pb.GetAgentRequest{View: pb.AgentView_AGENT_VIEW_FULL})
	if n := len(out.GetHoldings().GetWork()); n != 0 {
		t.Errorf("an agent that has nothing to do with it has %d items", n)
	}
	status := apptest.Must(t, w.Root().GetStatus, &pb.GetStatusRequest{})
	if len(status.Work) != 1 || status.Work[0].Kind != "blocker" || status.Work[0].State != "acknowledged" || status.Work[0].Count != 1 {
		t.Errorf("the status counts %v", status.Work)
	}
}

// explain returns the first finding about a blocker.
func explain(a *apptest.Actor, in *pb.ExplainRequest) *pb.Finding {
	a.Helper()
	out := apptest.Must(a, a.Explain, in)
	for _, f := range out.Findings {
		if strings.HasPrefix(f.Subject, "blocker ") {
			return f
		}
	}
	return nil
}

func TestExplain_WarnsOfABlockerThatHasEscalated(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	configure(w, time.Second, "lead")
	w.Agent("boss", "lead")
	a, o := w.Agent("a", "builder"), w.Root()
	next := follow(o, "blocker.escalated")
	x := raise(a, &pb.RaiseBlockerRequest{})
	if f := explain(o, &pb.ExplainRequest{}); f != nil {
		t.Errorf("before it has escalated, explain says %v", f)
	}
	for n := 1; n <= 10; n++ {
		w.Clock.Advance(time.Second)
		next()
		if n > 1 && n < 10 {
			continue
		}
		f := explain(o, &pb.ExplainRequest{})
		says := strings.Join(f.GetReasons(), ", ")
		if f.GetSeverity() != pb.FindingSeverity_FINDING_SEVERITY_WARNING || strings.Contains(says, "exhausted") != (n == 10) || strings.Contains(says, "no recipient") {
			t.Errorf("after %d escalations, explain says %v", n, f)
		}
		if d := cmp.Diff([]string{
			`AcknowledgeBlocker {"id":"` + x.Id + `"}`, `ResolveBlocker {"id":"` + x.Id + `"}`, `GetBlocker {"id":"` + x.Id + `"}`,
		}, testkit.Calls(f.GetCalls())); d != "" {
			t.Errorf("calls, wanted (-) and got (+): %s", d)
		}
	}
}

func TestExplain_WarnsAtOnceOfABlockerOfWhichNoAgentKnows(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	configure(w, time.Hour, "lead")
	boss, a, o := w.Agent("boss", "lead"), w.Agent("a", "lead"), w.Root()
	raise(a, &pb.RaiseBlockerRequest{})
	if f := explain(o, &pb.ExplainRequest{}); f != nil {
		t.Errorf("while the lead is there, explain says %v", f)
	}
	apptest.Must(t, boss.DeregisterAgent, &pb.DeregisterAgentRequest{})
	f := explain(o, &pb.ExplainRequest{})
	if f.GetSeverity() != pb.FindingSeverity_FINDING_SEVERITY_WARNING || !strings.Contains(strings.Join(f.GetReasons(), ", "), "no recipient of a notification") {
		t.Errorf("without another lead, explain says %v", f)
	}
}

func TestExplain_SaysWhyABlockerLasts(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a := w.Agent("a", "builder")
	o := w.Root()
	x := raise(a, &pb.RaiseBlockerRequest{Awaited: &pb.AwaitedObject{Object: &pb.AwaitedObject_Agent{Agent: "dba-1"}}})
	f := explain(o, &pb.ExplainRequest{Subject: &pb.ExplainRequest_Blocker{Blocker: x.Id}})
	says := f.GetSummary() + strings.Join(f.GetReasons(), ", ")
	for _, want := range []string{"a is blocked", "dba-1, which is not registered", "no agent was notified"} {
		if !strings.Contains(says, want) {
			t.Errorf("explain does not say %q: %v", want, f)
		}
	}
	if explain(o, &pb.ExplainRequest{}) == nil || explain(o, &pb.ExplainRequest{Subject: &pb.ExplainRequest_Agent{Agent: "a"}}) == nil {
		t.Error("explain without a subject, or about the agent, does not name the blocker")
	}
	resolve(a, x.Id, "")
	if f := explain(o, &pb.ExplainRequest{Subject: &pb.ExplainRequest_Blocker{Blocker: x.Id}}); !strings.Contains(f.GetSummary(), "has resolved") {
		t.Errorf("explain says %v", f)
	}
	if f := explain(o, &pb.ExplainRequest{}); f != nil {
		t.Errorf("explain still names %v", f)
	}
	apptest.Refuses(t, o.Explain, &pb.ExplainRequest{Subject: &pb.ExplainRequest_Blocker{Blocker: "b-99999"}},
		codes.NotFound, "BLOCKER_NOT_FOUND")
}

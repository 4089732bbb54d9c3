package blockers_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// configure sets escalate_to and the interval.
func configure(w *apptest.Broker, interval time.Duration, roles ...string) {
	w.Helper()
	w.Root().Configure(&pb.SessionSettings{
		EscalateTo: &pb.Names{Names: roles}, BlockerEscalation: durationpb.New(interval),
	})
}

func TestEscalation_NotifiesOneRolePerIntervalAndBeginsAgainAfterTheLast(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	configure(w, time.Minute, "overseer", "nobody-has-it", "lead")
	overseer, lead, a := w.Agent("eye", "overseer"), w.Agent("boss", "lead"), w.Agent("a", "builder")
	next := follow(w.Root(), "blocker.escalated")
	x := raise(a, &pb.RaiseBlockerRequest{})
	for range 3 {
		w.Clock.Advance(time.Minute)
		next()
	}
	got := get(a, x.Id)
	want := []string{"raised by a", "notified role:overseer", "escalated role:lead", "escalated role:overseer", "escalated role:lead"}
	if d := cmp.Diff(want, steps(got)); d != "" {
		t.Error(d)
	}
	if got.Escalations != 3 || got.State != pb.BlockerState_BLOCKER_STATE_OPEN {
		t.Errorf("escalated %v", got)
	}
	if mail := claimed(lead); len(mail) != 2 || mail[0].Sender != "system" || object(t, mail[1].Payload)["escalations"] != 3.0 {
		t.Errorf("the lead got %v", mail)
	}
	if mail := claimed(overseer); len(mail) != 2 {
		t.Errorf("the overseer got %v", mail)
	}
	ack(lead, x.Id)
	w.Clock.Advance(time.Hour)
	b := raise(a, &pb.RaiseBlockerRequest{}) // the next event would be one of the first blocker
	w.Clock.Advance(time.Minute)
	if e := next(); !slices.Contains(e.Related, b.Id) {
		t.Errorf("after it was acknowledged, it escalated: %v", e)
	}
}

func TestEscalation_EndsAfterTenTimes(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	configure(w, time.Minute, "lead")
	w.Agent("boss", "lead")
	a := w.Agent("a", "builder")
	next := follow(w.Root(), "blocker.escalated")
	x := raise(a, &pb.RaiseBlockerRequest{})
	for range 10 {
		w.Clock.Advance(time.Minute)
		next()
	}
	if got := get(a, x.Id); got.Escalations != 10 || got.EscalatesAt != nil {
		t.Errorf("after ten times: %v", got)
	}
}

func TestEscalation_ReachesAnAgentThatRegistersLater(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	configure(w, time.Minute, "lead")
	a := w.Agent("a", "lead") // not notified of its own blocker
	next := follow(w.Root(), "blocker.escalated")
	x := raise(a, &pb.RaiseBlockerRequest{})
	w.Clock.Advance(time.Minute)
	next()
	boss := w.Agent("boss", "lead")
	w.Clock.Advance(time.Minute)
	next()
	if d := cmp.Diff([]string{"raised by a", "escalated by system", "escalated role:lead"}, steps(get(a, x.Id))); d != "" {
		t.Error(d)
	}
	if len(claimed(boss)) != 1 {
		t.Error("the lead got no notification")
	}
}

func TestEscalation_SkipsRolesWhoseAgentsHaveFailed(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	configure(w, time.Hour, "overseer", "lead")
	failed := follow(w.Root(), "agent.failed")
	brief(w, "eye", "overseer", time.Minute)
	w.Agent("boss", "lead")
	a := w.Agent("a", "builder")
	w.Clock.Advance(time.Minute + time.Second)
	failed()
	if d := cmp.Diff([]string{"raised by a", "notified role:lead"}, steps(raise(a, &pb.RaiseBlockerRequest{}))); d != "" {
		t.Error(d)
	}
}

func TestEscalation_ContinuesAfterARestart(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	configure(w, time.Minute, "lead")
	w.Agent("boss", "lead")
	a := w.Agent("a", "builder")
	x := raise(a, &pb.RaiseBlockerRequest{})
	w.Restart()
	next := follow(w.Root(), "blocker.escalated")
	w.Clock.Advance(time.Minute)
	next()
	if got := get(a, x.Id); got.Escalations != 1 {
		t.Errorf("after the restart: %v", got)
	}
}

func TestEscalation_ZeroSwitchesItOff(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	configure(w, 0, "lead")
	w.Agent("boss", "lead")
	a := w.Agent("a", "builder")
	if x := raise(a, &pb.RaiseBlockerRequest{}); x.EscalatesAt != nil {
		t.Errorf("it escalates at %v", x.EscalatesAt.AsTime())
	}
}

func TestAgentFailed_BlockerWithoutAnyOtherAcknowledgementEscalatesAgain(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	configure(w, time.Minute, "lead")
	o := w.Root()
	reopened, escalated := follow(o, "blocker.reopened"), follow(o, "blocker.escalated")
	helper, other, a := brief(w, "helper", "builder", 30*time.Second), w.Agent("boss", "lead"), w.Agent("a", "builder")
	alone, both := raise(a, &pb.RaiseBlockerRequest{}), raise(a, &pb.RaiseBlockerRequest{})
	ack(helper, alone.Id)
	ack(helper, both.Id)
	ack(other, both.Id)
	w.Clock.Advance(31 * time.Second)
	reopened()
	w.Clock.Advance(time.Minute)
	escalated()
	got := get(a, alone.Id)
	want := []string{"raised by a", "notified role:lead", "acknowledged by helper", "reopened by helper", "escalated role:lead"}
	if d := cmp.Diff(want, steps(got)); d != "" || len(got.AcknowledgedBy) != 0 {
		t.Error(d, got.AcknowledgedBy)
	}
	if got := get(a, both.Id); got.State != pb.BlockerState_BLOCKER_STATE_ACKNOWLEDGED {
		t.Errorf("another agent works on it, but it is %v", got)
	}
}

func TestAgentGone_ResolvesTheBlockersOfADeregisteredAgent(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	lead, a := w.Agent("boss", "lead"), w.Agent("a", "builder")
	x := raise(a, &pb.RaiseBlockerRequest{})
	apptest.Must(t, a.DeregisterAgent, &pb.DeregisterAgentRequest{})
	if got := get(lead, x.Id); got.State != pb.BlockerState_BLOCKER_STATE_RESOLVED || got.ResolvedBy != "system" || got.Resolution != "a has deregistered" {
		t.Errorf("got %v", got)
	}
	if n := notices(lead, "response"); len(n) != 1 {
		t.Errorf("notices %v", n)
	}
}

func TestAutoResolve_WhenTheAwaitedAgentCompletes(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a, r := w.Agent("a", "builder"), w.Agent("researcher", "research")
	in := &pb.RaiseBlockerRequest{AutoResolve: true, Awaited: &pb.AwaitedObject{Object: &pb.AwaitedObject_Agent{Agent: "researcher"}}}
	x := raise(a, in)
	kept := raise(a, &pb.RaiseBlockerRequest{Awaited: in.Awaited})
	completed(r)
	if got := get(a, x.Id); got.State != pb.BlockerState_BLOCKER_STATE_RESOLVED || got.Resolution != "researcher has completed" {
		t.Errorf("got %v", got)
	}
	if got := get(a, kept.Id); got.State != pb.BlockerState_BLOCKER_STATE_OPEN {
		t.Errorf("a blocker that does not resolve itself: %v", got)
	}
	if n := notices(a, "response"); len(n) != 1 || n[0]["blocker_id"] != x.Id {
		t.Errorf("notices %v", n)
	}
	at := raise(a, in) // the agent has completed already
	if d := cmp.Diff([]string{"raised by a", "resolved by system"}, steps(at)); d != "" {
		t.Error(d)
	}
	later := raise(a, &pb.RaiseBlockerRequest{AutoResolve: true, Awaited: &pb.AwaitedObject{Object: &pb.AwaitedObject_Agent{Agent: "unborn"}}})
	completed(w.Agent("unborn", "research"))
	if got := get(a, later.Id); got.State != pb.BlockerState_BLOCKER_STATE_RESOLVED {
		t.Errorf("got %v", got)
	}
}

func TestSessionClosed_ResolvesTheBlockers(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	o := w.Actor("other", "")
	apptest.Must(t, o.CreateSession, &pb.CreateSessionRequest{Name: "other"})
	x := raise(o, &pb.RaiseBlockerRequest{})
	if x.EscalatesAt == nil {
		t.Fatal("it does not escalate")
	}
	apptest.Must(t, o.CloseSession, &pb.CloseSessionRequest{Name: "other"})
	got := get(o, x.Id)
	if got.EscalatesAt != nil || got.State != pb.BlockerState_BLOCKER_STATE_RESOLVED || got.Resolution != "the session was closed" || got.ResolvedBy != "system" {
		t.Errorf("got %v", got)
	}
}

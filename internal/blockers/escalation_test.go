package blockers_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
)

// configure sets escalate_to and the interval.
func (w *world) configure(interval time.Duration, roles ...string) {
	w.t.Helper()
	o := w.operator()
	_, err := o.sessions.ConfigureSession(o.ctx, &pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{
		EscalateTo: &pb.Names{Names: roles}, BlockerEscalation: durationpb.New(interval),
	}})
	must(w.t, err)
}

func TestEscalation_NotifiesOneRolePerIntervalAndBeginsAgainAfterTheLast(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.configure(time.Minute, "overseer", "nobody-has-it", "lead")
	overseer, lead, a := w.agent("eye", "overseer"), w.agent("boss", "lead"), w.agent("a", "builder")
	next := w.operator().follow("blocker.escalated")
	x := a.raise(&pb.RaiseBlockerRequest{})
	for range 3 {
		w.Clock.Advance(time.Minute)
		next()
	}
	got := a.get(x.Id)
	want := []string{"raised by a", "notified role:overseer", "escalated role:lead", "escalated role:overseer", "escalated role:lead"}
	if d := cmp.Diff(want, steps(got)); d != "" {
		t.Error(d)
	}
	if got.Escalations != 3 || got.State != pb.BlockerState_BLOCKER_STATE_OPEN {
		t.Errorf("escalated %v", got)
	}
	if mail := lead.claimed(); len(mail) != 2 || mail[0].Sender != "system" || object(t, mail[1].Payload)["escalations"] != 3.0 {
		t.Errorf("the lead got %v", mail)
	}
	if mail := overseer.claimed(); len(mail) != 2 {
		t.Errorf("the overseer got %v", mail)
	}
	lead.ack(x.Id)
	w.Clock.Advance(time.Hour)
	b := a.raise(&pb.RaiseBlockerRequest{}) // the next event would be one of the first blocker
	w.Clock.Advance(time.Minute)
	if e := next(); !slices.Contains(e.Related, b.Id) {
		t.Errorf("after it was acknowledged, it escalated: %v", e)
	}
}

func TestEscalation_EndsAfterTenTimes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.configure(time.Minute, "lead")
	w.agent("boss", "lead")
	a := w.agent("a", "builder")
	next := w.operator().follow("blocker.escalated")
	x := a.raise(&pb.RaiseBlockerRequest{})
	for range 10 {
		w.Clock.Advance(time.Minute)
		next()
	}
	if got := a.get(x.Id); got.Escalations != 10 || got.EscalatesAt != nil {
		t.Errorf("after ten times: %v", got)
	}
}

func TestEscalation_ReachesAnAgentThatRegistersLater(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.configure(time.Minute, "lead")
	a := w.agent("a", "lead") // not notified of its own blocker
	next := w.operator().follow("blocker.escalated")
	x := a.raise(&pb.RaiseBlockerRequest{})
	w.Clock.Advance(time.Minute)
	next()
	boss := w.agent("boss", "lead")
	w.Clock.Advance(time.Minute)
	next()
	if d := cmp.Diff([]string{"raised by a", "escalated by system", "escalated role:lead"}, steps(a.get(x.Id))); d != "" {
		t.Error(d)
	}
	if len(boss.claimed()) != 1 {
		t.Error("the lead got no notification")
	}
}

func TestEscalation_SkipsRolesWhoseAgentsHaveFailed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.configure(time.Hour, "overseer", "lead")
	failed := w.operator().follow("agent.failed")
	w.brief("eye", "overseer", time.Minute)
	w.agent("boss", "lead")
	a := w.agent("a", "builder")
	w.Clock.Advance(time.Minute + time.Second)
	failed()
	if d := cmp.Diff([]string{"raised by a", "notified role:lead"}, steps(a.raise(&pb.RaiseBlockerRequest{}))); d != "" {
		t.Error(d)
	}
}

func TestEscalation_ContinuesAfterARestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.configure(time.Minute, "lead")
	w.agent("boss", "lead")
	a := w.agent("a", "builder")
	x := a.raise(&pb.RaiseBlockerRequest{})
	w.Restart()
	next := w.operator().follow("blocker.escalated")
	w.Clock.Advance(time.Minute)
	next()
	if got := a.get(x.Id); got.Escalations != 1 {
		t.Errorf("after the restart: %v", got)
	}
}

func TestEscalation_ZeroSwitchesItOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.configure(0, "lead")
	w.agent("boss", "lead")
	a := w.agent("a", "builder")
	if x := a.raise(&pb.RaiseBlockerRequest{}); x.EscalatesAt != nil {
		t.Errorf("it escalates at %v", x.EscalatesAt.AsTime())
	}
}

func TestAgentFailed_BlockerWithoutAnyOtherAcknowledgementEscalatesAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.configure(time.Minute, "lead")
	o := w.operator()
	reopened, escalated := o.follow("blocker.reopened"), o.follow("blocker.escalated")
	helper, other, a := w.brief("helper", "builder", 30*time.Second), w.agent("boss", "lead"), w.agent("a", "builder")
	alone, both := a.raise(&pb.RaiseBlockerRequest{}), a.raise(&pb.RaiseBlockerRequest{})
	helper.ack(alone.Id)
	helper.ack(both.Id)
	other.ack(both.Id)
	w.Clock.Advance(31 * time.Second)
	reopened()
	w.Clock.Advance(time.Minute)
	escalated()
	got := a.get(alone.Id)
	want := []string{"raised by a", "notified role:lead", "acknowledged by helper", "reopened by helper", "escalated role:lead"}
	if d := cmp.Diff(want, steps(got)); d != "" || len(got.AcknowledgedBy) != 0 {
		t.Error(d, got.AcknowledgedBy)
	}
	if got := a.get(both.Id); got.State != pb.BlockerState_BLOCKER_STATE_ACKNOWLEDGED {
		t.Errorf("another agent works on it, but it is %v", got)
	}
}

func TestAgentGone_ResolvesTheBlockersOfADeregisteredAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("boss", "lead"), w.agent("a", "builder")
	x := a.raise(&pb.RaiseBlockerRequest{})
	_, err := a.registry.DeregisterAgent(a.ctx, &pb.DeregisterAgentRequest{})
	must(t, err)
	if got := lead.get(x.Id); got.State != pb.BlockerState_BLOCKER_STATE_RESOLVED || got.ResolvedBy != "system" || got.Resolution != "a has deregistered" {
		t.Errorf("got %v", got)
	}
	if n := lead.notices("response"); len(n) != 1 {
		t.Errorf("notices %v", n)
	}
}

func TestAutoResolve_WhenTheAwaitedAgentCompletes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, r := w.agent("a", "builder"), w.agent("researcher", "research")
	in := &pb.RaiseBlockerRequest{AutoResolve: true, Awaited: &pb.AwaitedObject{Object: &pb.AwaitedObject_Agent{Agent: "researcher"}}}
	x := a.raise(in)
	kept := a.raise(&pb.RaiseBlockerRequest{Awaited: in.Awaited})
	r.completed()
	if got := a.get(x.Id); got.State != pb.BlockerState_BLOCKER_STATE_RESOLVED || got.Resolution != "researcher has completed" {
		t.Errorf("got %v", got)
	}
	if got := a.get(kept.Id); got.State != pb.BlockerState_BLOCKER_STATE_OPEN {
		t.Errorf("a blocker that does not resolve itself: %v", got)
	}
	if n := a.notices("response"); len(n) != 1 || n[0]["blocker_id"] != x.Id {
		t.Errorf("notices %v", n)
	}
	at := a.raise(in) // the agent has completed already
	if d := cmp.Diff([]string{"raised by a", "resolved by system"}, steps(at)); d != "" {
		t.Error(d)
	}
	later := a.raise(&pb.RaiseBlockerRequest{AutoResolve: true, Awaited: &pb.AwaitedObject{Object: &pb.AwaitedObject_Agent{Agent: "unborn"}}})
	w.agent("unborn", "research").completed()
	if got := a.get(later.Id); got.State != pb.BlockerState_BLOCKER_STATE_RESOLVED {
		t.Errorf("got %v", got)
	}
}

func TestSessionClosed_ResolvesTheBlockers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.in("other", "")
	_, err := o.sessions.CreateSession(o.ctx, &pb.CreateSessionRequest{Name: "other"})
	must(t, err)
	x := o.raise(&pb.RaiseBlockerRequest{})
	if x.EscalatesAt == nil {
		t.Fatal("it does not escalate")
	}
	_, err = o.sessions.CloseSession(o.ctx, &pb.CloseSessionRequest{Name: "other"})
	must(t, err)
	got := o.get(x.Id)
	if got.EscalatesAt != nil || got.State != pb.BlockerState_BLOCKER_STATE_RESOLVED || got.Resolution != "the session was closed" || got.ResolvedBy != "system" {
		t.Errorf("got %v", got)
	}
}

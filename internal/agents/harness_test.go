package agents_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// reports sends what the session of a coding agent does.
func (w *team) reports(name string, h *pb.Harness) {
	w.Helper()
	apptest.Must(w, w.Actor("default", name).Heartbeat, &pb.HeartbeatRequest{Harness: h})
}

// in is the session s of Claude Code in a state.
func in(state pb.HarnessState) *pb.Harness {
	return &pb.Harness{Session: "s", Program: "claude-code", State: state}
}

// doing returns what is known of the session of an agent, without the time.
func (w *team) doing(name string) string {
	w.Helper()
	h := w.look(name).GetHarness()
	words := []string{h.GetSession(), strings.ToLower(strings.TrimPrefix(h.GetState().String(), "HARNESS_STATE_")), h.GetTool()}
	if h.GetListening() != 0 {
		words = append(words, h.GetListening().String())
	}
	return strings.Join(words, " ")
}

func TestHarness_AnAgentInATurnIsBusyAndNeverAsleep(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	apptest.Must(t, w.Actor("default", "a").RegisterAgent, &pb.RegisterAgentRequest{Lease: durationpb.New(time.Hour)})
	if h := w.look("a").GetHarness(); h != nil {
		t.Errorf("before a report: %v", h)
	}
	w.pass(2 * time.Minute)
	began := w.Clock.Now()
	w.reports("a", in(pb.HarnessState_HARNESS_STATE_BUSY))
	w.pass(time.Second)
	w.reports("a", &pb.Harness{Session: "s", Program: "claude-code", State: pb.HarnessState_HARNESS_STATE_BUSY, Tool: "Bash"})
	w.pass(10 * time.Minute)
	check := func(when string) {
		t.Helper()
		a := w.look("a")
		if got := w.doing("a"); got != "s busy Bash" || !a.GetHarness().GetSince().AsTime().Equal(began) ||
			a.GetAsleepSince() != nil || a.GetState() != "busy" {
			t.Errorf("%s: %v", when, a)
		}
	}
	check("in a long call of a tool")
	w.Restart()
	w.pass(2 * time.Minute)
	check("after a restart of the broker")

	w.beats("a")
	w.reports("a", in(pb.HarnessState_HARNESS_STATE_IDLE))
	if got := w.look("a").GetState(); w.doing("a") != "s idle " || got != "idle" {
		t.Errorf("idle: %s, %s", w.doing("a"), got)
	}
	w.pass(70 * time.Second)
	if w.look("a").GetAsleepSince() == nil {
		t.Error("an idle session that nothing wakes is awake")
	}
	w.reports("a", &pb.Harness{Session: "s", Listening: pb.OfferWay_OFFER_WAY_WAKE})
	w.reports("a", in(pb.HarnessState_HARNESS_STATE_BUSY))
	w.reports("a", in(pb.HarnessState_HARNESS_STATE_IDLE)) // it listens all the time
	w.pass(70 * time.Second)
	if a := w.look("a"); a.GetAsleepSince() != nil || w.doing("a") != "s idle  OFFER_WAY_WAKE" {
		t.Errorf("a session that mail wakes: %s, asleep since %v", w.doing("a"), a.GetAsleepSince())
	}
}

func TestHarness_EndsWithItsSessionOrItsAgent(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	w.register("a")
	busy := in(pb.HarnessState_HARNESS_STATE_BUSY)
	w.reports("a", busy)
	w.reports("a", &pb.Harness{Session: "another", State: pb.HarnessState_HARNESS_STATE_ENDED})
	if got := w.doing("a"); got != "s busy " {
		t.Errorf("another session has ended: %s", got)
	}
	w.reports("a", in(pb.HarnessState_HARNESS_STATE_ENDED))
	if got := w.doing("a"); got != "s ended " {
		t.Errorf("it has ended: %s", got)
	}
	w.reports("a", busy)
	w.stops("a")
	if got := w.doing("a"); got != "s ended " {
		t.Errorf("its agent has stopped: %s", got)
	}
	w.reports("a", busy)
	w.pass(lease + time.Second)
	w.fails("a")
	failed := w.look("a")
	if got := w.doing("a"); got != "s ended " || !failed.GetHarness().GetSince().AsTime().Equal(failed.GetFailedAt().AsTime()) {
		t.Errorf("its agent has failed: %v", failed)
	}
	w.reports("a", in(pb.HarnessState_HARNESS_STATE_ENDED))
	w.reports("a", &pb.Harness{Session: "s"}) // it listens no longer
	if w.look("a").GetFailedAt() == nil {
		t.Error("the end of its session brings it back")
	}
	w.beats("a") // which brings it back
	if got := w.doing("a"); got != "s ended " {
		t.Errorf("another program of the agent calls: %s", got)
	}
}

func TestHarness_RegistrationOfAnotherProgramForgetsIt(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	w.register("a")
	w.reports("a", in(pb.HarnessState_HARNESS_STATE_BUSY))
	register := func(r *pb.RegisterAgentRequest) *pb.Agent {
		t.Helper()
		return apptest.Must(t, w.Actor("default", "a").RegisterAgent, r).GetAgent()
	}
	if got := register(&pb.RegisterAgentRequest{Harness: "s"}).GetHarness(); got.GetState() != pb.HarnessState_HARNESS_STATE_BUSY {
		t.Errorf("its own session: %v", got)
	}
	if got := w.doing("a"); got != "s busy " {
		t.Errorf("stored: %s", got)
	}
	if got := register(&pb.RegisterAgentRequest{}).GetHarness(); got != nil {
		t.Errorf("a program: %v", got)
	}
	if got := w.look("a").GetHarness(); got != nil {
		t.Errorf("stored: %v", got)
	}
}

func TestHarness_IsExplainedAndLogged(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	w.register("a")
	for _, c := range []struct {
		h    *pb.Harness
		want string
	}{
		{&pb.Harness{Session: "s", Program: "claude-code", State: pb.HarnessState_HARNESS_STATE_BUSY, Tool: "Bash"},
			"its session of claude-code has been in a turn since "},
		{in(pb.HarnessState_HARNESS_STATE_IDLE), "nothing wakes it"},
		{&pb.Harness{Session: "s", Listening: pb.OfferWay_OFFER_WAY_WAKE}, "mail wakes it (wake)"},
		{in(pb.HarnessState_HARNESS_STATE_ENDED), "its session of claude-code ended at "},
	} {
		w.reports("a", c.h)
		w.reports("a", c.h) // which changes nothing
		about := &pb.ExplainRequest{Subject: &pb.ExplainRequest_Agent{Agent: "a"}}
		out := apptest.Must(t, w.Root().Explain, about)
		got := ""
		for _, f := range out.GetFindings() {
			got += strings.Join(f.GetReasons(), "\n") + "\n"
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%v: no %q in\n%s", c.h, c.want, got)
		}
	}
	busy := &pb.HeartbeatRequest{Harness: in(pb.HarnessState_HARNESS_STATE_ENDED), Activity: proto.String("tidies up")}
	apptest.Must(t, w.Actor("default", "a").Heartbeat, busy)
	presence := 0
	for _, e := range w.trail() {
		if e == "agent.presence a" {
			presence++
		}
	}
	if presence != 4 {
		t.Errorf("%d events of 4 changes: %q", presence, w.trail())
	}
}

func TestAttention_StaysUntilItIsChanged(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	w.register("a")
	expect := func(want pb.Attention) {
		t.Helper()
		if got := w.look("a").GetAttention(); got != want {
			t.Errorf("attention %v, not %v", got, want)
		}
	}
	register := func(r *pb.RegisterAgentRequest) {
		t.Helper()
		apptest.Must(t, w.Actor("default", "a").RegisterAgent, r)
	}
	expect(pb.Attention_ATTENTION_OPEN)
	apptest.Must(t, w.Actor("default", "a").Heartbeat, &pb.HeartbeatRequest{Attention: pb.Attention_ATTENTION_OFF})
	expect(pb.Attention_ATTENTION_OFF)
	register(&pb.RegisterAgentRequest{})
	w.Restart()
	expect(pb.Attention_ATTENTION_OFF)
	register(&pb.RegisterAgentRequest{Attention: pb.Attention_ATTENTION_DIRECTIVES})
	expect(pb.Attention_ATTENTION_DIRECTIVES)
	register(&pb.RegisterAgentRequest{Replace: true})
	expect(pb.Attention_ATTENTION_OPEN)
}

func TestHarness_AHeartbeatThatOnlyReportsItKeepsTheLosses(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	w.register("a")
	w.send(1)
	w.claim("a", 1, time.Hour)
	w.pass(lease)
	w.fails("a")
	for _, seen := range []*pb.HeartbeatRequest{
		{Harness: in(pb.HarnessState_HARNESS_STATE_BUSY)},
		{Harness: in(pb.HarnessState_HARNESS_STATE_IDLE), Attention: pb.Attention_ATTENTION_DIRECTIVES},
		{Attention: pb.Attention_ATTENTION_OPEN},
	} {
		out, err := w.Actor("default", "a").Heartbeat(w.ctx(), seen)
		if err != nil || len(out.GetLosses()) > 0 {
			t.Errorf("%v: told %v, %v", seen, out.GetLosses(), err)
		}
	}
	if n := len(w.beats("a").GetLosses()); n != 1 {
		t.Errorf("%d losses are reported", n)
	}
}

package decisions_test

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
)

// acquire acquires the token of the review of login.
func (a *actor) acquire() *pb.AcquireTokenResponse {
	a.t.Helper()
	out, err := a.tokens.AcquireToken(a.ctx, &pb.AcquireTokenRequest{Type: "producer_critic", Scope: "login"})
	must(a.t, err)
	return out
}

// holder returns the agent, or the role, that holds the token of the review of login.
func (a *actor) holder() string {
	a.t.Helper()
	out, err := a.tokens.GetToken(a.ctx, &pb.GetTokenRequest{Type: "producer_critic", Scope: "login"})
	must(a.t, err)
	if role := out.GetToken().GetPassedToRole(); role != "" {
		return "role:" + role
	}
	return out.GetToken().GetAgent()
}

func (a *actor) holds(want string) {
	a.t.Helper()
	if got := a.holder(); got != want {
		a.t.Errorf("the token is held by %q, want %q", got, want)
	}
}

// login is a review that passes the token.
func login(critic string) *pb.OpenDecisionRequest {
	return &pb.OpenDecisionRequest{Kind: review, To: toAgent(critic), Scope: "login", PassToken: true}
}

func TestToken_PassesWithEachRoundAndVerdict(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	builder, critic := w.agent("builder-1", "builder"), w.agent("critic-1", "critic")
	builder.acquire()
	d := builder.open(login("critic-1"))
	builder.holds("critic-1")
	w.Clock.Advance(10 * time.Minute) // longer than a token that was passed otherwise waits to be collected
	if out := critic.decide(d.GetId(), "revise"); !out.GetTokenPassed() {
		t.Errorf("verdict: %v", out)
	}
	critic.holds("builder-1")
	builder.resubmit(d.GetId())
	builder.holds("critic-1")
	if out := critic.acquire(); out.GetOutcome() != pb.AcquireOutcome_ACQUIRE_OUTCOME_GRANTED || !out.GetAlreadyHeld() {
		t.Errorf("the critic acquires its token: %v", out)
	}
	w.Restart()
	critic.decide(d.GetId(), "approve")
	builder.holds("builder-1")
}

func TestToken_IsHeldAsLongAsTheGiverWasToHoldIt(t *testing.T) {
	t.Parallel()
	for _, hold := range []struct{ asked, want time.Duration }{{0, 30 * time.Minute}, {2 * time.Hour, 2 * time.Hour}} {
		w := newWorld(t)
		builder, critic := w.agent("builder-1", "builder"), w.agent("critic-1", "critic")
		in := &pb.AcquireTokenRequest{Type: "producer_critic", Scope: "login"}
		if hold.asked != 0 {
			in.MaxHold = durationpb.New(hold.asked)
		}
		_, err := builder.tokens.AcquireToken(builder.ctx, in)
		must(t, err)
		left := func() time.Duration {
			out, err := builder.tokens.GetToken(builder.ctx, &pb.GetTokenRequest{Type: "producer_critic", Scope: "login"})
			must(t, err)
			return out.GetToken().GetHeldUntil().AsTime().Sub(w.Clock.Now())
		}
		w.Clock.Advance(time.Minute)
		d := builder.open(login("critic-1"))
		if got := left(); got != hold.want {
			t.Errorf("asked for %v: the critic holds it for %v", hold.asked, got)
		}
		w.Clock.Advance(time.Minute)
		critic.decide(d.GetId(), "approve")
		builder.holds("builder-1")
		if got := left(); got != hold.want {
			t.Errorf("asked for %v: the builder holds it for %v again", hold.asked, got)
		}
	}
}

func TestToken_PassesFromALaterRoundOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	builder, critic := w.agent("builder-1", "builder"), w.agent("critic-1", "critic")
	in := login("critic-1")
	in.PassToken = false
	d := builder.open(in)
	critic.decide(d.GetId(), "revise")
	again := &pb.ResubmitDecisionRequest{Id: d.GetId(), PassToken: true}
	_, err := builder.ResubmitDecision(builder.ctx, again)
	refused(t, err, codes.FailedPrecondition, "TOKEN_NOT_HELD")
	if got := builder.get(d.GetId()); got.GetPassToken() || got.GetRound() != 1 {
		t.Errorf("after the refusal: %v", got)
	}
	builder.acquire()
	_, err = builder.ResubmitDecision(builder.ctx, again)
	must(t, err)
	builder.holds("critic-1")
	if got := builder.get(d.GetId()); !got.GetPassToken() {
		t.Errorf("round 2: %v", got)
	}
	critic.decide(d.GetId(), "revise")
	builder.holds("builder-1")
	builder.resubmit(d.GetId())
	builder.holds("critic-1")
}

func TestToken_EscalatedRoundIsRefusedWithoutTheTokenThatItIsToPass(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	builder, critic, boss := w.agent("builder-1", "builder"), w.agent("critic-1", "critic"), w.agent("boss", "lead")
	in := login("critic-1")
	in.PassToken, in.MaxRounds = false, 1
	d := builder.open(in)
	critic.decide(d.GetId(), "revise")
	boss.decide(d.GetId(), "revise")
	again := &pb.ResubmitDecisionRequest{Id: d.GetId(), PassToken: true}
	_, err := builder.ResubmitDecision(builder.ctx, again)
	refused(t, err, codes.FailedPrecondition, "TOKEN_NOT_HELD")
	builder.acquire()
	_, err = builder.ResubmitDecision(builder.ctx, again)
	must(t, err)
	builder.holds("role:lead")
}

func TestToken_EscalatedRoundThatNoAgentDecidesPassesNoToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	builder, critic := w.agent("builder-1", "builder"), w.agent("critic-1", "critic")
	in := login("critic-1")
	in.PassToken = false
	d := builder.open(in)
	critic.decide(d.GetId(), "revise")
	critic.deregister()
	builder.acquire()
	again := &pb.ResubmitDecisionRequest{Id: d.GetId(), PassToken: true}
	_, err := builder.ResubmitDecision(builder.ctx, again)
	refused(t, err, codes.InvalidArgument, "INVALID_ARGUMENT")
	again.PassToken = false
	_, err = builder.ResubmitDecision(builder.ctx, again)
	must(t, err)
	builder.holds("builder-1")
}

func TestToken_OnlyAReviewWithAScopePassesOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	builder, critic := w.agent("builder-1", "builder"), w.agent("critic-1", "critic")
	d := builder.open(&pb.OpenDecisionRequest{Kind: review, To: toAgent("critic-1")})
	critic.decide(d.GetId(), "revise")
	_, err := builder.ResubmitDecision(builder.ctx, &pb.ResubmitDecisionRequest{Id: d.GetId(), PassToken: true})
	refused(t, err, codes.InvalidArgument, "INVALID_ARGUMENT")
}

func TestToken_RefusedPassOpensNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	builder, critic := w.agent("builder-1", "builder"), w.agent("critic-1", "critic")
	builder.acquire()
	d := builder.open(login("critic-1"))
	critic.decide(d.GetId(), "revise")
	_, err := builder.tokens.ReleaseToken(builder.ctx, &pb.ReleaseTokenRequest{Type: "producer_critic", Scope: "login"})
	must(t, err)
	_, err = builder.ResubmitDecision(builder.ctx, &pb.ResubmitDecisionRequest{Id: d.GetId()})
	refused(t, err, codes.FailedPrecondition, "TOKEN_NOT_HELD")
	if got := builder.get(d.GetId()); got.GetState() != revising || got.GetRound() != 1 {
		t.Errorf("after the refusal: %v", got)
	}
	critic.receives()
	builder.acquire()
	builder.resubmit(d.GetId())
	builder.holds("critic-1")
}

func TestToken_OfARoleWaitsForItsVerdict(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	builder, critic, boss := w.agent("builder-1", "builder"), w.agent("critic-1", "critic"), w.agent("boss", "lead")
	w.agent("critic-2", "critic")
	builder.acquire()
	in := login("")
	in.To, in.MaxRounds = toRole("critic"), 1
	d := builder.open(in)
	builder.holds("role:critic")
	w.Clock.Advance(10 * time.Minute)
	if critic.acquire().GetOutcome() != pb.AcquireOutcome_ACQUIRE_OUTCOME_GRANTED {
		t.Error("an agent of the role does not get the token")
	}
	builder.holds("critic-1")
	w.in("default", "critic-2").decide(d.GetId(), "revise")
	builder.holds("role:lead")
	boss.decide(d.GetId(), "approve")
	builder.holds("builder-1")
}

func TestToken_VerdictCountsThoughTheReviewerHasLostIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	builder, critic := w.agent("builder-1", "builder"), w.agent("critic-1", "critic")
	builder.acquire()
	d := builder.open(login("critic-1"))
	_, err := critic.tokens.ReleaseToken(critic.ctx, &pb.ReleaseTokenRequest{Type: "producer_critic", Scope: "login"})
	must(t, err)
	out := critic.decide(d.GetId(), "approve")
	if out.GetTokenPassed() || out.GetDecision().GetState() != decided {
		t.Errorf("verdict: %v", out)
	}
	builder.holds("")
}

func TestToken_KilledProducerComesFirstWhenItIsBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	builder, critic := w.in("default", "builder-1"), w.agent("critic-1", "critic")
	_, err := builder.agents.RegisterAgent(builder.ctx, &pb.RegisterAgentRequest{Role: "builder", Lease: durationpb.New(10 * time.Second)})
	must(t, err)
	builder.acquire()
	d := builder.open(login("critic-1"))
	w.awaitEvents(1, func() { w.Clock.Advance(10 * time.Second) }, "agent.failed")
	critic.decide(d.GetId(), "revise")
	critic.holds("")
	_, err = builder.agents.RegisterAgent(builder.ctx, &pb.RegisterAgentRequest{Role: "builder"})
	must(t, err)
	if out := builder.acquire(); out.GetOutcome() != pb.AcquireOutcome_ACQUIRE_OUTCOME_GRANTED || out.GetPassedBy() != "critic-1" {
		t.Errorf("the producer that is back acquires: %v", out)
	}
	builder.receives("revision_requested")
	builder.resubmit(d.GetId())
	critic.decide(d.GetId(), "approve")
	builder.holds("builder-1")
}

func TestToken_CancellationPassesItBackOrReleasesIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	builder := w.agent("builder-1", "builder")
	w.agent("critic-1", "critic")
	builder.acquire()
	d := builder.open(login("critic-1"))
	_, err := builder.CancelDecision(builder.ctx, &pb.CancelDecisionRequest{Id: d.GetId()})
	must(t, err)
	builder.holds("builder-1")
	builder.open(login("critic-1"))
	builder.holds("critic-1")
	_, err = builder.agents.DeregisterAgent(builder.ctx, &pb.DeregisterAgentRequest{})
	must(t, err)
	builder.holds("")
}

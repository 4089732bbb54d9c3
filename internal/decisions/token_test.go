package decisions_test

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// acquire acquires the token of the review of login.
func acquire(a *apptest.Actor) *pb.AcquireTokenResponse {
	a.Helper()
	return apptest.Must(a, a.AcquireToken, &pb.AcquireTokenRequest{Type: "producer_critic", Scope: "login"})
}

// holder returns the agent, or the role, that holds the token of the review of login.
func holder(a *apptest.Actor) string {
	a.Helper()
	out := apptest.Must(a, a.GetToken, &pb.GetTokenRequest{Type: "producer_critic", Scope: "login"})
	if role := out.GetToken().GetPassedToRole(); role != "" {
		return "role:" + role
	}
	return out.GetToken().GetAgent()
}

func holds(a *apptest.Actor, want string) {
	a.Helper()
	if got := holder(a); got != want {
		a.Errorf("the token is held by %q, want %q", got, want)
	}
}

// login is a review that passes the token.
func login(critic string) *pb.OpenDecisionRequest {
	return &pb.OpenDecisionRequest{Kind: review, To: toAgent(critic), Scope: "login", PassToken: true}
}

func TestToken_PassesWithEachRoundAndVerdict(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	builder, critic := w.Agent("builder-1", "builder"), w.Agent("critic-1", "critic")
	acquire(builder)
	d := openDecision(builder, login("critic-1"))
	holds(builder, "critic-1")
	w.Clock.Advance(10 * time.Minute) // longer than a token that was passed otherwise waits to be collected
	if out := decide(critic, d.GetId(), "revise"); !out.GetTokenPassed() {
		t.Errorf("verdict: %v", out)
	}
	holds(critic, "builder-1")
	resubmit(builder, d.GetId())
	holds(builder, "critic-1")
	if out := acquire(critic); out.GetOutcome() != pb.AcquireOutcome_ACQUIRE_OUTCOME_GRANTED || !out.GetAlreadyHeld() {
		t.Errorf("the critic acquires its token: %v", out)
	}
	w.Restart()
	decide(critic, d.GetId(), "approve")
	holds(builder, "builder-1")
}

func TestToken_IsHeldAsLongAsTheGiverWasToHoldIt(t *testing.T) {
	t.Parallel()
	for _, hold := range []struct{ asked, want time.Duration }{{0, 30 * time.Minute}, {2 * time.Hour, 2 * time.Hour}} {
		w := apptest.Start(t, apptest.WithFakeClock())
		builder, critic := w.Agent("builder-1", "builder"), w.Agent("critic-1", "critic")
		in := &pb.AcquireTokenRequest{Type: "producer_critic", Scope: "login"}
		if hold.asked != 0 {
			in.MaxHold = durationpb.New(hold.asked)
		}
		apptest.Must(t, builder.AcquireToken, in)
		left := func() time.Duration {
			return apptest.Must(t, builder.GetToken, &pb.GetTokenRequest{Type: "producer_critic", Scope: "login"}).GetToken().GetHeldUntil().AsTime().Sub(w.Clock.Now())
		}
		w.Clock.Advance(time.Minute)
		d := openDecision(builder, login("critic-1"))
		if got := left(); got != hold.want {
			t.Errorf("asked for %v: the critic holds it for %v", hold.asked, got)
		}
		w.Clock.Advance(time.Minute)
		decide(critic, d.GetId(), "approve")
		holds(builder, "builder-1")
		if got := left(); got != hold.want {
			t.Errorf("asked for %v: the builder holds it for %v again", hold.asked, got)
		}
	}
}

func TestToken_PassesFromALaterRoundOn(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	builder, critic := w.Agent("builder-1", "builder"), w.Agent("critic-1", "critic")
	in := login("critic-1")
	in.PassToken = false
	d := openDecision(builder, in)
	decide(critic, d.GetId(), "revise")
	again := &pb.ResubmitDecisionRequest{Id: d.GetId(), PassToken: true}
	apptest.Refuses(t, builder.ResubmitDecision, again, codes.FailedPrecondition, "TOKEN_NOT_HELD")
	if got := get(builder, d.GetId()); got.GetPassToken() || got.GetRound() != 1 {
		t.Errorf("after the refusal: %v", got)
	}
	acquire(builder)
	apptest.Must(t, builder.ResubmitDecision, again)
	holds(builder, "critic-1")
	if got := get(builder, d.GetId()); !got.GetPassToken() {
		t.Errorf("round 2: %v", got)
	}
	decide(critic, d.GetId(), "revise")
	holds(builder, "builder-1")
	resubmit(builder, d.GetId())
	holds(builder, "critic-1")
}

func TestToken_EscalatedRoundIsRefusedWithoutTheTokenThatItIsToPass(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	builder, critic, boss := w.Agent("builder-1", "builder"), w.Agent("critic-1", "critic"), w.Agent("boss", "lead")
	in := login("critic-1")
	in.PassToken, in.MaxRounds = false, 1
	d := openDecision(builder, in)
	decide(critic, d.GetId(), "revise")
	decide(boss, d.GetId(), "revise")
	again := &pb.ResubmitDecisionRequest{Id: d.GetId(), PassToken: true}
	apptest.Refuses(t, builder.ResubmitDecision, again, codes.FailedPrecondition, "TOKEN_NOT_HELD")
	acquire(builder)
	apptest.Must(t, builder.ResubmitDecision, again)
	holds(builder, "role:lead")
}

func TestToken_EscalatedRoundThatNoAgentDecidesPassesNoToken(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	builder, critic := w.Agent("builder-1", "builder"), w.Agent("critic-1", "critic")
	in := login("critic-1")
	in.PassToken = false
	d := openDecision(builder, in)
	decide(critic, d.GetId(), "revise")
	deregister(critic)
	acquire(builder)
	again := &pb.ResubmitDecisionRequest{Id: d.GetId(), PassToken: true}
	apptest.Refuses(t, builder.ResubmitDecision, again, codes.InvalidArgument, "INVALID_ARGUMENT")
	again.PassToken = false
	apptest.Must(t, builder.ResubmitDecision, again)
	holds(builder, "builder-1")
}

func TestToken_OnlyAReviewWithAScopePassesOne(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	builder, critic := w.Agent("builder-1", "builder"), w.Agent("critic-1", "critic")
	d := openDecision(builder, &pb.OpenDecisionRequest{Kind: review, To: toAgent("critic-1")})
	decide(critic, d.GetId(), "revise")
	apptest.Refuses(t, builder.ResubmitDecision, &pb.ResubmitDecisionRequest{Id: d.GetId(), PassToken: true},
		codes.InvalidArgument, "INVALID_ARGUMENT")
}

func TestToken_RefusedPassOpensNothing(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	builder, critic := w.Agent("builder-1", "builder"), w.Agent("critic-1", "critic")
	acquire(builder)
	d := openDecision(builder, login("critic-1"))
	decide(critic, d.GetId(), "revise")
	apptest.Must(t, builder.ReleaseToken, &pb.ReleaseTokenRequest{Type: "producer_critic", Scope: "login"})
	apptest.Refuses(t, builder.ResubmitDecision, &pb.ResubmitDecisionRequest{Id: d.GetId()},
		codes.FailedPrecondition, "TOKEN_NOT_HELD")
	if got := get(builder, d.GetId()); got.GetState() != revising || got.GetRound() != 1 {
		t.Errorf("after the refusal: %v", got)
	}
	receives(critic)
	acquire(builder)
	resubmit(builder, d.GetId())
	holds(builder, "critic-1")
}

func TestToken_OfARoleWaitsForItsVerdict(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	builder, critic, boss := w.Agent("builder-1", "builder"), w.Agent("critic-1", "critic"), w.Agent("boss", "lead")
	w.Agent("critic-2", "critic")
	acquire(builder)
	in := login("")
	in.To, in.MaxRounds = toRole("critic"), 1
	d := openDecision(builder, in)
	holds(builder, "role:critic")
	w.Clock.Advance(10 * time.Minute)
	if acquire(critic).GetOutcome() != pb.AcquireOutcome_ACQUIRE_OUTCOME_GRANTED {
		t.Error("an agent of the role does not get the token")
	}
	holds(builder, "critic-1")
	decide(w.Actor("default", "critic-2"), d.GetId(), "revise")
	holds(builder, "role:lead")
	decide(boss, d.GetId(), "approve")
	holds(builder, "builder-1")
}

func TestToken_VerdictCountsThoughTheReviewerHasLostIt(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	builder, critic := w.Agent("builder-1", "builder"), w.Agent("critic-1", "critic")
	acquire(builder)
	d := openDecision(builder, login("critic-1"))
	apptest.Must(t, critic.ReleaseToken, &pb.ReleaseTokenRequest{Type: "producer_critic", Scope: "login"})
	out := decide(critic, d.GetId(), "approve")
	if out.GetTokenPassed() || out.GetDecision().GetState() != decided {
		t.Errorf("verdict: %v", out)
	}
	holds(builder, "")
}

func TestToken_KilledProducerComesFirstWhenItIsBack(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	builder, critic := w.Actor("default", "builder-1"), w.Agent("critic-1", "critic")
	apptest.Must(t, builder.RegisterAgent, &pb.RegisterAgentRequest{Role: "builder", Lease: durationpb.New(10 * time.Second)})
	acquire(builder)
	d := openDecision(builder, login("critic-1"))
	advance(w, 10*time.Second, "agent.failed")
	decide(critic, d.GetId(), "revise")
	holds(critic, "")
	apptest.Must(t, builder.RegisterAgent, &pb.RegisterAgentRequest{Role: "builder"})
	if out := acquire(builder); out.GetOutcome() != pb.AcquireOutcome_ACQUIRE_OUTCOME_GRANTED || out.GetPassedBy() != "critic-1" {
		t.Errorf("the producer that is back acquires: %v", out)
	}
	receives(builder, "revision_requested")
	resubmit(builder, d.GetId())
	decide(critic, d.GetId(), "approve")
	holds(builder, "builder-1")
}

func TestToken_CancellationPassesItBackOrReleasesIt(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	builder := w.Agent("builder-1", "builder")
	w.Agent("critic-1", "critic")
	acquire(builder)
	d := openDecision(builder, login("critic-1"))
	apptest.Must(t, builder.CancelDecision, &pb.CancelDecisionRequest{Id: d.GetId()})
	holds(builder, "builder-1")
	openDecision(builder, login("critic-1"))
	holds(builder, "critic-1")
	apptest.Must(t, builder.DeregisterAgent, &pb.DeregisterAgentRequest{})
	holds(builder, "")
}

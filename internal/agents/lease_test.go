package agents_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

const lease = 30 * time.Second // of the agents of a team

func TestLease_EndsAtItsTimeAndNotBefore(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	w.register("a")
	w.pass(20 * time.Second)
	w.beats("a")
	w.pass(lease - time.Nanosecond)
	if a := w.look("a"); a.GetHealth() != pb.Health_HEALTH_LATE || a.GetFailedAt() != nil {
		t.Fatalf("a nanosecond before its time: %v", a)
	}
	w.Clock.Advance(time.Nanosecond)
	a := w.fails("a")
	if !a.GetFailedAt().AsTime().Equal(w.Clock.Now()) || a.GetIncarnation() != 2 {
		t.Errorf("it has failed as %v", a)
	}
	if got, want := w.trail(), []string{"agent.registered a", "agent.failed system"}; !slices.Equal(got, want) {
		t.Errorf("events %q", got)
	}
}

func TestLease_HealthIsLateAfterAThird(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	w.register("a")
	w.Clock.Advance(lease / 3)
	if a := w.look("a"); a.GetHealth() != pb.Health_HEALTH_OK {
		t.Errorf("after a third: %v", a.GetHealth())
	}
	w.Clock.Advance(1)
	if a := w.look("a"); a.GetHealth() != pb.Health_HEALTH_LATE {
		t.Errorf("after more: %v", a.GetHealth())
	}
	w.beats("a")
	if a := w.look("a"); a.GetHealth() != pb.Health_HEALTH_OK {
		t.Errorf("heard of again: %v", a.GetHealth())
	}
}

func TestLease_OnlyItsOwnCallsRenewIt(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	w.register("a")
	w.register("other")
	w.pass(20 * time.Second)
	w.look("a")
	w.send(1)
	w.beats("other")
	w.Clock.Advance(10 * time.Second)
	w.fails("a")
	if got := w.look("other").GetHealth(); got != pb.Health_HEALTH_OK {
		t.Errorf("the other is %v", got)
	}
}

func TestLease_AnotherIncarnationsCallsDoNotRenewIt(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	w.register("a")
	w.register("a")
	w.pass(20 * time.Second)
	apptest.Refused(t, apptest.Err(w.beat("a", 1)), codes.FailedPrecondition, "STALE_INCARNATION")
	w.Clock.Advance(10 * time.Second)
	w.fails("a")
}

// Whoever calls as soon as the process goes on keeps its lease, whether the queue or the call notices the stop first.
func TestLease_AStoppedProcessFailsNobody(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	w.register("a")
	w.register("b")
	w.register("silent")
	w.pass(20 * time.Second)
	w.beats("b") // its deadline moves, and it must be pushed back all the same
	w.pass(5 * time.Second)
	w.Clock.Advance(40 * time.Second)
	for _, name := range []string{"a", "b", "silent"} {
		if a := w.look(name); a.GetHealth() == pb.Health_HEALTH_FAILED {
			t.Fatalf("%s has failed while the process stood still", name)
		}
	}
	w.pass(4 * time.Second)
	w.beats("a")
	w.beats("b")
	w.pass(time.Second)
	w.fails("silent") // before more time passes, which would be taken for another stop
	w.pass(24 * time.Second)
	w.beats("a")
	w.pass(4 * time.Second)
	for name, incarnation := range map[string]int64{"a": 1, "b": 1} {
		if a := w.look(name); a.GetIncarnation() != incarnation || a.GetFailedAt() != nil {
			t.Errorf("%s: %v", name, a)
		}
	}
	w.pass(time.Second)
	w.fails("b")
}

func TestLease_RestartGivesItsFullTimeAndAGrace(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	w.register("a")
	w.pass(29 * time.Second)
	w.Restart()
	w.pass(lease + 30*time.Second - 1)
	if a := w.look("a"); a.GetHealth() != pb.Health_HEALTH_LATE {
		t.Fatalf("within the grace: %v", a.GetHealth())
	}
	w.Clock.Advance(1)
	w.fails("a")
	w.Restart()
	if a := w.look("a"); a.GetHealth() != pb.Health_HEALTH_FAILED || a.GetIncarnation() != 2 {
		t.Errorf("after a restart: %v", a)
	}
}

func TestLease_AnOpenStreamKeepsIt(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	w.register("a")
	ctx, cancel := context.WithCancel(w.ctx())
	defer cancel()
	stream, err := w.Actor("default", "a").Receive(ctx, &pb.ReceiveRequest{Follow: true})
	apptest.NoError(t, err)
	if _, err := stream.Recv(); err != nil { // it says where it stands
		t.Fatal(err)
	}
	w.pass(3 * lease)
	if a := w.look("a"); a.GetHealth() != pb.Health_HEALTH_OK {
		t.Fatalf("with an open stream: %v", a.GetHealth())
	}
	cancel()
	for {
		if _, err := stream.Recv(); err != nil {
			break
		}
	}
	for w.look("a").GetHealth() == pb.Health_HEALTH_OK { // until the server has seen the end, which is a sign of life
		w.pass(time.Second)
	}
	w.pass(lease)
	w.fails("a")
}

func TestLease_AWaitingCallKeepsIt(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	w.register("a")
	w.Clock.Advance(time.Millisecond)
	waiting := make(chan error, 1)
	go func() {
		out, err := w.Actor("default", "a").ClaimMessages(w.ctx(), &pb.ClaimMessagesRequest{Max: 1, Wait: durationpb.New(5 * time.Minute)})
		if err == nil && len(out.GetClaims()) != 1 {
			err = errors.New("nothing was claimed")
		}
		waiting <- err
	}()
	for ctx := w.ctx(); !w.look("a").GetLastSeen().AsTime().Equal(w.Clock.Now()); { // until it has begun
		if ctx.Err() != nil {
			t.Fatal("it never began")
		}
	}
	w.pass(2 * lease)
	w.send(1)
	if err := <-waiting; err != nil {
		t.Error(err)
	}
	if a := w.look("a"); a.GetIncarnation() != 1 {
		t.Errorf("%v", a)
	}
}

func TestFail_ClaimsGoBackAsOneFailedAttemptAndAreToldOnce(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	w.register("a")
	w.Registered("next", "builder")
	w.send(7)
	lost := w.claim("a", 7, time.Hour)
	if len(lost) != 7 {
		t.Fatalf("%d claims", len(lost))
	}
	w.pass(lease)
	w.fails("a")
	w.Clock.Advance(2 * time.Second) // the wait before the next attempt
	var next []*pb.ClaimedMessage
	for len(next) < 7 {
		next = append(next, w.claim("next", 7, time.Hour)...)
		w.Clock.Advance(100 * time.Millisecond)
	}
	for _, c := range next {
		if c.GetAttempt() != 2 {
			t.Errorf("%s is attempt %d", c.GetClaimId(), c.GetAttempt())
		}
	}
	if a := w.look("a"); a.GetDegraded() {
		t.Error("several claims lost at once open the circuit breaker")
	}
	apptest.Refused(t, apptest.Err(w.beat("a", 1)), codes.FailedPrecondition, "STALE_INCARNATION")
	losses := w.beats("a").GetLosses()
	if len(losses) != 7 {
		t.Fatalf("%d losses", len(losses))
	}
	for i, l := range losses {
		if l.GetKind() != pb.LossKind_LOSS_KIND_CLAIM || l.GetName() != lost[i].GetClaimId() || l.GetRevision() != lost[i].GetMessage().GetRevision() {
			t.Errorf("lost %v, held %v", l, lost[i].GetClaimId())
		}
	}
	if again := w.beats("a").GetLosses(); len(again) > 0 {
		t.Errorf("told twice: %v", again)
	}
}

func TestRevive_AnyCallWithoutTheOldIncarnationBringsItBack(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	calls := map[string]func(ctx context.Context) error{
		"heartbeat": func(ctx context.Context) error {
			return apptest.Err(w.Actor("default", "a").Heartbeat(ctx, &pb.HeartbeatRequest{}))
		},
		"read": func(ctx context.Context) error {
			return apptest.Err(w.Actor("default", "a").ListAgents(ctx, &pb.ListAgentsRequest{}))
		},
		"send": func(ctx context.Context) error {
			return apptest.Err(w.Actor("default", "a").SendMessages(ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{{
				Target: &pb.Target{To: &pb.Target_Everyone{Everyone: true}}, Type: "task", Version: "1.0",
			}}}))
		},
		"wait": func(ctx context.Context) error {
			return apptest.Err(w.Actor("default", "a").ClaimMessages(ctx, &pb.ClaimMessagesRequest{Max: 1}))
		},
	}
	w.register("a")
	for name, call := range calls {
		w.pass(lease)
		failed := w.fails("a")
		old := metadata.AppendToOutgoingContext(w.ctx(), "brokerd-incarnation", fmt.Sprint(failed.GetIncarnation()-1))
		if name != "read" { // which decides nothing
			apptest.Refused(t, call(old), codes.FailedPrecondition, "STALE_INCARNATION")
			if a := w.look("a"); a.GetHealth() != pb.Health_HEALTH_FAILED {
				t.Fatalf("%s of the old incarnation: %v", name, a)
			}
		}
		if err := call(w.ctx()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if a := w.look("a"); a.GetHealth() != pb.Health_HEALTH_OK || a.GetFailedAt() != nil || a.GetIncarnation() != failed.GetIncarnation() {
			t.Errorf("%s: %v", name, a)
		}
	}
	want := []string{"agent.registered a"}
	for range calls {
		want = append(want, "agent.failed system", "agent.revived a")
	}
	if got := w.trail(); !slices.Equal(got, want) {
		t.Errorf("events %q", got)
	}
}

func TestFail_LossesBeyondAThousandAreCounted(t *testing.T) {
	t.Parallel()
	for name, tell := range map[string]func(w *team) (losses []*pb.Loss, more int32){
		"heartbeat": func(w *team) ([]*pb.Loss, int32) {
			out := w.beats("a")
			return out.GetLosses(), out.GetMoreLosses()
		},
		"registration": func(w *team) ([]*pb.Loss, int32) {
			out := w.register("a")
			return out.GetLosses(), out.GetMoreLosses()
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTeam(t)
			w.register("a")
			work := make([]*pb.Message, 1000)
			for i := range work {
				work[i] = &pb.Message{Target: &pb.Target{To: &pb.Target_Role{Role: "builder"}}, Reach: pb.Reach_REACH_ONE}
			}
			for range 2 {
				apptest.Must(t, w.Actor("default", "").SendMessages, &pb.SendMessagesRequest{Messages: work})
			}
			take := func(consumer string, n int32) (ids []string) {
				t.Helper()
				out := apptest.Must(t, w.Actor("default", "a").ClaimMessages,
					&pb.ClaimMessagesRequest{Consumer: consumer, Max: n, ClaimFor: durationpb.New(time.Hour)})
				for _, c := range out.GetClaims() {
					ids = append(ids, c.GetClaimId())
				}
				if len(ids) != int(n) {
					t.Fatalf("%d claims of %d", len(ids), n)
				}
				return ids
			}
			held := append(take("one", 600), take("two", 460)...)
			w.pass(lease)
			w.fails("a")
			take("one", 40) // it is back, and was not told
			w.pass(lease)
			w.fails("a")
			losses, more := tell(w)
			if len(losses) != 1000 || more != 60+40 {
				t.Fatalf("%d losses and %d more", len(losses), more)
			}
			for i, l := range losses {
				if l.GetKind() != pb.LossKind_LOSS_KIND_CLAIM || !slices.Contains(held, l.GetName()) {
					t.Errorf("loss %d: %v", i, l)
				}
			}
			if again, more := tell(w); len(again) > 0 || more > 0 {
				t.Errorf("told twice: %d and %d more", len(again), more)
			}
		})
	}
}

func TestRegister_TakesOverWhileAliveAndIsToldOfLossesOtherwise(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	w.register("a")
	w.send(1)
	held := w.claim("a", 1, time.Hour)[0].GetClaimId()
	if out := w.register("a"); out.GetAgent().GetIncarnation() != 2 || len(out.GetLosses()) > 0 {
		t.Errorf("while alive: %v", out)
	}
	full, err := w.Actor("default", "a").GetAgent(w.ctx(), &pb.GetAgentRequest{View: pb.AgentView_AGENT_VIEW_FULL})
	if err != nil || len(full.GetHoldings().GetClaims()) != 1 {
		t.Fatalf("it holds %v, %v", full.GetHoldings(), err)
	}
	w.pass(lease)
	w.fails("a")
	out := w.register("a")
	if a := out.GetAgent(); a.GetIncarnation() != 4 || a.GetHealth() != pb.Health_HEALTH_OK || a.GetFailedAt() != nil {
		t.Errorf("after failing: %v", a)
	}
	if l := out.GetLosses(); len(l) != 1 || l[0].GetName() != held {
		t.Errorf("losses %v", l)
	}
	if again := w.beats("a").GetLosses(); len(again) > 0 {
		t.Errorf("told twice: %v", again)
	}
	if got := w.trail(); slices.Contains(got, "agent.revived a") {
		t.Errorf("events %q", got)
	}
}

func TestFail_MailStillComes(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	w.register("a")
	w.pass(lease)
	w.fails("a")
	apptest.Must(t, w.Actor("default", "").SendMessages, &pb.SendMessagesRequest{Messages: []*pb.Message{{
		Target: &pb.Target{To: &pb.Target_Agent{Agent: "a"}}, Type: "task", Version: "1.0",
	}}})
	if got := w.beats("a").GetUnread(); got != 1 {
		t.Errorf("%d unread", got)
	}
}

func TestFail_ForSevenDaysDeregisters(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	w.register("a")
	w.Registered("b", "")
	w.pass(lease)
	w.fails("a")
	apptest.Must(t, w.Actor("default", "b").SendMessages, &pb.SendMessagesRequest{Messages: []*pb.Message{{
		Target: &pb.Target{To: &pb.Target_Agent{Agent: "a"}}, Type: "task", Version: "1.0",
	}}})
	w.Restart()
	w.Clock.Advance(7*24*time.Hour - 1)
	if a := w.look("a"); a.GetHealth() != pb.Health_HEALTH_FAILED {
		t.Fatalf("before: %v", a)
	}
	w.Clock.Advance(1)
	for ctx := w.ctx(); ctx.Err() == nil && !slices.Contains(w.trail(), "agent.deregistered system"); {
	}
	apptest.Refused(t, apptest.Err(w.beat("a", 0)), codes.FailedPrecondition, "AGENT_NOT_REGISTERED")
	dead, err := w.Root().ListDeadLetters(w.ctx(), &pb.ListDeadLettersRequest{})
	if err != nil || len(dead.GetItems()) != 1 {
		t.Errorf("dead letters %v, %v", dead, err)
	}
	if out := w.register("a"); len(out.GetLosses()) > 0 {
		t.Errorf("losses of an earlier life: %v", out)
	}
}

func TestList_ByHealth(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	for _, name := range []string{"a", "b", "c"} {
		w.register(name)
	}
	w.pass(15 * time.Second)
	w.beats("b")
	w.pass(14 * time.Second)
	w.beats("c")
	w.Clock.Advance(time.Second)
	w.fails("a")
	for health, want := range map[pb.Health][]string{
		pb.Health_HEALTH_UNSPECIFIED: {"a", "b", "c"},
		pb.Health_HEALTH_OK:          {"c"},
		pb.Health_HEALTH_LATE:        {"b"},
		pb.Health_HEALTH_FAILED:      {"a"},
		pb.Health_HEALTH_DEGRADED:    nil,
	} {
		out := apptest.Must(t, w.Root().ListAgents,
			&pb.ListAgentsRequest{Health: health})
		var names []string
		for _, a := range out.GetAgents() {
			names = append(names, a.GetName())
		}
		if !slices.Equal(names, want) {
			t.Errorf("%v: %q, want %q", health, names, want)
		}
		if health == pb.Health_HEALTH_UNSPECIFIED {
			if r := out.GetRoles()[0]; r.GetAgents() != 3 || r.GetFailed() != 1 {
				t.Errorf("roles %v", r)
			}
		}
	}
}

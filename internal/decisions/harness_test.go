package decisions_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	review   = pb.DecisionKind_DECISION_KIND_REVIEW
	plan     = pb.DecisionKind_DECISION_KIND_PLAN
	shutdown = pb.DecisionKind_DECISION_KIND_SHUTDOWN
	custom   = pb.DecisionKind_DECISION_KIND_CUSTOM

	open      = pb.DecisionState_DECISION_STATE_OPEN
	revising  = pb.DecisionState_DECISION_STATE_REVISING
	escalated = pb.DecisionState_DECISION_STATE_ESCALATED
	decided   = pb.DecisionState_DECISION_STATE_DECIDED
	cancelled = pb.DecisionState_DECISION_STATE_CANCELLED
)

func toAgent(name string) *pb.OpenDecisionRequest_Agent {
	return &pb.OpenDecisionRequest_Agent{Agent: name}
}
func toRole(role string) *pb.OpenDecisionRequest_Role {
	return &pb.OpenDecisionRequest_Role{Role: role}
}

// openDecision opens a decision.
func openDecision(a *apptest.Actor, in *pb.OpenDecisionRequest) *pb.Decision {
	a.Helper()
	return apptest.Must(a, a.OpenDecision, in).GetDecision()
}

// decide gives a verdict that counts.
func decide(a *apptest.Actor, id, verdict string) *pb.DecideResponse {
	a.Helper()
	return apptest.Must(a, a.Decide, &pb.DecideRequest{Id: id, Verdict: verdict})
}

func resubmit(a *apptest.Actor, id string) *pb.Decision {
	a.Helper()
	return apptest.Must(a, a.ResubmitDecision, &pb.ResubmitDecisionRequest{Id: id, Content: &pb.DecisionContent{Body: "again"}}).GetDecision()
}

func get(a *apptest.Actor, id string) *pb.Decision {
	a.Helper()
	return apptest.Must(a, a.GetDecision, &pb.GetDecisionRequest{Id: id}).GetDecision()
}

// mail returns the unfinished messages in the mailboxes of the agent, by type.
func mail(a *apptest.Actor) map[string]*pb.Message {
	a.Helper()
	out := apptest.Must(a, a.ListMessages, &pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_INBOX})
	found := map[string]*pb.Message{}
	for _, item := range out.GetItems() {
		found[item.GetMessage().GetType()] = item.GetMessage()
	}
	return found
}

// receives checks the types of the agent's unfinished messages.
func receives(a *apptest.Actor, types ...string) map[string]*pb.Message {
	a.Helper()
	found := mail(a)
	for _, kind := range types {
		if found[kind] == nil {
			a.Errorf("%s has no message of type %s: %v", a.Name, kind, keys(found))
		}
	}
	if len(found) != len(types) {
		a.Errorf("%s has messages of types %v, want %v", a.Name, keys(found), types)
	}
	return found
}

func keys[V any](m map[string]V) (list []string) {
	for k := range m {
		list = append(list, k)
	}
	return list
}

// waiting calls GetDecision with wait in a goroutine, and returns its outcome.
func waiting(a *apptest.Actor, id string, wait time.Duration) <-chan *pb.Decision {
	a.Helper()
	done := make(chan *pb.Decision, 1)
	go func() {
		defer close(done)
		out, err := a.GetDecision(a.Ctx, &pb.GetDecisionRequest{Id: id, Wait: durationpb.New(wait)})
		if err != nil {
			a.Error(err)
			return
		}
		done <- out.GetDecision()
	}()
	return done
}

// advance moves the clock and waits for an event of a type.
func advance(w *apptest.Broker, d time.Duration, kind string) {
	w.Helper()
	o := w.Root()
	stream, err := o.SubscribeEvents(o.Ctx, &pb.SubscribeEventsRequest{Filter: &pb.EventFilter{Types: []string{kind}}})
	apptest.NoError(w, err)
	page, err := stream.Recv() // the clock may not overtake the request
	apptest.NoError(w, err)
	w.Clock.Advance(d)
	for len(page.GetEvents()) == 0 {
		page, err = stream.Recv()
		apptest.NoError(w, err)
	}
}

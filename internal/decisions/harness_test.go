package decisions_test

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
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

// A world is a daemon whose clock stands still until the test advances it.
type world struct {
	*apptest.Broker
	t *testing.T
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return &world{apptest.Start(t, apptest.WithFakeClock(), apptest.With(func(c *app.Config) { c.StopTimeout = apptest.Patience })), t}
}

// An actor is one identity's view of the daemon. The operator has no name.
type actor struct {
	pb.DecisionServiceClient
	messages pb.MessageServiceClient
	agents   pb.AgentServiceClient
	events   pb.EventServiceClient
	tokens   pb.TokenServiceClient
	sessions pb.SessionServiceClient
	admin    pb.AdminServiceClient

	t    *testing.T
	name string
	ctx  context.Context
}

func (w *world) in(session, name string) *actor {
	w.t.Helper()
	conn := w.In(session, name)
	ctx, cancel := context.WithTimeout(w.t.Context(), 5*time.Minute)
	w.t.Cleanup(cancel)
	return &actor{
		pb.NewDecisionServiceClient(conn), pb.NewMessageServiceClient(conn), pb.NewAgentServiceClient(conn), pb.NewEventServiceClient(conn),
		pb.NewTokenServiceClient(conn), pb.NewSessionServiceClient(conn), pb.NewAdminServiceClient(conn), w.t, name, ctx,
	}
}

func (w *world) operator() *actor { return w.in("default", "") }

// agent returns a registered agent.
func (w *world) agent(name, role string) *actor {
	w.t.Helper()
	return w.member("default", name, role)
}

// member returns a registered agent of a session.
func (w *world) member(session, name, role string) *actor {
	w.t.Helper()
	a := w.in(session, name)
	_, err := a.agents.RegisterAgent(a.ctx, &pb.RegisterAgentRequest{Role: role, Lease: durationpb.New(apptest.LongLease)})
	must(w.t, err)
	return a
}

func toAgent(name string) *pb.OpenDecisionRequest_Agent {
	return &pb.OpenDecisionRequest_Agent{Agent: name}
}
func toRole(role string) *pb.OpenDecisionRequest_Role {
	return &pb.OpenDecisionRequest_Role{Role: role}
}

// open opens a decision.
func (a *actor) open(in *pb.OpenDecisionRequest) *pb.Decision {
	a.t.Helper()
	out, err := a.OpenDecision(a.ctx, in)
	must(a.t, err)
	return out.GetDecision()
}

// decide gives a verdict that counts.
func (a *actor) decide(id, verdict string) *pb.DecideResponse {
	a.t.Helper()
	out, err := a.Decide(a.ctx, &pb.DecideRequest{Id: id, Verdict: verdict})
	must(a.t, err)
	return out
}

func (a *actor) resubmit(id string) *pb.Decision {
	a.t.Helper()
	out, err := a.ResubmitDecision(a.ctx, &pb.ResubmitDecisionRequest{Id: id, Content: &pb.DecisionContent{Body: "again"}})
	must(a.t, err)
	return out.GetDecision()
}

func (a *actor) get(id string) *pb.Decision {
	a.t.Helper()
	out, err := a.GetDecision(a.ctx, &pb.GetDecisionRequest{Id: id})
	must(a.t, err)
	return out.GetDecision()
}

// mail returns the unfinished messages in the mailboxes of the agent, by type.
func (a *actor) mail() map[string]*pb.Message {
	a.t.Helper()
	out, err := a.messages.ListMessages(a.ctx, &pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_INBOX})
	must(a.t, err)
	found := map[string]*pb.Message{}
	for _, item := range out.GetItems() {
		found[item.GetMessage().GetType()] = item.GetMessage()
	}
	return found
}

// receives checks the types of the agent's unfinished messages.
func (a *actor) receives(types ...string) map[string]*pb.Message {
	a.t.Helper()
	found := a.mail()
	for _, kind := range types {
		if found[kind] == nil {
			a.t.Errorf("%s has no message of type %s: %v", a.name, kind, keys(found))
		}
	}
	if len(found) != len(types) {
		a.t.Errorf("%s has messages of types %v, want %v", a.name, keys(found), types)
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
func (a *actor) waiting(id string, wait time.Duration) <-chan *pb.Decision {
	a.t.Helper()
	done := make(chan *pb.Decision, 1)
	go func() {
		defer close(done)
		out, err := a.GetDecision(a.ctx, &pb.GetDecisionRequest{Id: id, Wait: durationpb.New(wait)})
		if err != nil {
			a.t.Error(err)
			return
		}
		done <- out.GetDecision()
	}()
	return done
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func refused(t *testing.T, err error, code codes.Code, reason string) {
	t.Helper()
	if status.Code(err) != code || testkit.Reason(err) != reason {
		t.Errorf("got %v (%s), want %s %s", err, testkit.Reason(err), code, reason)
	}
}

// awaitEvents returns the first events of a type, after an action if there is one.
func (w *world) awaitEvents(n int, action func(), kind string) (list []*pb.Event) {
	w.t.Helper()
	o := w.operator()
	sub, err := o.events.SubscribeEvents(o.ctx, &pb.SubscribeEventsRequest{AfterRevision: new(int64), Filter: &pb.EventFilter{Types: []string{kind}}})
	must(w.t, err)
	for first := true; first || len(list) < n; first = false {
		page, err := sub.Recv()
		if err != nil {
			w.t.Fatalf("waiting for %s: %v, after %v", kind, err, list)
		}
		list = append(list, page.GetEvents()...)
		if first && action != nil { // an action that advances the clock may not overtake the request
			action()
		}
	}
	return list
}

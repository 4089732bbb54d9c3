package votes_test

import (
	"context"
	"errors"
	"io"
	"slices"
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

// A world is a daemon with a clock that the test advances. At the end of the test the checks of the
// database must pass.
type world struct {
	*apptest.Broker
	t   testing.TB
	ctx context.Context
}

func newWorld(t testing.TB) *world {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	b := apptest.Start(t, apptest.WithFakeClock(),
		apptest.With(func(c *app.Config) { c.StopTimeout = apptest.Patience }))
	w := &world{b, t, ctx}
	_, err := pb.NewSessionServiceClient(b.Operator()).ConfigureSession(ctx, &pb.ConfigureSessionRequest{
		Settings: &pb.SessionSettings{SendRate: ptr(0.0)}})
	must(t, err)
	return w
}

// An actor is an agent, or an operator, with the services that it calls.
type actor struct {
	pb.VoteServiceClient
	agents   pb.AgentServiceClient
	messages pb.MessageServiceClient
	events   pb.EventServiceClient
	sessions pb.SessionServiceClient
	admin    pb.AdminServiceClient

	t    testing.TB
	ctx  context.Context
	name string
}

func (w *world) in(session, name string) *actor {
	w.t.Helper()
	conn := w.In(session, name)
	return &actor{
		pb.NewVoteServiceClient(conn), pb.NewAgentServiceClient(conn), pb.NewMessageServiceClient(conn),
		pb.NewEventServiceClient(conn), pb.NewSessionServiceClient(conn), pb.NewAdminServiceClient(conn), w.t, w.ctx, name,
	}
}

func (w *world) operator() *actor { return w.in("default", "") }

// agent registers an agent with the role builder.
func (w *world) agent(name string) *actor { return w.member(name, "builder") }

func (w *world) member(name, role string) *actor {
	w.t.Helper()
	a := w.in("default", name)
	_, err := a.agents.RegisterAgent(w.ctx, &pb.RegisterAgentRequest{Role: role, Lease: durationpb.New(apptest.LongLease)})
	must(w.t, err)
	return a
}

// team registers agents.
func (w *world) team(names ...string) []*actor {
	w.t.Helper()
	team := make([]*actor, len(names))
	for i, name := range names {
		team[i] = w.agent(name)
	}
	return team
}

// open opens a vote on yes or no, unless the request says otherwise.
func (a *actor) open(in *pb.OpenVoteRequest) *pb.Vote {
	a.t.Helper()
	if in.GetTitle() == "" {
		in.Title = "Deploy?"
	}
	if in.GetOptions() == nil {
		in.Options = []string{"yes", "no"}
	}
	out, err := a.OpenVote(a.ctx, in)
	must(a.t, err)
	return out.GetVote()
}

// cast casts a ballot and returns the vote after it.
func (a *actor) cast(v *pb.Vote, option string) *pb.Vote {
	a.t.Helper()
	out, err := a.CastVote(a.ctx, &pb.CastVoteRequest{Id: v.GetId(), Option: option})
	must(a.t, err)
	return out.GetVote()
}

func (a *actor) get(v *pb.Vote) *pb.GetVoteResponse {
	a.t.Helper()
	out, err := a.GetVote(a.ctx, &pb.GetVoteRequest{Id: v.GetId()})
	must(a.t, err)
	return out
}

// awaitEnd returns a vote once it is closed.
func (a *actor) awaitEnd(v *pb.Vote) *pb.Vote {
	a.t.Helper()
	out, err := a.GetVote(a.ctx, &pb.GetVoteRequest{Id: v.GetId(), Wait: durationpb.New(time.Hour)})
	must(a.t, err)
	if out.GetVote().GetState() != pb.VoteState_VOTE_STATE_CLOSED {
		a.t.Fatalf("the wait ended with %v", out.GetVote())
	}
	return out.GetVote()
}

func (a *actor) deregister() {
	a.t.Helper()
	_, err := a.agents.DeregisterAgent(a.ctx, &pb.DeregisterAgentRequest{})
	must(a.t, err)
}

// inbox returns the unread messages of a type.
func (a *actor) inbox(messageType string) []*pb.Message {
	a.t.Helper()
	stream, err := a.messages.Receive(a.ctx, &pb.ReceiveRequest{})
	must(a.t, err)
	var found []*pb.Message
	for {
		page, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return found
		}
		must(a.t, err)
		for _, i := range page.GetItems() {
			if i.GetMessage().GetType() == messageType {
				found = append(found, i.GetMessage())
			}
		}
	}
}

// eventsOf returns the types of the events about a vote, in their order.
func (w *world) eventsOf(v *pb.Vote) []string {
	w.t.Helper()
	out, err := w.operator().events.ListEvents(w.ctx, &pb.ListEventsRequest{
		PageSize: 1000, Filter: &pb.EventFilter{Types: []string{"vote.*"}},
	})
	must(w.t, err)
	var types []string
	for _, e := range out.GetEvents() {
		if slices.Contains(e.GetRelated(), v.GetId()) {
			types = append(types, e.GetType())
		}
	}
	return types
}

// tally returns the ballots per option.
func tally(v *pb.Vote) map[string]int32 {
	counts := map[string]int32{}
	for _, t := range v.GetTally() {
		counts[t.GetOption()] = t.GetBallots()
	}
	return counts
}

func names(list ...string) *pb.OpenVoteRequest_Agents {
	return &pb.OpenVoteRequest_Agents{Agents: &pb.Names{Names: list}}
}

func ptr[T any](v T) *T { return &v }

func wantError(t testing.TB, what string, err error, code codes.Code, reason string) {
	t.Helper()
	if status.Code(err) != code || testkit.Reason(err) != reason {
		t.Errorf("%s: got %v (%s), want %v (%s)", what, err, testkit.Reason(err), code, reason)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

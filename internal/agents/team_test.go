package agents_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// A team is a whole broker with a clock that stands still.
type team struct {
	*apptest.Broker
	t *testing.T
}

func newTeam(t *testing.T) *team {
	t.Helper()
	return &team{apptest.Start(t, apptest.WithFakeClock()), t}
}

func (w *team) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), apptest.Patience)
	w.t.Cleanup(cancel)
	return ctx
}

func (w *team) agent(name string) pb.AgentServiceClient {
	return pb.NewAgentServiceClient(w.Conn(name))
}

func (w *team) mail(name string) pb.MessageServiceClient {
	return pb.NewMessageServiceClient(w.Conn(name))
}

// register registers an agent with a lease of 30 s.
func (w *team) register(name string) *pb.RegisterAgentResponse {
	w.t.Helper()
	out, err := w.agent(name).RegisterAgent(w.ctx(), &pb.RegisterAgentRequest{Role: "builder", Lease: durationpb.New(lease)})
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

// beat is a sign of life, with the incarnation that is given.
func (w *team) beat(name string, incarnation int64) (*pb.HeartbeatResponse, error) {
	ctx := w.ctx()
	if incarnation > 0 {
		ctx = metadata.AppendToOutgoingContext(ctx, "brokerd-incarnation", fmt.Sprint(incarnation))
	}
	return w.agent(name).Heartbeat(ctx, &pb.HeartbeatRequest{})
}

func (w *team) beats(name string) *pb.HeartbeatResponse {
	w.t.Helper()
	out, err := w.beat(name, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

// look looks at an agent as an operator, which is no sign of its life.
func (w *team) look(name string) *pb.Agent {
	w.t.Helper()
	out, err := pb.NewAgentServiceClient(w.Operator()).GetAgent(w.ctx(), &pb.GetAgentRequest{Name: name})
	if err != nil {
		w.t.Fatal(err)
	}
	return out.GetAgent()
}

// trail returns the types of the events of agents, after what the given ones have left.
func (w *team) trail() (types []string) {
	w.t.Helper()
	out, err := pb.NewEventServiceClient(w.Operator()).ListEvents(w.ctx(), &pb.ListEventsRequest{PageSize: 1000})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, e := range out.GetEvents() {
		if e.GetCategory() == pb.EventCategory_EVENT_CATEGORY_AGENT {
			types = append(types, e.GetType()+" "+e.GetSource())
		}
	}
	return types
}

// pass lets time pass in steps of which none is taken for a suspension.
func (w *team) pass(d time.Duration) {
	for ; d > 0; d -= min(d, time.Second) {
		w.Clock.Advance(min(d, time.Second))
		w.settled()
	}
}

// settled waits until what is due was noticed: one call passes through the writer behind it.
func (w *team) settled() {
	w.t.Helper()
	_ = w.look("a")
}

// fails waits until the agent has failed.
func (w *team) fails(name string) *pb.Agent {
	w.t.Helper()
	for ctx, a := w.ctx(), w.look(name); ; a = w.look(name) {
		if a.GetHealth() == pb.Health_HEALTH_FAILED {
			// A reader may see it before the broker knows that it is committed; after another commit it does.
			_, err := pb.NewChannelServiceClient(w.Operator()).ConfigureChannel(w.ctx(), &pb.ConfigureChannelRequest{Channel: "after"})
			if err != nil {
				w.t.Fatal(err)
			}
			return a
		}
		if ctx.Err() != nil {
			w.t.Fatal("it lives on")
		}
	}
}

// send sends work to the builders and returns nothing.
func (w *team) send(n int) {
	w.t.Helper()
	for range n {
		_, err := w.mail("").SendMessages(w.ctx(), &pb.SendMessagesRequest{Messages: []*pb.Message{{
			Target: &pb.Target{To: &pb.Target_Role{Role: "builder"}}, Type: "task", Version: "1.0", Reach: pb.Reach_REACH_ONE,
		}}})
		if err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *team) claim(name string, n int32, lasts time.Duration) []*pb.ClaimedMessage {
	w.t.Helper()
	out, err := w.mail(name).ClaimMessages(w.ctx(), &pb.ClaimMessagesRequest{Max: n, ClaimFor: durationpb.New(lasts)})
	if err != nil {
		w.t.Fatal(err)
	}
	return out.GetClaims()
}

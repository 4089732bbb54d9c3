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
type team struct{ *apptest.Broker }

func newTeam(t *testing.T) *team {
	t.Helper()
	return &team{apptest.Start(t, apptest.WithFakeClock())}
}

func (w *team) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), apptest.Patience)
	w.Cleanup(cancel)
	return ctx
}

// register registers an agent with a lease of 30 s.
func (w *team) register(name string) *pb.RegisterAgentResponse {
	w.Helper()
	in := &pb.RegisterAgentRequest{Role: "builder", Lease: durationpb.New(lease)}
	return apptest.Must(w, w.Actor("default", name).RegisterAgent, in)
}

// beat is a sign of life, with the incarnation that is given.
func (w *team) beat(name string, incarnation int64) (*pb.HeartbeatResponse, error) {
	ctx := w.ctx()
	if incarnation > 0 {
		ctx = metadata.AppendToOutgoingContext(ctx, "brokerd-incarnation", fmt.Sprint(incarnation))
	}
	return w.Actor("default", name).Heartbeat(ctx, &pb.HeartbeatRequest{})
}

func (w *team) beats(name string) *pb.HeartbeatResponse {
	w.Helper()
	out, err := w.beat(name, 0)
	apptest.NoError(w, err)
	return out
}

// look looks at an agent as an operator, which is no sign of its life.
func (w *team) look(name string) *pb.Agent {
	w.Helper()
	return apptest.Must(w, w.Root().GetAgent, &pb.GetAgentRequest{Name: name}).Agent
}

// trail returns the types of the events of agents, after what the given ones have left.
func (w *team) trail() (types []string) {
	w.Helper()
	for _, e := range w.Root().Events() {
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
	w.Helper()
	_ = w.look("a")
}

// fails waits until the agent has failed.
func (w *team) fails(name string) *pb.Agent {
	w.Helper()
	for ctx, a := w.ctx(), w.look(name); ; a = w.look(name) {
		if a.GetHealth() == pb.Health_HEALTH_FAILED {
			// A reader may see it before the broker knows that it is committed; after another commit it does.
			apptest.Must(w, w.Root().ConfigureChannel, &pb.ConfigureChannelRequest{Channel: "after"})
			return a
		}
		if ctx.Err() != nil {
			w.Fatal("it lives on")
		}
	}
}

// send sends work to the builders and returns nothing.
func (w *team) send(n int) {
	w.Helper()
	for range n {
		apptest.Must(w, w.Root().SendMessages, &pb.SendMessagesRequest{Messages: []*pb.Message{{
			Target: &pb.Target{To: &pb.Target_Role{Role: "builder"}}, Type: "task", Version: "1.0", Reach: pb.Reach_REACH_ONE,
		}}})
	}
}

func (w *team) claim(name string, n int32, lasts time.Duration) []*pb.ClaimedMessage {
	w.Helper()
	in := &pb.ClaimMessagesRequest{Max: n, ClaimFor: durationpb.New(lasts)}
	return apptest.Must(w, w.Actor("default", name).ClaimMessages, in).Claims
}

package catalog_test

import (
	"context"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A world is a daemon. At the end of the test its database must be sound.
type world struct {
	*apptest.Broker
	t testing.TB
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{apptest.Start(t, apptest.WithFakeClock()), t}
	unlimited := 0.0
	w.configure(&pb.SessionSettings{SendRate: &unlimited})
	return w
}

// An actor is one identity's view of the daemon.
type actor struct {
	pb.CatalogServiceClient
	messages pb.MessageServiceClient
	events   pb.EventServiceClient
	channels pb.ChannelServiceClient
	sessions pb.SessionServiceClient

	t   testing.TB
	ctx context.Context // ends with the test
}

func (w *world) as(conn *grpc.ClientConn) *actor {
	return &actor{
		pb.NewCatalogServiceClient(conn), pb.NewMessageServiceClient(conn), pb.NewEventServiceClient(conn),
		pb.NewChannelServiceClient(conn), pb.NewSessionServiceClient(conn), w.t, w.t.Context(),
	}
}

func (w *world) operator() *actor { return w.as(w.Operator()) }

func (w *world) agent(name, role string) *actor { return w.as(w.Registered(name, role)) }

func (w *world) configure(s *pb.SessionSettings) {
	w.t.Helper()
	_, err := w.operator().sessions.ConfigureSession(w.t.Context(), &pb.ConfigureSessionRequest{Settings: s})
	must(w.t, err)
}

// send sends messages to the agent b and returns the results.
func (a *actor) send(messages ...*pb.Message) ([]*pb.SendResult, error) {
	for _, m := range messages {
		m.Target = &pb.Target{To: &pb.Target_Agent{Agent: "b"}}
	}
	r, err := a.messages.SendMessages(a.ctx, &pb.SendMessagesRequest{Messages: messages})
	return r.GetResults(), err
}

// sent sends one message and returns its result.
func (a *actor) sent(kind, payload string) *pb.SendResult {
	a.t.Helper()
	results, err := a.send(&pb.Message{Type: kind, Payload: payload, Body: "text"})
	must(a.t, err)
	return results[0]
}

// get returns a stored message.
func (a *actor) get(id string) *pb.Message {
	a.t.Helper()
	r, err := a.messages.GetMessage(a.ctx, &pb.GetMessageRequest{Id: id})
	must(a.t, err)
	return r.Message
}

// stored returns the type of a stored message.
func (a *actor) stored(id string) string {
	a.t.Helper()
	return a.get(id).Type
}

// logged returns the events that a filter with these types finds.
func (a *actor) logged(types ...string) []*pb.Event {
	a.t.Helper()
	r, err := a.events.ListEvents(a.ctx, &pb.ListEventsRequest{Filter: &pb.EventFilter{Types: types}})
	must(a.t, err)
	return r.Events
}

func (a *actor) register(r *pb.RegisterMessageTypeRequest) *pb.RegisterMessageTypeResponse {
	a.t.Helper()
	out, err := a.RegisterMessageType(a.ctx, r)
	must(a.t, err)
	return out
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

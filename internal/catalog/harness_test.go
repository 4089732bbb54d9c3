package catalog_test

import (
	"testing"

	"go.uber.org/goleak"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs a daemon with a clock that the test advances, in which agents send as fast as they like.
func start(t testing.TB) *apptest.Broker {
	t.Helper()
	b := apptest.Start(t, apptest.WithFakeClock())
	b.Root().Configure(&pb.SessionSettings{SendRate: new(0.0)})
	return b
}

// send sends messages to the agent b and returns the results.
func send(a *apptest.Actor, messages ...*pb.Message) ([]*pb.SendResult, error) {
	for _, m := range messages {
		m.Target = &pb.Target{To: &pb.Target_Agent{Agent: "b"}}
	}
	r, err := a.SendMessages(a.Ctx, &pb.SendMessagesRequest{Messages: messages})
	return r.GetResults(), err
}

// sent sends one message and returns its result.
func sent(a *apptest.Actor, kind, payload string) *pb.SendResult {
	a.Helper()
	results, err := send(a, &pb.Message{Type: kind, Payload: payload, Body: "text"})
	apptest.NoError(a, err)
	return results[0]
}

// get returns a stored message.
func get(a *apptest.Actor, id string) *pb.Message {
	a.Helper()
	return apptest.Must(a, a.GetMessage, &pb.GetMessageRequest{Id: id}).Message
}

// stored returns the type of a stored message.
func stored(a *apptest.Actor, id string) string {
	a.Helper()
	return get(a, id).Type
}

package blockers_test

import (
	"testing"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/blockers"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/idempotency"
	"brokerd/internal/sessions"
	"brokerd/internal/testkit"
	"brokerd/internal/work"
)

// The test of package rules tries the bounds of single fields.

func FuzzRaiseBlocker(f *testing.F) {
	agent := func(name string) *pb.BlockerRecipient {
		return &pb.BlockerRecipient{Recipient: &pb.BlockerRecipient_Agent{Agent: name}}
	}
	testkit.Fuzz(f, fuzzed(f).RaiseBlocker, func(b *testkit.Bounds, r *pb.RaiseBlockerRequest) {
		for _, x := range r.Recipients {
			b.Holds(x.GetRecipient() != nil, "no recipient")
		}
		resolves := r.GetAwaited().GetAgent()+r.GetAwaited().GetTaskId() != ""
		b.Holds(!r.AutoResolve || resolves, "auto_resolve")
	}, &pb.RaiseBlockerRequest{Reason: "r", Severity: 4, TaskId: "t", AutoResolve: true, Recipients: []*pb.BlockerRecipient{agent("b")},
		Awaited: &pb.AwaitedObject{Object: &pb.AwaitedObject_Agent{Agent: "b"}}},
		&pb.RaiseBlockerRequest{Reason: "r", Awaited: &pb.AwaitedObject{Object: &pb.AwaitedObject_TaskId{TaskId: "t"}}, AutoResolve: true},
		&pb.RaiseBlockerRequest{Reason: "r", Awaited: &pb.AwaitedObject{Object: &pb.AwaitedObject_Lock{Lock: "src/"}}},
		&pb.RaiseBlockerRequest{Reason: "r", AutoResolve: true, Recipients: []*pb.BlockerRecipient{{}, agent("")},
			Awaited: &pb.AwaitedObject{Object: &pb.AwaitedObject_Text{}}})
}

// fuzzed returns the service of blockers without sessions.
func fuzzed(f *testing.F) *blockers.Service {
	clock := clockwork.NewRealClock()
	st := testkit.Store(f, f.TempDir(), clock, events.Migrations(), idempotency.Migrations(), sessions.Migrations(),
		work.Migrations(), blockers.Migrations())
	return blockers.New(&work.Desk{
		Store: st, Events: events.New(st, clock, zap.NewNop()), Directory: directory.New(), Post: testkit.NoPost{}, Clock: clock, Log: zap.NewNop(),
	})
}

package blockers_test

import (
	"strings"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/blockers"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/idempotency"
	"brokerd/internal/sessions"
	"brokerd/internal/testkit"
	"brokerd/internal/work"
)

// The bounds are those of blocker.proto.

func FuzzRaiseBlocker(f *testing.F) {
	agent := func(name string) *pb.BlockerRecipient {
		return &pb.BlockerRecipient{Recipient: &pb.BlockerRecipient_Agent{Agent: name}}
	}
	testkit.Fuzz(f, fuzzed(f).RaiseBlocker, func(b *testkit.Bounds, r *pb.RaiseBlockerRequest) {
		b.Required(strings.TrimSpace(r.Reason))
		b.Text(64<<10, r.Reason)
		b.Between(int64(r.Severity), 0, 4)
		b.Line(128, r.TaskId)
		b.Between(int64(len(r.Recipients)), 0, 20)
		for _, x := range r.Recipients {
			b.Name(x.GetAgent() + x.GetRole())
		}
		resolves := false
		switch o := r.GetAwaited().GetObject().(type) {
		case *pb.AwaitedObject_Agent:
			resolves = true
			b.Name(o.Agent)
		case *pb.AwaitedObject_Role:
			b.Name(o.Role)
		case *pb.AwaitedObject_TaskId:
			resolves = true
			b.Required(o.TaskId)
			b.Line(128, o.TaskId)
		case *pb.AwaitedObject_Lock:
			b.Required(o.Lock)
			b.Line(1024, o.Lock)
		case *pb.AwaitedObject_Text:
			b.Required(o.Text)
			b.Line(512, o.Text)
		}
		b.Holds(!r.AutoResolve || resolves, "auto_resolve")
	}, &pb.RaiseBlockerRequest{Reason: "r", Severity: 4, TaskId: "t", AutoResolve: true, Recipients: []*pb.BlockerRecipient{agent("b")},
		Awaited: &pb.AwaitedObject{Object: &pb.AwaitedObject_Agent{Agent: "b"}}},
		&pb.RaiseBlockerRequest{Reason: "r", Awaited: &pb.AwaitedObject{Object: &pb.AwaitedObject_TaskId{TaskId: "t"}}, AutoResolve: true},
		&pb.RaiseBlockerRequest{Reason: "r", Awaited: &pb.AwaitedObject{Object: &pb.AwaitedObject_Lock{Lock: "src/"}}},
		&pb.RaiseBlockerRequest{Reason: " ", Severity: -1, AutoResolve: true, Recipients: []*pb.BlockerRecipient{{}, agent("")},
			Awaited: &pb.AwaitedObject{Object: &pb.AwaitedObject_Text{}}})
}

func FuzzAcknowledgeBlocker(f *testing.F) {
	testkit.Fuzz(f, fuzzed(f).AcknowledgeBlocker, func(b *testkit.Bounds, r *pb.AcknowledgeBlockerRequest) { b.Text(4<<10, r.Note) },
		&pb.AcknowledgeBlockerRequest{Id: "b-7", Note: "n"}, &pb.AcknowledgeBlockerRequest{Id: "b-0", Note: "\x00"})
}

func FuzzResolveBlocker(f *testing.F) {
	testkit.Fuzz(f, fuzzed(f).ResolveBlocker, func(b *testkit.Bounds, r *pb.ResolveBlockerRequest) { b.Text(4<<10, r.Resolution) },
		&pb.ResolveBlockerRequest{Id: "7", Resolution: "r"})
}

func FuzzGetBlocker(f *testing.F) {
	testkit.Fuzz(f, fuzzed(f).GetBlocker, func(b *testkit.Bounds, r *pb.GetBlockerRequest) { b.Wait(r.Wait) },
		&pb.GetBlockerRequest{Id: "b-7", Wait: durationpb.New(time.Second)}, &pb.GetBlockerRequest{Id: "b--7", Wait: durationpb.New(-1)})
}

func FuzzListBlockers(f *testing.F) {
	testkit.Fuzz(f, fuzzed(f).ListBlockers, func(b *testkit.Bounds, r *pb.ListBlockersRequest) {
		for _, s := range r.States {
			b.Between(int64(s), 1, 3)
		}
		b.Optional(r.Agent, r.AwaitedAgent)
		b.Line(128, r.TaskId)
		b.Between(int64(r.LowestSeverity), 0, 4)
		b.Page(r.PageSize)
	}, &pb.ListBlockersRequest{States: []pb.BlockerState{1, 2, 3}, Agent: "a", TaskId: "t", LowestSeverity: 3, AwaitedAgent: "b", PageSize: 7},
		&pb.ListBlockersRequest{States: []pb.BlockerState{0, -1, 64}, LowestSeverity: 5, PageToken: "x"})
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

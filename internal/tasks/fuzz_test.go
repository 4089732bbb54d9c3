package tasks_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/idempotency"
	"brokerd/internal/sessions"
	"brokerd/internal/tasks"
	"brokerd/internal/testkit"
	"brokerd/internal/work"
)

// The bounds are those of task.proto.

func FuzzCreateTasks(f *testing.F) {
	testkit.Fuzz(f, fuzzed(f).CreateTasks, func(b *testkit.Bounds, r *pb.CreateTasksRequest) {
		b.Between(int64(len(r.Tasks)), 1, 1000)
		edges := 0
		for _, n := range r.Tasks {
			b.Optional(n.Id, n.Role, n.Assignee, n.Parent)
			b.Holds(!slices.Contains([]string{"all", "ALL", "everyone", "system"}, n.Id), "reserved id", n.Id)
			b.Holds(n.Role == "" || n.Assignee == "", "role and assignee")
			wantTitle(b, n.Title)
			b.Text(64<<10, n.Description)
			b.Labels(n.Labels)
			b.Between(int64(n.Priority), 0, 10)
			slices.Sort(n.Capabilities)
			b.Between(int64(len(slices.Compact(n.Capabilities))), 0, 32)
			b.Name(n.Capabilities...)
			b.Between(int64(len(n.DependsOn)), 0, 1000)
			b.Name(n.DependsOn...)
			b.Between(int64(n.MaxAttempts), 0, 100)
			if d := n.StaleAfter; d.AsDuration() != 0 {
				b.Between(int64(d.AsDuration()), int64(time.Second), int64(30*24*time.Hour))
			}
			wantArtifacts(b, n.Artifacts)
			edges += len(n.DependsOn)
		}
		b.Between(int64(edges), 0, 5000)
	}, &pb.CreateTasksRequest{}, &pb.CreateTasksRequest{Tasks: []*pb.NewTask{
		{Id: "a", Title: "A", Labels: map[string]string{"k": "v"}, Priority: 10, Role: "r", Capabilities: []string{"c"}, MaxAttempts: 100},
		{Id: "b", Title: "B", Assignee: "x", DependsOn: []string{"a", "a"}, Parent: "a", StaleAfter: durationpb.New(time.Second), Artifacts: []string{"x/y"}},
	}}, &pb.CreateTasksRequest{Tasks: []*pb.NewTask{
		{Id: "all", Title: " ", Priority: -1, Role: "r", Assignee: "x", MaxAttempts: 101, StaleAfter: &durationpb.Duration{Seconds: 1, Nanos: -1}},
		{Title: "x\n", DependsOn: []string{""}, StaleAfter: &durationpb.Duration{Seconds: 1 << 62}, Artifacts: []string{""}},
	}})
}

func FuzzClaimTask(f *testing.F) {
	testkit.Fuzz(f, fuzzed(f).ClaimTask, func(b *testkit.Bounds, r *pb.ClaimTaskRequest) {
		b.Optional(r.Id)
		b.Labels(r.Labels)
		b.Holds(r.Id == "" || len(r.Labels) == 0, "id and labels")
		b.Wait(r.Wait)
	}, &pb.ClaimTaskRequest{Id: "t-1", Resume: true}, &pb.ClaimTaskRequest{Labels: map[string]string{"k": ""}, Wait: durationpb.New(time.Hour)},
		&pb.ClaimTaskRequest{Id: "-", Labels: map[string]string{"": "v"}, Wait: durationpb.New(-1)})
}

func FuzzUpdateTask(f *testing.F) {
	testkit.Fuzz(f, fuzzed(f).UpdateTask, func(b *testkit.Bounds, r *pb.UpdateTaskRequest) {
		wantHeld(b, r)
		b.Holds(r.GetProgress() >= 0 && r.GetProgress() <= 1, "progress", r.GetProgress())
		b.Text(4<<10, r.GetNote(), r.GetBlock())
		if block, ok := r.BlockChange.(*pb.UpdateTaskRequest_Block); ok {
			b.Required(block.Block)
		}
		if r.Title != nil {
			wantTitle(b, r.GetTitle())
		}
		b.Text(64<<10, r.GetDescription())
		if r.Priority != nil {
			b.Between(int64(r.GetPriority()), 1, 10)
		}
		b.Labels(r.SetLabels)
		b.Between(int64(len(r.RemoveLabels)), 0, 64)
		b.Line(256, r.RemoveLabels...)
	}, &pb.UpdateTaskRequest{Id: "t", Fence: 7, Progress: proto.Float64(0.5), Note: proto.String("n"), BlockChange: &pb.UpdateTaskRequest_Block{Block: "x"}},
		&pb.UpdateTaskRequest{Id: "t", Title: proto.String("T"), Description: proto.String(""), Priority: proto.Int32(1), SetLabels: map[string]string{"k": "v"}, RemoveLabels: []string{"l"}},
		&pb.UpdateTaskRequest{Id: "", Fence: -1, Progress: proto.Float64(1.5), BlockChange: &pb.UpdateTaskRequest_Block{}, Title: proto.String(""), Priority: proto.Int32(0)})
}

func FuzzCompleteTask(f *testing.F) {
	testkit.Fuzz(f, fuzzed(f).CompleteTask, func(b *testkit.Bounds, r *pb.CompleteTaskRequest) {
		wantHeld(b, r)
		b.Text(64<<10, r.Result)
		wantArtifacts(b, r.Artifacts)
	}, &pb.CompleteTaskRequest{Id: "t", Fence: 7, Result: "{}", Artifacts: []string{"a@1"}}, &pb.CompleteTaskRequest{Id: "t", Result: "\x00", Artifacts: []string{"\n"}})
}

func FuzzFailTask(f *testing.F) {
	testkit.Fuzz(f, fuzzed(f).FailTask, func(b *testkit.Bounds, r *pb.FailTaskRequest) {
		wantHeld(b, r)
		b.Text(4<<10, r.Error)
	}, &pb.FailTaskRequest{Id: "t", Fence: 7, Error: "e", Fatal: true})
}

func FuzzReleaseTask(f *testing.F) {
	testkit.Fuzz(f, fuzzed(f).ReleaseTask, func(b *testkit.Bounds, r *pb.ReleaseTaskRequest) {
		wantHeld(b, r)
		b.Text(4<<10, r.Reason)
		b.Holds(!r.Decline || r.Reason != "", "declined without a reason")
	}, &pb.ReleaseTaskRequest{Id: "t", Fence: 7, Reason: "r", Decline: true}, &pb.ReleaseTaskRequest{Id: "t", Decline: true})
}

func FuzzCancelTask(f *testing.F) {
	testkit.Fuzz(f, fuzzed(f).CancelTask, func(b *testkit.Bounds, r *pb.CancelTaskRequest) {
		b.Name(r.Id)
		b.Text(4<<10, r.Reason)
	}, &pb.CancelTaskRequest{Id: "t", Cascade: true, Reason: "r"})
}

func FuzzListTasks(f *testing.F) {
	testkit.Fuzz(f, fuzzed(f).ListTasks, func(b *testkit.Bounds, r *pb.ListTasksRequest) {
		for _, s := range r.States {
			b.Between(int64(s), 1, 7)
		}
		b.Optional(r.Holder, r.Assignee, r.Role, r.Parent, r.Creator)
		b.Labels(r.Labels)
		b.Page(r.PageSize)
		b.Holds(!r.Claimable || len(r.States) == 0 && r.Holder+r.Assignee+r.Role+r.Parent+r.Creator+r.PageToken == "" && !r.OldestFirst, "claimable", r)
	}, &pb.ListTasksRequest{States: []pb.TaskState{ready, ready, done}, Holder: "h", Labels: map[string]string{"k": "v"}, PageSize: 7, OldestFirst: true},
		&pb.ListTasksRequest{Claimable: true, Labels: map[string]string{"k": "v"}}, &pb.ListTasksRequest{States: []pb.TaskState{-1, 8}, PageSize: -1, PageToken: "x"})
}

func FuzzWaitTasks(f *testing.F) {
	testkit.Fuzz(f, fuzzed(f).WaitTasks, func(b *testkit.Bounds, r *pb.WaitTasksRequest) {
		b.Between(int64(len(r.TaskIds)+len(r.Agents)), 1, 1000)
		b.Name(r.TaskIds...)
		b.Name(r.Agents...)
		b.Between(int64(r.Mode), 0, 2)
		b.Wait(r.Wait)
		b.Holds(r.AfterRevision >= 0, "revision", r.AfterRevision)
	}, &pb.WaitTasksRequest{TaskIds: []string{"t"}, Agents: []string{"a"}, Mode: pb.WaitMode_WAIT_MODE_ANY, Wait: durationpb.New(time.Second), AfterRevision: 7},
		&pb.WaitTasksRequest{Mode: 9, AfterRevision: -1})
}

func wantHeld(b *testkit.Bounds, r interface {
	GetId() string
	GetFence() int64
}) {
	b.Helper()
	b.Name(r.GetId())
	b.Holds(r.GetFence() >= 0, "fence", r.GetFence())
}

func wantTitle(b *testkit.Bounds, s string) {
	b.Helper()
	b.Required(strings.TrimSpace(s))
	b.Line(512, s)
}

func wantArtifacts(b *testkit.Bounds, all []string) {
	b.Helper()
	b.Between(int64(len(all)), 0, 100)
	b.Required(all...)
	b.Line(1024, all...)
}

// fuzzed returns the service of tasks without sessions.
func fuzzed(f *testing.F) *tasks.Service {
	clock := clockwork.NewRealClock()
	st := testkit.Store(f, f.TempDir(), clock, events.Migrations(), idempotency.Migrations(), sessions.Migrations(), work.Migrations(), tasks.Migrations())
	return tasks.New(&work.Desk{
		Store: st, Events: events.New(st, clock, zap.NewNop()), Directory: directory.New(), Post: testkit.NoPost{}, Clock: clock,
		Log: zap.NewNop(),
	})
}

package tasks_test

import (
	"testing"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/idempotency"
	"brokerd/internal/sessions"
	"brokerd/internal/tasks"
	"brokerd/internal/testkit"
	"brokerd/internal/work"
)

func FuzzCreateTasks(f *testing.F) {
	testkit.Fuzz(f, fuzzed(f).CreateTasks, func(b *testkit.Bounds, r *pb.CreateTasksRequest) {
		edges := 0
		for _, n := range r.Tasks {
			b.Holds(n.Role == "" || n.Assignee == "", "role and assignee")
			edges += len(n.DependsOn)
		}
		b.Between(int64(edges), 0, 5000)
	}, &pb.CreateTasksRequest{}, &pb.CreateTasksRequest{Tasks: []*pb.NewTask{
		{Id: "a", Title: "A", Labels: map[string]string{"k": "v"}, Priority: 10, Role: "r", Capabilities: []string{"c"}},
		{Id: "b", Title: "B", Assignee: "x", DependsOn: []string{"a", "a"}, Parent: "a", Artifacts: []string{"x/y"}},
	}}, &pb.CreateTasksRequest{Tasks: []*pb.NewTask{{Title: "A", Role: "r", Assignee: "x"}}})
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

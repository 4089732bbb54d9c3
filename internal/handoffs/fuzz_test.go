package handoffs_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/handoffs"
	"brokerd/internal/idempotency"
	"brokerd/internal/sessions"
	"brokerd/internal/testkit"
	"brokerd/internal/work"
)

// The test of package rules tries the bounds of single fields.

func FuzzCreateHandoff(f *testing.F) {
	testkit.Fuzz(f, fuzzed(f).CreateHandoff, func(b *testkit.Bounds, r *pb.CreateHandoffRequest) {
		b.Holds((r.ToAgent == "") != (r.ToRole == ""), "agent and role", r.ToAgent, r.ToRole)
		b.Holds(!r.TransferTask || r.TaskId != "", "transfer without a task")
		b.Between(int64(len(slices.Compact(slices.Sorted(slices.Values(r.Fences))))), 0, 100)
		c := r.GetContent()
		texts := slices.Concat(r.Checklist, c.GetNextSteps(), c.GetKnownIssues(), c.GetOpenQuestions())
		b.Between(int64(len(c.GetBackground()+c.GetWorkDone()+strings.Join(texts, ""))), 0, 512<<10)
	}, &pb.CreateHandoffRequest{Title: "T", TaskId: "t", ToAgent: "b", TransferTask: true, Fences: []int64{7, 7}, Checklist: []string{"c"}, Content: &pb.HandoffContent{
		Background: "b", WorkDone: "w", Artifacts: []string{"a@1"}, ContextLinks: []*pb.ContextLink{{Kind: 1, Target: "x", Title: "y"}},
		NextSteps: []string{"n"}, KnownIssues: []string{"k"}, OpenQuestions: []string{"o"},
	}}, &pb.CreateHandoffRequest{Title: "T", ToRole: "r"}, &pb.CreateHandoffRequest{Title: "T", ToAgent: "a", ToRole: "r", TransferTask: true, Fences: []int64{-1}})
}

// fuzzed returns the service of handoffs without sessions.
func fuzzed(f *testing.F) *handoffs.Service {
	clock := clockwork.NewRealClock()
	st := testkit.Store(f, f.TempDir(), clock, events.Migrations(), idempotency.Migrations(), sessions.Migrations(),
		work.Migrations(), handoffs.Migrations())
	return handoffs.New(&work.Desk{
		Store: st, Events: events.New(st, clock, zap.NewNop()), Directory: directory.New(), Post: testkit.NoPost{}, Clock: clock, Log: zap.NewNop(),
	}, nil, nil, nil)
}

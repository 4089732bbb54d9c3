package handoffs_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/handoffs"
	"brokerd/internal/idempotency"
	"brokerd/internal/sessions"
	"brokerd/internal/testkit"
	"brokerd/internal/work"
)

// The bounds are those of handoff.proto.

func FuzzCreateHandoff(f *testing.F) {
	testkit.Fuzz(f, fuzzed(f).CreateHandoff, func(b *testkit.Bounds, r *pb.CreateHandoffRequest) {
		b.Required(r.Title)
		b.Line(512, r.Title)
		b.Line(128, r.TaskId)
		b.Name(r.ToAgent + r.ToRole)
		b.Optional(r.ToAgent, r.ToRole)
		b.Holds(r.ToAgent == "" || r.ToRole == "", "agent and role")
		b.Holds(!r.TransferTask || r.TaskId != "", "transfer without a task")
		b.Between(int64(len(slices.Compact(slices.Sorted(slices.Values(r.Fences))))), 0, 100)
		c := r.GetContent()
		b.Text(64<<10, c.GetBackground(), c.GetWorkDone())
		for _, list := range [][]string{r.Checklist, c.GetNextSteps(), c.GetKnownIssues(), c.GetOpenQuestions()} {
			b.Between(int64(len(list)), 0, 100)
			b.Required(list...)
			b.Text(4<<10, list...)
		}
		b.Between(int64(len(c.GetArtifacts())), 0, 100)
		b.Required(c.GetArtifacts()...)
		b.Line(512, c.GetArtifacts()...)
		b.Between(int64(len(c.GetContextLinks())), 0, 100)
		for _, l := range c.GetContextLinks() {
			_, known := pb.ContextLinkKind_name[int32(l.GetKind())]
			b.Holds(known && l.GetKind() != 0, "kind", l.GetKind())
			b.Required(strings.TrimSpace(l.GetTarget()))
			b.Line(2<<10, l.GetTarget())
			b.Line(512, l.GetTitle())
		}
	}, &pb.CreateHandoffRequest{Title: "T", TaskId: "t", ToAgent: "b", TransferTask: true, Fences: []int64{7, 7}, Checklist: []string{"c"}, Content: &pb.HandoffContent{
		Background: "b", WorkDone: "w", Artifacts: []string{"a@1"}, ContextLinks: []*pb.ContextLink{{Kind: 1, Target: "x", Title: "y"}},
		NextSteps: []string{"n"}, KnownIssues: []string{"k"}, OpenQuestions: []string{"o"},
	}}, &pb.CreateHandoffRequest{Title: "T", ToRole: "r"}, &pb.CreateHandoffRequest{Title: "\n", ToAgent: "a", ToRole: "r", TransferTask: true, Fences: []int64{-1},
		Content: &pb.HandoffContent{Artifacts: []string{""}, ContextLinks: []*pb.ContextLink{{Kind: -1}, {Kind: 99, Target: "\n"}}, NextSteps: []string{" "}}})
}

func FuzzAcceptHandoff(f *testing.F) {
	testkit.Fuzz(f, fuzzed(f).AcceptHandoff, func(b *testkit.Bounds, r *pb.AcceptHandoffRequest) { b.Text(4<<10, r.Notes) },
		&pb.AcceptHandoffRequest{Id: "h-7", Notes: "n", Partial: true})
}

func FuzzRejectHandoff(f *testing.F) {
	testkit.Fuzz(f, fuzzed(f).RejectHandoff, func(b *testkit.Bounds, r *pb.RejectHandoffRequest) {
		b.Required(strings.TrimSpace(r.Notes))
		b.Text(4<<10, r.Notes)
	}, &pb.RejectHandoffRequest{Id: "h-7", Notes: "n"}, &pb.RejectHandoffRequest{Id: "h-7", Notes: " "})
}

func FuzzCancelHandoff(f *testing.F) {
	testkit.Fuzz(f, fuzzed(f).CancelHandoff, func(b *testkit.Bounds, r *pb.CancelHandoffRequest) { b.Text(4<<10, r.Notes) },
		&pb.CancelHandoffRequest{Id: "7", Notes: "n"})
}

func FuzzCheckHandoffItem(f *testing.F) {
	testkit.Fuzz(f, fuzzed(f).CheckHandoffItem, func(*testkit.Bounds, *pb.CheckHandoffItemRequest) {}, // the handoff bounds the number
		&pb.CheckHandoffItemRequest{Id: "h-7", Number: 1, Uncheck: true}, &pb.CheckHandoffItemRequest{Id: "x", Number: -1})
}

func FuzzGetHandoff(f *testing.F) {
	testkit.Fuzz(f, fuzzed(f).GetHandoff, func(b *testkit.Bounds, r *pb.GetHandoffRequest) { b.Wait(r.Wait) },
		&pb.GetHandoffRequest{Id: "h-7", Wait: durationpb.New(time.Second), Markdown: true})
}

func FuzzListHandoffs(f *testing.F) {
	testkit.Fuzz(f, fuzzed(f).ListHandoffs, func(b *testkit.Bounds, r *pb.ListHandoffsRequest) {
		for _, s := range r.States {
			b.Between(int64(s), 1, 4)
		}
		b.Optional(r.From, r.ToAgent, r.ToRole)
		b.Line(128, r.TaskId)
		b.Page(r.PageSize)
	}, &pb.ListHandoffsRequest{States: []pb.HandoffState{1, 4}, From: "a", ToAgent: "b", ToRole: "r", TaskId: "t", PageSize: 7},
		&pb.ListHandoffsRequest{States: []pb.HandoffState{0, -1, 64}, PageToken: "x"})
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

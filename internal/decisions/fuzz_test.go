package decisions_test

import (
	"slices"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/decisions"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/idempotency"
	"brokerd/internal/sessions"
	"brokerd/internal/testkit"
	"brokerd/internal/work"
)

// The test of package rules tries the bounds of single fields.

func FuzzOpenDecision(f *testing.F) {
	const review, shutdown, custom = 1, 3, 4
	testkit.Fuzz(f, fuzzed(f).OpenDecision, func(b *testkit.Bounds, r *pb.OpenDecisionRequest) {
		b.Holds(r.To != nil, "no addressee")
		b.Holds(r.Kind != shutdown || r.GetRole() == "", "shutdown of a role")
		b.Holds(!r.PassToken || r.Kind == review && r.Scope != "", "pass_token")
		if r.Kind != custom {
			b.Holds(len(r.Verdicts) == 0 && r.MessageType+r.OutcomeType == "", "verdicts or types", r)
			return
		}
		b.Holds(len(r.Verdicts) > 0, "no verdicts")
		slices.Sort(r.Verdicts)
		b.Holds(len(slices.Compact(r.Verdicts)) == len(r.Verdicts), "equal verdicts", r.Verdicts)
	}, &pb.OpenDecisionRequest{Kind: review, To: &pb.OpenDecisionRequest_Agent{Agent: "b"}, Title: "T", Scope: "s", PassToken: true, TaskId: "t", ThreadId: "th",
		Deadline: timestamppb.New(time.Unix(4e9, 0)), MaxRounds: 100, Wait: durationpb.New(time.Second), Content: content()},
		&pb.OpenDecisionRequest{Kind: custom, To: &pb.OpenDecisionRequest_Role{Role: "r"}, Verdicts: []string{"yes", "no"}, MessageType: "m", OutcomeType: "o"},
		&pb.OpenDecisionRequest{Kind: shutdown, To: &pb.OpenDecisionRequest_Role{Role: "r"}, PassToken: true, Verdicts: []string{"x"}},
		&pb.OpenDecisionRequest{Kind: -1, Verdicts: []string{"x", "x", ""}, MaxRounds: -1, Deadline: &timestamppb.Timestamp{Seconds: -1}})
}

func FuzzDecide(f *testing.F) {
	testkit.Fuzz(f, fuzzed(f).Decide, func(b *testkit.Bounds, r *pb.DecideRequest) {
		total := 0
		for _, x := range r.Feedback {
			total += len(x.GetText())
		}
		b.Between(int64(total), 0, 64<<10)
	}, &pb.DecideRequest{Id: "d-7", Verdict: "revise", Feedback: []*pb.Feedback{{File: "a.go", Text: "t"}, {Text: "u"}}})
}

func content() *pb.DecisionContent {
	return &pb.DecisionContent{Body: "b", Payload: `{"a":1}`, Files: []*pb.FileReference{{Path: "a.go", Line: 7}}, Artifacts: []string{"x@1"}}
}

// fuzzed returns the service of decisions without sessions.
func fuzzed(f *testing.F) *decisions.Service {
	clock := clockwork.NewRealClock()
	st := testkit.Store(f, f.TempDir(), clock, events.Migrations(), idempotency.Migrations(), sessions.Migrations(),
		work.Migrations(), decisions.Migrations())
	return decisions.New(&work.Desk{
		Store: st, Events: events.New(st, clock, zap.NewNop()), Directory: directory.New(), Post: testkit.NoPost{}, Clock: clock, Log: zap.NewNop(),
	}, nil, nil)
}

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

// The bounds are those of decision.proto.

func FuzzOpenDecision(f *testing.F) {
	const review, shutdown, custom = 1, 3, 4
	testkit.Fuzz(f, fuzzed(f).OpenDecision, func(b *testkit.Bounds, r *pb.OpenDecisionRequest) {
		b.Between(int64(r.Kind), review, custom)
		b.Name(r.GetAgent() + r.GetRole())
		b.Holds(r.Kind != shutdown || r.GetRole() == "", "shutdown of a role")
		b.Line(512, r.Title, r.Scope)
		b.Line(128, r.TaskId, r.ThreadId)
		wantContent(b, r.GetContent())
		b.Between(int64(r.MaxRounds), 0, 100)
		b.Time(r.Deadline)
		b.Wait(r.Wait)
		b.Holds(!r.PassToken || r.Kind == review && r.Scope != "", "pass_token")
		b.Optional(r.MessageType, r.OutcomeType)
		if r.Kind != custom {
			b.Holds(len(r.Verdicts) == 0 && r.MessageType+r.OutcomeType == "", "verdicts or types", r)
			return
		}
		b.Between(int64(len(r.Verdicts)), 1, 20)
		b.Name(r.Verdicts...)
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
		b.Name(r.Verdict)
		b.Text(64<<10, r.Reason)
		b.Between(int64(len(r.Feedback)), 0, 200)
		total := 0
		for _, x := range r.Feedback {
			b.Between(int64(x.GetSeverity()), 0, 4)
			b.Line(1024, x.GetFile())
			b.Between(int64(x.GetLine()), 0, 1<<31-1)
			b.Required(x.GetText())
			b.Text(4<<10, x.GetText())
			total += len(x.GetText())
		}
		b.Between(int64(total), 0, 64<<10)
		b.Time(r.Until)
		b.Holds(r.Round >= 0, "round", r.Round)
	}, &pb.DecideRequest{Id: "d-7", Verdict: "revise", Reason: "r", Round: 2, Until: timestamppb.New(time.Unix(4e9, 0)), Feedback: []*pb.Feedback{
		{Severity: 4, File: "a.go", Line: 7, Text: "t"}, {Text: "u"},
	}}, &pb.DecideRequest{Id: "d", Round: -1, Feedback: []*pb.Feedback{{Severity: -1, Line: -1}, {Severity: 99, File: "\n"}}})
}

func FuzzResubmitDecision(f *testing.F) {
	testkit.Fuzz(f, fuzzed(f).ResubmitDecision, func(b *testkit.Bounds, r *pb.ResubmitDecisionRequest) {
		b.Line(512, r.Title)
		wantContent(b, r.GetContent())
		b.Time(r.Deadline)
		b.Wait(r.Wait)
	}, &pb.ResubmitDecisionRequest{Id: "d-7", Title: "T", Content: content(), Wait: durationpb.New(time.Second)},
		&pb.ResubmitDecisionRequest{Id: "7", Title: "\n", Content: &pb.DecisionContent{Payload: "{", Files: []*pb.FileReference{{}}}})
}

func FuzzCancelDecision(f *testing.F) {
	testkit.Fuzz(f, fuzzed(f).CancelDecision, func(b *testkit.Bounds, r *pb.CancelDecisionRequest) { b.Line(512, r.Reason) },
		&pb.CancelDecisionRequest{Id: "d-7", Reason: "r"})
}

func FuzzGetDecision(f *testing.F) {
	testkit.Fuzz(f, fuzzed(f).GetDecision, func(b *testkit.Bounds, r *pb.GetDecisionRequest) { b.Wait(r.Wait) },
		&pb.GetDecisionRequest{Id: "d-7", Wait: durationpb.New(time.Second)})
}

func FuzzListDecisions(f *testing.F) {
	testkit.Fuzz(f, fuzzed(f).ListDecisions, func(b *testkit.Bounds, r *pb.ListDecisionsRequest) {
		for _, s := range r.States {
			b.Between(int64(s), 1, 5)
		}
		b.Between(int64(r.Kind), 0, 4)
		b.Optional(r.Opener, r.OwedBy)
		b.Line(128, r.TaskId)
		b.Line(512, r.Scope)
		b.Page(r.PageSize)
	}, &pb.ListDecisionsRequest{States: []pb.DecisionState{1, 5}, Kind: 4, Opener: "a", OwedBy: "b", TaskId: "t", Scope: "s", PageSize: 7},
		&pb.ListDecisionsRequest{States: []pb.DecisionState{-1}, Kind: -1, PageToken: "x"})
}

func content() *pb.DecisionContent {
	return &pb.DecisionContent{Body: "b", Payload: `{"a":1}`, Files: []*pb.FileReference{{Path: "a.go", Line: 7}}, Artifacts: []string{"x@1"}}
}

func wantContent(b *testkit.Bounds, c *pb.DecisionContent) {
	b.Helper()
	b.Text(64<<10, c.GetBody(), c.GetPayload())
	b.Between(int64(len(c.GetFiles())), 0, 1000)
	for _, x := range c.GetFiles() {
		b.Required(x.GetPath())
		b.Line(1024, x.GetPath())
		b.Between(int64(x.GetLine()), 0, 1<<31-1)
	}
	b.Between(int64(len(c.GetArtifacts())), 0, 1000)
	b.Line(1024, c.GetArtifacts()...)
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

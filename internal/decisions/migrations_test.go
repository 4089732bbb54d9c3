package decisions_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/decisions"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
	"brokerd/internal/work"
)

func TestMigrations_KeepDecisionsOfEveryStateAndDamagedOnes(t *testing.T) {
	t.Parallel()
	testkit.OnSQLite(t, "it begins with a database of an older version, which only SQLite has")
	dir, clock := t.TempDir(), clockwork.NewFakeClock()
	before, err := store.Open(t.Context(), store.Options{
		Dir: dir, Clock: clock, Migrations: append(work.Migrations(), decisions.Migrations()[:2]...),
	})
	apptest.NoError(t, err)
	apptest.NoError(t, before.Close())
	for _, statement := range []string{
		`INSERT INTO decisions (id, session, kind, state, opened_by, agent, role, escalated_to, title, scope, task_id, thread, verdicts, round,
			max_rounds, deadline, pass_token, fence, verdict, note, opened_at, changed_at, revision, message_type, outcome_type, body, payload,
			files, artifacts) VALUES
			(7, 1, 1, 1, 'a', 'b', NULL, NULL, 'One', 'login', 't1', 'd-7', '["approve","revise","reject"]', 1, 3, 90, 1, 6, NULL, NULL, 7, 7, 7,
				'submit_for_review', '', 'Body', '{"x": 1}', '[{"path":"a.go","line":3}]', '["x@1"]'),
			(10, 1, 4, 2, 'a', NULL, 'lead', NULL, 'Two', NULL, NULL, 'th', '["go","revise"]', 1, 3, NULL, 0, 0, NULL, NULL, 10, 11, 11,
				'request', 'response', NULL, NULL, NULL, NULL),
			(20, 1, 2, 3, 'a', 'b', NULL, 'lead', 'Three', NULL, NULL, 'd-20', '["approve"]', 2, 2, NULL, 0, 0, NULL, 'why', 20, 23, 23,
				'plan_submission', 'plan_approval', NULL, NULL, NULL, NULL),
			(30, 1, 3, 4, 'system', 'b', NULL, NULL, 'Four', NULL, NULL, 'd-30', '["accept","defer","reject"]', 1, 3, NULL, 0, 0, 'defer', NULL,
				30, 31, 31, 'shutdown_request', 'shutdown_response', NULL, NULL, NULL, NULL),
			(40, 1, 1, 5, 'a', 'b', NULL, NULL, 'Five', NULL, NULL, 'd-40', '["approve"]', 1, 3, NULL, 0, 0, NULL, 'the end', 40, 41, 41,
				'submit_for_review', '', 'Body', NULL, 'not JSON', NULL)`,
		`INSERT INTO decision_verdicts (revision, decision, round, escalated, verdict, decided_by, decided_at, reason, feedback, until) VALUES
			(11, 10, 1, 0, 'revise', 'x', 11, 'too long', '[{"severity":"minor","file":"a.go","line":4,"text":"shorter"}]', NULL),
			(21, 20, 1, 0, 'revise', 'b', 21, NULL, NULL, NULL), (22, 20, 2, 0, 'revise', 'b', 22, NULL, 'not JSON', NULL),
			(31, 30, 1, 1, 'defer', 'b', 31, NULL, NULL, 99)`,
		`INSERT INTO work_backlog (id, feature, kind, session, name, item, bound, after, text) VALUES (50, 'decisions', 'gone', 1, 'b', 0, 49, 0, '')`,
	} {
		testkit.Change(t, dir, statement)
	}
	st := testkit.Store(t, dir, clock, work.Migrations(), decisions.Migrations())
	s := decisions.New(&work.Desk{Store: st, Clock: clock, Log: zap.NewNop()}, nil, nil)
	at := func(n int64) *timestamppb.Timestamp { return timestamppb.New(time.Unix(0, n)) }
	want := []*pb.Decision{
		{Id: "d-7", Revision: 7, Kind: 1, State: 1, Opener: "a", Agent: "b", Title: "One", Scope: "login", TaskId: "t1", ThreadId: "d-7",
			Verdicts: []string{"approve", "revise", "reject"}, Round: 1, MaxRounds: 3, Deadline: at(90), PassToken: true, TokenFence: 6,
			OpenedAt: at(7), ChangedAt: at(7), MessageType: "submit_for_review", Content: &pb.DecisionContent{
				Body: "Body", Payload: `{"x": 1}`, Files: []*pb.FileReference{{Path: "a.go", Line: 3}}, Artifacts: []string{"x@1"},
			}},
		{Id: "d-10", Revision: 11, Kind: 4, State: 2, Opener: "a", Role: "lead", Title: "Two", ThreadId: "th", Verdicts: []string{"go", "revise"},
			Round: 1, MaxRounds: 3, OpenedAt: at(10), ChangedAt: at(11), MessageType: "request", OutcomeType: "response", Content: &pb.DecisionContent{},
			Rounds: []*pb.Verdict{{Round: 1, Verdict: "revise", DecidedBy: "x", DecidedAt: at(11), Reason: "too long", Revision: 11,
				Feedback: []*pb.Feedback{{Severity: 2, File: "a.go", Line: 4, Text: "shorter"}}}}},
		{Id: "d-20", Revision: 23, Kind: 2, State: 3, Opener: "a", Agent: "b", EscalatedTo: "lead", Title: "Three", ThreadId: "d-20",
			Verdicts: []string{"approve"}, Round: 2, MaxRounds: 2, Note: "why", OpenedAt: at(20), ChangedAt: at(23), MessageType: "plan_submission",
			OutcomeType: "plan_approval", Content: &pb.DecisionContent{}, Rounds: []*pb.Verdict{
				{Round: 1, Verdict: "revise", DecidedBy: "b", DecidedAt: at(21), Revision: 21},
				{Round: 2, Verdict: "revise", DecidedBy: "b", DecidedAt: at(22), Revision: 22, Reason: "\nnot JSON"},
			}},
		{Id: "d-30", Revision: 31, Kind: 3, State: 4, Opener: "system", Agent: "b", Title: "Four", ThreadId: "d-30", Verdict: "defer",
			Verdicts: []string{"accept", "defer", "reject"}, Round: 1, MaxRounds: 3, OpenedAt: at(30), ChangedAt: at(31),
			MessageType: "shutdown_request", OutcomeType: "shutdown_response", Content: &pb.DecisionContent{}, Rounds: []*pb.Verdict{
				{Round: 1, Verdict: "defer", DecidedBy: "b", DecidedAt: at(31), Until: at(99), Escalated: true, Revision: 31},
			}},
		{Id: "d-40", Revision: 41, Kind: 1, State: 5, Opener: "a", Agent: "b", Title: "Five", ThreadId: "d-40", Verdicts: []string{"approve"},
			Round: 1, MaxRounds: 3, Note: "the end", OpenedAt: at(40), ChangedAt: at(41), MessageType: "submit_for_review",
			Content: &pb.DecisionContent{Body: "Body\nnot JSON"}},
	}
	apptest.NoError(t, st.Read(context.Background(), func(snap *store.Snapshot) error {
		for _, w := range want {
			got, err := s.Get(snap, 1, w.Id)
			apptest.NoError(t, err)
			if d := cmp.Diff(w, got, protocmp.Transform()); d != "" {
				t.Errorf("%s: %s", w.Id, d)
			}
		}
		for _, check := range decisions.Checks(100) {
			if problems, err := check(snap); err != nil || len(problems) > 0 {
				t.Errorf("after the migration: %q, %v", problems, err)
			}
		}
		bound, pending, err := s.Backlog.Pending(snap, "gone", 1, "b")
		if !pending || bound != 49 {
			t.Errorf("the unfinished chore: %d, %v", bound, pending)
		}
		return err
	}))
}

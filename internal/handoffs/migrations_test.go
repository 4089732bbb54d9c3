package handoffs_test

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
	"brokerd/internal/handoffs"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
	"brokerd/internal/work"
)

// withRows returns a store whose first migrations have made the old table with some rows.
func withRows(t *testing.T, statements ...string) *store.Store {
	t.Helper()
	dir, clock := t.TempDir(), clockwork.NewFakeClock()
	before, err := store.Open(t.Context(), store.Options{
		Dir: dir, Clock: clock, Migrations: append(work.Migrations(), handoffs.Migrations()[0]),
	})
	apptest.NoError(t, err)
	apptest.NoError(t, before.Close())
	for _, s := range statements {
		testkit.Change(t, dir, s)
	}
	return testkit.Store(t, dir, clock, work.Migrations(), handoffs.Migrations())
}

const insertOld = `
INSERT INTO handoffs (id, session, revision, state, title, task_id, sender, to_agent, to_role, items, checked,
	created_at, settled_at, settled_by, notes, content, checklist, grants) VALUES `

func TestMigrations_KeepHandoffsOfEveryStateAndDamagedOnes(t *testing.T) {
	t.Parallel()
	testkit.OnSQLite(t, "it begins with a database of an older version, which only SQLite has")
	at := func(n int64) *timestamppb.Timestamp { return timestamppb.New(time.Unix(0, n)) }
	st := withRows(t, insertOld+`
		(7, 1, 9, 1, 'One', 't1', 'a', 'b', '', 2, 1, 7, NULL, '', '',
			'{"background":"B","work_done":"W","artifacts":["x@1"],"context_links":[{"kind":4,"target":"u","title":"T"}],"next_steps":["n"],"known_issues":["k"],"open_questions":["o"]}',
			'[{"text":"c","checked_by":"b","checked_at":"1970-01-01T00:00:00.000000009Z"},{"text":"d"}]', '[{"kind":2,"name":"src/","fence":5}]'),
		(10, 1, 11, 2, 'Two', '', 'a', '', 'builder', 0, 0, 10, 11, 'b', 'thanks', '{}', '[]', '[{"kind":1,"name":"t1","fence":5,"new_fence":11},{"kind":3,"name":"x/y","fence":6,"lost":true}]'),
		(12, 2, 13, 3, 'Three', '', 'a', 'b', '', 0, 0, 12, 13, 'b', 'no', '{}', '[]', '[]'),
		(14, 2, 15, 4, 'Four', '', 'a', 'b', '', 0, 0, 14, 15, 'a', '', '{}', '[]', '[]'),
		(16, 2, 16, 1, 'Five' || CAST(x'ff' AS TEXT), '', 'a', 'b', '', 0, 0, 16, NULL, '', '', '{"background":"B', '[]', 'not JSON')`,
		`INSERT INTO work_backlog (id, feature, kind, session, name, item, bound, after, text) VALUES (20, 'handoffs', 'gone', 1, 'b', 0, 19, 0, '')`)
	want := []*pb.Handoff{
		{Id: "h-7", Revision: 9, State: 1, Title: "One", TaskId: "t1", From: "a", ToAgent: "b", Items: 2, Checked: 1, CreatedAt: at(7),
			Content: &pb.HandoffContent{
				Background: "B", WorkDone: "W", Artifacts: []string{"x@1"}, ContextLinks: []*pb.ContextLink{{Kind: 4, Target: "u", Title: "T"}},
				NextSteps: []string{"n"}, KnownIssues: []string{"k"}, OpenQuestions: []string{"o"},
			},
			Checklist: []*pb.ChecklistItem{{Number: 1, Text: "c", Checked: true, CheckedBy: "b", CheckedAt: at(9)}, {Number: 2, Text: "d"}},
			Grants:    []*pb.HandoffGrant{{Kind: 2, Name: "src/", Fence: 5}}},
		{Id: "h-10", Revision: 11, State: 2, Title: "Two", From: "a", ToRole: "builder", CreatedAt: at(10), SettledAt: at(11), SettledBy: "b",
			Notes: "thanks", Content: &pb.HandoffContent{},
			Grants: []*pb.HandoffGrant{{Kind: 1, Name: "t1", Fence: 5, NewFence: 11}, {Kind: 3, Name: "x/y", Fence: 6, Lost: true}}},
		{Id: "h-12", Revision: 13, State: 3, Title: "Three", From: "a", ToAgent: "b", CreatedAt: at(12), SettledAt: at(13), SettledBy: "b",
			Notes: "no", Content: &pb.HandoffContent{}},
		{Id: "h-14", Revision: 15, State: 4, Title: "Four", From: "a", ToAgent: "b", CreatedAt: at(14), SettledAt: at(15), SettledBy: "a",
			Content: &pb.HandoffContent{}},
		{Id: "h-16", Revision: 16, State: 1, Title: "Five\uFFFD", From: "a", ToAgent: "b", CreatedAt: at(16)},
	}
	s := handoffs.New(&work.Desk{Store: st, Clock: clockwork.NewFakeClock(), Log: zap.NewNop()}, nil, nil, nil)
	apptest.NoError(t, st.Read(context.Background(), func(snap *store.Snapshot) error {
		for i, w := range want {
			session := int64(min(1+i/2, 2))
			got, err := s.Get(snap, session, w.Id)
			apptest.NoError(t, err)
			if w.Id == "h-16" { // the damaged texts are in the background
				if text := got.Content.Background; text != "{\"background\":\"B\nnot JSON\n" && text != "not JSON\n{\"background\":\"B\n" {
					t.Errorf("the damaged handoff has the background %q", text)
				}
				got.Content = nil
			}
			if d := cmp.Diff(w, got, protocmp.Transform()); d != "" {
				t.Errorf("%s: %s", w.Id, d)
			}
		}
		for _, check := range handoffs.Checks(100) {
			if problems, err := check(snap); err != nil || len(problems) > 0 {
				t.Errorf("after the migration: %q, %v", problems, err)
			}
		}
		if bound, pending, err := s.Backlog.Pending(snap, "gone", 1, "b"); err != nil || !pending || bound != 19 {
			t.Errorf("the unfinished chore: %d, %v, %v", bound, pending, err)
		}
		return nil
	}))
}

func TestMigrations_KeepMoreRowsThanOnePageHas(t *testing.T) {
	t.Parallel()
	testkit.OnSQLite(t, "it begins with a database of an older version, which only SQLite has")
	st := withRows(t, `WITH RECURSIVE n(i) AS (SELECT 1000 UNION ALL SELECT i + 1 FROM n WHERE i < 1249) `+
		`INSERT INTO handoffs (id, session, revision, state, title, task_id, sender, to_agent, to_role, items, checked, created_at,
			settled_by, notes, content, checklist, grants) SELECT i, 1, i, 1, 't', '', 'a', 'b', '', 0, 0, 1, '', '', '{}', '[]', '[]' FROM n`)
	s := handoffs.New(&work.Desk{Store: st, Clock: clockwork.NewFakeClock(), Log: zap.NewNop()}, nil, nil, nil)
	apptest.NoError(t, st.Read(context.Background(), func(snap *store.Snapshot) error {
		n, err := s.CountOpen(snap, 1)
		if n != 250 {
			t.Errorf("%d of 250 handoffs are left", n)
		}
		return err
	}))
}

package blockers_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/blockers"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
	"brokerd/internal/work"
)

// entry is an entry of a timeline as the old table had it.
type entry struct {
	Step     int       `json:"step"`
	At       time.Time `json:"at"`
	Agent    string    `json:"agent"`
	Note     string    `json:"note,omitempty"`
	Revision int64     `json:"revision"`
}

// withRows returns the blockers of a store whose first migrations have made the old tables with some rows.
func withRows(t *testing.T, statement string, args ...any) (*store.Store, *blockers.Service) {
	t.Helper()
	dir, clock := t.TempDir(), clockwork.NewFakeClock()
	before, err := store.Open(t.Context(), store.Options{
		Dir: dir, Clock: clock, Migrations: append(work.Migrations(), blockers.Migrations()[:2]...),
	})
	apptest.NoError(t, err)
	apptest.NoError(t, before.Close())
	testkit.Change(t, dir, `INSERT INTO blockers (id, session, revision, state, agent, reason, severity, awaited_kind, awaited, task_id,
		task_blocked, auto_resolve, raised_at, escalates_at, escalations, next_role, resolved_at, timeline) VALUES `+statement, args...)
	testkit.Change(t, dir, `INSERT INTO work_backlog (id, feature, kind, session, name, item, bound, after, text) VALUES
		(900, 'blockers', 'reached', 1, 't1', 3, 899, 0, '')`)
	st := testkit.Store(t, dir, clock, work.Migrations(), blockers.Migrations())
	s := blockers.New(&work.Desk{Store: st, Clock: clock, Log: zap.NewNop()})
	apptest.NoError(t, st.Read(context.Background(), func(snap *store.Snapshot) error {
		for _, check := range blockers.Checks(100) {
			if problems, err := check(snap); err != nil || len(problems) > 0 {
				t.Errorf("after the migration: %q, %v", problems, err)
			}
		}
		return nil
	}))
	return st, s
}

func TestMigrations_KeepBlockersOfEveryStateAndDamagedOnes(t *testing.T) {
	t.Parallel()
	testkit.OnSQLite(t, "it begins with a database of an older version, which only SQLite has")
	long := strings.Repeat("no key ", 200)
	st, s := withRows(t, `
		(7, 1, 7, 1, 'a', 'no key', 2, 3, 't1', 't2', 1, 1, 7, 90, 0, 1, NULL, '[{"step":1,"at":"1970-01-01T00:00:00.000000007Z","agent":"a","revision":7},
			{"step":2,"at":"1970-01-01T00:00:00.000000007Z","agent":"a","recipient":{"role":"lead"},"message":8,"revision":7}]'),
		(10, 1, 14, 2, 'a', ?, 4, 1, 'b', '', 0, 0, 10, NULL, 2, 0, NULL, '[{"step":1,"at":"1970-01-01T00:00:00.00000001Z","agent":"a","revision":10},
			{"step":3,"at":"1970-01-01T00:00:00.000000011Z","agent":"x","note":"old","revision":11},
			{"step":6,"at":"1970-01-01T00:00:00.000000012Z","agent":"x","revision":12},
			{"step":3,"at":"1970-01-01T00:00:00.000000013Z","agent":"y","note":"mine","revision":13},
			{"step":3,"at":"1970-01-01T00:00:00.000000014Z","agent":"z","revision":14}]'),
		(20, 1, 21, 3, 'system', 'no key', 1, 5, 'a customer', '', 0, 0, 20, NULL, 0, 0, 21, '[{"step":1,"at":"1970-01-01T00:00:00.00000002Z","agent":"system","revision":20},
			{"step":5,"at":"1970-01-01T00:00:00.000000021Z","agent":"b","note":"found","revision":21}]'),
		(30, 1, 30, 1, 'a', 'no key', 2, 0, '', '', 0, 0, 30, NULL, 0, 0, NULL, 'not JSON')`, long)
	at := func(n int64) *timestamppb.Timestamp { return timestamppb.New(time.Unix(0, n)) }
	role := &pb.BlockerRecipient{Recipient: &pb.BlockerRecipient_Role{Role: "lead"}}
	want := []*pb.Blocker{
		{Id: "b-7", Revision: 7, State: 1, Agent: "a", Reason: "no key", Severity: 2, TaskId: "t2", TaskBlocked: true, AutoResolve: true,
			Awaited:  &pb.AwaitedObject{Object: &pb.AwaitedObject_TaskId{TaskId: "t1"}},
			RaisedAt: at(7), EscalatesAt: at(90), NextRole: 1, Recipients: []*pb.BlockerRecipient{role},
			Timeline: []*pb.BlockerTimelineEntry{
				{Step: 1, At: at(7), Agent: "a", Revision: 7}, {Step: 2, At: at(7), Agent: "a", Recipient: role, Message: 8, Revision: 7},
			}},
		{Id: "b-10", Revision: 14, State: 2, Agent: "a", Reason: long, Severity: 4, RaisedAt: at(10), Escalations: 2,
			Awaited:        &pb.AwaitedObject{Object: &pb.AwaitedObject_Agent{Agent: "b"}},
			AcknowledgedBy: []string{"y", "z"}, AcknowledgedAt: at(13), Timeline: []*pb.BlockerTimelineEntry{
				{Step: 1, At: at(10), Agent: "a", Revision: 10}, {Step: 3, At: at(11), Agent: "x", Note: "old", Revision: 11},
				{Step: 6, At: at(12), Agent: "x", Revision: 12}, {Step: 3, At: at(13), Agent: "y", Note: "mine", Revision: 13},
				{Step: 3, At: at(14), Agent: "z", Revision: 14},
			}},
		{Id: "b-20", Revision: 21, State: 3, Agent: "system", Reason: "no key", Severity: 1, RaisedAt: at(20), ResolvedAt: at(21),
			Awaited:    &pb.AwaitedObject{Object: &pb.AwaitedObject_Text{Text: "a customer"}},
			ResolvedBy: "b", Resolution: "found", TimeBlocked: durationpb.New(1), Timeline: []*pb.BlockerTimelineEntry{
				{Step: 1, At: at(20), Agent: "system", Revision: 20}, {Step: 5, At: at(21), Agent: "b", Note: "found", Revision: 21},
			}},
		{Id: "b-30", Revision: 30, State: 1, Agent: "a", Reason: "no key", Severity: 2, RaisedAt: at(30), Timeline: []*pb.BlockerTimelineEntry{
			{Step: 1, At: at(30), Agent: "a", Revision: 30},
			{At: at(30), Agent: "system", Note: "the entries were damaged: not JSON", Revision: 30},
		}},
	}
	apptest.NoError(t, st.Read(context.Background(), func(snap *store.Snapshot) error {
		for _, w := range want {
			got, err := s.Get(snap, 1, w.Id)
			apptest.NoError(t, err)
			if d := cmp.Diff(w, got, protocmp.Transform()); d != "" {
				t.Errorf("%s: %s", w.Id, d)
			}
		}
		found, err := s.Open(snap, 1, work.Filter[*pb.Blocker]{Scope: "task:t1"}, 10)
		if len(found) != 1 || found[0].Id != "b-7" {
			t.Errorf("awaiting the task: %v", found)
		}
		return err
	}))
}

// TestMigrations_ClipATimelineThatIsTooLong has a timeline as long as earlier versions let it grow.
func TestMigrations_ClipATimelineThatIsTooLong(t *testing.T) {
	t.Parallel()
	testkit.OnSQLite(t, "it begins with a database of an older version, which only SQLite has")
	at := time.Unix(1_700_000_000, 0).UTC()
	list := []entry{{1, at, "blocked", "", 7}}
	for range 1000 {
		id := list[len(list)-1].Revision
		list = append(list, entry{3, at, "helper", strings.Repeat("n", 4<<10), id + 1}, entry{6, at, "helper", "", id + 2})
	}
	last := list[len(list)-1].Revision
	text, err := json.Marshal(list)
	apptest.NoError(t, err)
	st, s := withRows(t, `(7, 1, ?, 1, 'blocked', 'no key', 2, 0, '', '', 0, 0, 7, NULL, 0, 0, NULL, ?)`, last, string(text))
	apptest.NoError(t, st.Read(context.Background(), func(snap *store.Snapshot) error {
		now, err := s.Get(snap, 1, "b-7")
		apptest.NoError(t, err)
		if proto.Size(now) > 1<<20 {
			t.Errorf("a blocker of %d bytes", proto.Size(now))
		}
		left := 0
		for _, e := range now.Timeline {
			if e.Step == 0 {
				_, err := fmt.Sscanf(e.Note, "%d entries", &left)
				apptest.NoError(t, err)
			}
		}
		if left+len(now.Timeline)-1 != len(list) || now.Timeline[len(now.Timeline)-1].Revision != last {
			t.Errorf("%d entries and %d left out of %d", len(now.Timeline)-1, left, len(list))
		}
		return nil
	}))
}

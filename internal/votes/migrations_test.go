package votes_test

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
	"brokerd/internal/store"
	"brokerd/internal/testkit"
	"brokerd/internal/votes"
	"brokerd/internal/work"
)

func TestMigrations_KeepVotesWithTheirBallots(t *testing.T) {
	t.Parallel()
	testkit.OnSQLite(t, "it begins with a database of an older version, which only SQLite has")
	dir, clock := t.TempDir(), clockwork.NewFakeClock()
	before, err := store.Open(t.Context(), store.Options{
		Dir: dir, Clock: clock, Migrations: append(work.Migrations(), votes.Migrations()[0]),
	})
	apptest.NoError(t, err)
	apptest.NoError(t, before.Close())
	for _, statement := range []string{
		`INSERT INTO votes (id, session, title, description, opener, rule, quorum_ballots, quorum_share, task, opened_at, deadline, electors,
			ballots, outcome, winner, ending, closed_by, close_reason, closed_at, revision) VALUES
			(7, 1, 'One', 'Long', 'lead', 1, 0, 0.5, 't1', 1, 2, 2, 1, 0, NULL, 0, NULL, NULL, NULL, 9),
			(10, 1, 'Two', NULL, 'system', 3, 2, 0, NULL, 1, 2, 1, 1, 4, NULL, 3, 'system', 'late', 3, 11),
			(12, 1, 'Three', NULL, 'lead', 2, 0, 0, NULL, 1, 2, 1, 1, 1, 'x', 1, NULL, NULL, 3, 13)`,
		`INSERT INTO vote_options (vote, position, option, ballots) VALUES (7, 0, 'y', 0), (7, 1, 'x', 1), (10, 0, 'x', 1), (12, 0, 'x', 1)`,
		`INSERT INTO vote_electors (vote, agent, position, reason, cast_at, changes, departed) VALUES
			(7, 'a', 1, 'why', 5, 2, 0), (7, 'b', NULL, NULL, NULL, 0, 2), (7, 'c', NULL, NULL, NULL, 0, 1), (10, 'a', 0, NULL, 5, 0, 0), (12, 'a', 0, NULL, 5, 0, 1)`,
		`INSERT INTO work_backlog (id, feature, kind, session, name, item, bound, after, text) VALUES
			(20, 'votes', 'leave', 1, 'b', 0, 0, 0, ''), (21, 'votes', 'announce', 1, '', 12, 0, 1, 'a')`,
	} {
		testkit.Change(t, dir, statement)
	}
	st := testkit.Store(t, dir, clock, work.Migrations(), votes.Migrations())
	s := votes.New(&work.Desk{Store: st, Clock: clock, Log: zap.NewNop()})
	at := func(n int64) *timestamppb.Timestamp { return timestamppb.New(time.Unix(0, n)) }
	share := &pb.Quorum{Quorum: &pb.Quorum_Share{Share: 0.5}}
	want := []*pb.GetVoteResponse{
		{Vote: &pb.Vote{
			Id: "v-7", Title: "One", Description: "Long", Opener: "lead", Rule: 1, Quorum: share, TaskId: "t1", State: 1, OpenedAt: at(1),
			Deadline: at(2), Electors: 2, Ballots: 1, Required: 1, Revision: 9, Tally: []*pb.VoteTally{{Option: "y"}, {Option: "x", Ballots: 1}},
		}, Ballots: []*pb.Ballot{{Agent: "a", Option: "x", Reason: "why", CastAt: at(5), Changes: 2}, {Agent: "b"}, {Agent: "c", Left: true}}},
		{Vote: &pb.Vote{
			Id: "v-10", Title: "Two", Opener: "system", Rule: 3, Quorum: &pb.Quorum{Quorum: &pb.Quorum_Ballots{Ballots: 2}}, State: 2, Outcome: 4,
			End: 3, ClosedBy: "system", CloseReason: "late", OpenedAt: at(1), Deadline: at(2), ClosedAt: at(3), Electors: 1, Ballots: 1,
			Required: 2, Revision: 11, Tally: []*pb.VoteTally{{Option: "x", Ballots: 1}},
		}, Ballots: []*pb.Ballot{{Agent: "a", Option: "x", CastAt: at(5)}}},
		{Vote: &pb.Vote{
			Id: "v-12", Title: "Three", Opener: "lead", Rule: 2, State: 2, Outcome: 1, Winner: "x", End: 1, OpenedAt: at(1), Deadline: at(2),
			ClosedAt: at(3), Electors: 1, Ballots: 1, Required: 1, Revision: 13, Tally: []*pb.VoteTally{{Option: "x", Ballots: 1}},
		}, Ballots: []*pb.Ballot{{Agent: "a", Option: "x", CastAt: at(5), Left: true}}},
	}
	apptest.NoError(t, st.Read(context.Background(), func(snap *store.Snapshot) error {
		for _, w := range want {
			w.Revision = w.Vote.Revision
			v, err := s.Get(snap, 1, w.Vote.Id)
			apptest.NoError(t, err)
			got, err := s.Record(snap, v)
			apptest.NoError(t, err)
			if d := cmp.Diff(w, got, protocmp.Transform()); d != "" {
				t.Errorf("%s: %s", w.Vote.Id, d)
			}
		}
		if bound, pending, err := s.Backlog.Pending(snap, "leave", 1, "b"); err != nil || !pending || bound != 20 {
			t.Errorf("the unfinished chore: %d, %v, %v", bound, pending, err)
		}
		done, err := s.Finished(snap, 1, time.Unix(1, 0), 10)
		if len(done) != 1 || done[0].Key != 10 {
			t.Errorf("finished and announced: %v", done)
		}
		for _, check := range votes.Checks(100) {
			if problems, err := check(snap); err != nil || len(problems) > 0 {
				t.Errorf("after the migration: %q, %v", problems, err)
			}
		}
		return err
	}))
}

package votes_test

import (
	"slices"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/idempotency"
	"brokerd/internal/sessions"
	"brokerd/internal/testkit"
	"brokerd/internal/votes"
	"brokerd/internal/work"
)

// The test of package rules tries the bounds of single fields.

func FuzzOpenVote(f *testing.F) {
	testkit.Fuzz(f, fuzzed(f).OpenVote, func(b *testkit.Bounds, r *pb.OpenVoteRequest) {
		b.Holds(len(r.Options) >= 2, "one option", r.Options)
		slices.Sort(r.Options)
		b.Holds(len(slices.Compact(r.Options)) == len(r.Options), "equal options", r.Options)
		switch e := r.Electorate.(type) {
		case *pb.OpenVoteRequest_Agents:
			b.Between(int64(len(e.Agents.GetNames())), 1, 100)
			b.Name(e.Agents.GetNames()...)
		case *pb.OpenVoteRequest_Everyone:
			b.Holds(e.Everyone, "everyone", e.Everyone)
		}
		if q, ok := r.GetQuorum().GetQuorum().(*pb.Quorum_Share); ok {
			b.Holds(q.Share != 0, "share", q.Share)
		}
	}, &pb.OpenVoteRequest{Title: "T", Options: []string{"a", "b"}, Deadline: timestamppb.New(time.Unix(4e9, 0)), TaskId: "t",
		Electorate: &pb.OpenVoteRequest_Agents{Agents: &pb.Names{Names: []string{"x", "y"}}}, Quorum: &pb.Quorum{Quorum: &pb.Quorum_Ballots{Ballots: 2}}},
		&pb.OpenVoteRequest{Title: "T", Options: []string{"a", "b"}, Electorate: &pb.OpenVoteRequest_Role{Role: "r"}, Rule: pb.VoteRule_VOTE_RULE_UNANIMOUS,
			Quorum: &pb.Quorum{Quorum: &pb.Quorum_Share{Share: 0.5}}},
		&pb.OpenVoteRequest{Title: "T", Options: []string{"a", "a", ""}, Electorate: &pb.OpenVoteRequest_Everyone{}, Quorum: &pb.Quorum{Quorum: &pb.Quorum_Share{}}})
}

// fuzzed returns the service of votes without sessions.
func fuzzed(f *testing.F) *votes.Service {
	clock := clockwork.NewRealClock()
	st := testkit.Store(f, f.TempDir(), clock, events.Migrations(), idempotency.Migrations(), sessions.Migrations(),
		work.Migrations(), votes.Migrations())
	return votes.New(&work.Desk{
		Store: st, Events: events.New(st, clock, zap.NewNop()), Directory: directory.New(), Post: testkit.NoPost{}, Clock: clock, Log: zap.NewNop(),
	})
}

package votes_test

import (
	"slices"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/durationpb"
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

// The bounds are those of vote.proto.

func FuzzOpenVote(f *testing.F) {
	testkit.Fuzz(f, fuzzed(f).OpenVote, func(b *testkit.Bounds, r *pb.OpenVoteRequest) {
		b.Required(r.Title)
		b.Line(512, r.Title)
		b.Text(64<<10, r.Description)
		b.Between(int64(len(r.Options)), 2, 50)
		b.Required(r.Options...)
		b.Line(512, r.Options...)
		slices.Sort(r.Options)
		b.Holds(len(slices.Compact(r.Options)) == len(r.Options), "equal options", r.Options)
		switch e := r.Electorate.(type) {
		case *pb.OpenVoteRequest_Agents:
			b.Between(int64(len(e.Agents.GetNames())), 1, 100)
			b.Name(e.Agents.GetNames()...)
		case *pb.OpenVoteRequest_Role:
			b.Name(e.Role)
		case *pb.OpenVoteRequest_Everyone:
			b.Holds(e.Everyone, "everyone", e.Everyone)
		}
		b.Time(r.Deadline)
		switch q := r.GetQuorum().GetQuorum().(type) {
		case *pb.Quorum_Ballots:
			b.Between(int64(q.Ballots), 1, 1000)
		case *pb.Quorum_Share:
			b.Holds(q.Share > 0 && q.Share <= 1, "share", q.Share)
		}
		b.Between(int64(r.Rule), 0, 3)
		b.Line(128, r.TaskId)
	}, &pb.OpenVoteRequest{Title: "T", Options: []string{"a", "b"}, Deadline: timestamppb.New(time.Unix(4e9, 0)), TaskId: "t",
		Electorate: &pb.OpenVoteRequest_Agents{Agents: &pb.Names{Names: []string{"x", "y"}}}, Quorum: &pb.Quorum{Quorum: &pb.Quorum_Ballots{Ballots: 2}}},
		&pb.OpenVoteRequest{Title: "T", Options: []string{"a", "b"}, Electorate: &pb.OpenVoteRequest_Role{Role: "r"}, Rule: pb.VoteRule_VOTE_RULE_UNANIMOUS,
			Quorum: &pb.Quorum{Quorum: &pb.Quorum_Share{Share: 0.5}}},
		&pb.OpenVoteRequest{Title: "\n", Options: []string{"a", "a", ""}, Electorate: &pb.OpenVoteRequest_Everyone{}, Rule: 4, Deadline: &timestamppb.Timestamp{Seconds: 1 << 60}})
}

func FuzzCastVote(f *testing.F) {
	testkit.Fuzz(f, fuzzed(f).CastVote, func(b *testkit.Bounds, r *pb.CastVoteRequest) {
		b.Required(r.Id, r.Option)
		b.Line(128, r.Id)
		b.Line(512, r.Option)
		b.Text(4<<10, r.Reason)
	}, &pb.CastVoteRequest{Id: "v-7", Option: "a", Reason: "r"}, &pb.CastVoteRequest{Id: "v", Reason: "\x00"})
}

func FuzzCloseVote(f *testing.F) {
	testkit.Fuzz(f, fuzzed(f).CloseVote, func(b *testkit.Bounds, r *pb.CloseVoteRequest) {
		b.Required(r.Id)
		b.Line(128, r.Id)
		b.Line(512, r.Reason)
	}, &pb.CloseVoteRequest{Id: "v-7", Reason: "r"})
}

func FuzzGetVote(f *testing.F) {
	testkit.Fuzz(f, fuzzed(f).GetVote, func(b *testkit.Bounds, r *pb.GetVoteRequest) {
		b.Required(r.Id)
		b.Wait(r.Wait)
	}, &pb.GetVoteRequest{Id: "7", Wait: durationpb.New(time.Hour)}, &pb.GetVoteRequest{Id: "7", Wait: &durationpb.Duration{Seconds: 1 << 40}})
}

func FuzzListVotes(f *testing.F) {
	testkit.Fuzz(f, fuzzed(f).ListVotes, func(b *testkit.Bounds, r *pb.ListVotesRequest) {
		for _, s := range r.States {
			b.Between(int64(s), 1, 2)
		}
		b.Optional(r.Opener, r.Elector)
		b.Line(128, r.TaskId)
		b.Page(r.PageSize)
	}, &pb.ListVotesRequest{States: []pb.VoteState{1}, Opener: "a", Elector: "b", TaskId: "t", PageSize: 7}, &pb.ListVotesRequest{States: []pb.VoteState{-1}, PageToken: "x"})
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

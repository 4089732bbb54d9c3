package votes_test

import (
	"strconv"
	"testing"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/votes"
	"brokerd/internal/work"
)

func TestCount_RulesByBallots(t *testing.T) {
	t.Parallel()
	var none *pb.Quorum
	ballots := func(n int32) *pb.Quorum { return &pb.Quorum{Quorum: &pb.Quorum_Ballots{Ballots: n}} }
	for _, row := range []struct {
		electors int32
		quorum   *pb.Quorum
		ballots  []int32
		// The outcome by plurality, majority and unanimity: the position of the winner, or a word.
		plurality, majority, unanimous string
	}{
		{5, none, []int32{0, 0}, "no_quorum", "no_quorum", "no_quorum"},
		{0, none, []int32{0, 0}, "no_quorum", "no_quorum", "no_quorum"},
		{5, none, []int32{1, 0}, "0", "0", "0"},
		{5, none, []int32{0, 0, 1}, "2", "2", "2"},
		{5, none, []int32{3, 2}, "0", "0", "no_majority"},
		{5, none, []int32{2, 3}, "1", "1", "no_majority"},
		{4, none, []int32{2, 2}, "tie", "no_majority", "no_majority"},
		{5, none, []int32{2, 2, 1}, "tie", "no_majority", "no_majority"},
		{5, none, []int32{1, 2, 2}, "tie", "no_majority", "no_majority"},
		{5, none, []int32{2, 1, 1}, "0", "no_majority", "no_majority"},
		{6, none, []int32{3, 2, 1}, "0", "no_majority", "no_majority"},
		{7, none, []int32{4, 2, 1}, "0", "0", "no_majority"},
		{3, none, []int32{1, 1, 1}, "tie", "no_majority", "no_majority"},
		{5, none, []int32{0, 5}, "1", "1", "1"},

		{5, ballots(3), []int32{2, 0}, "no_quorum", "no_quorum", "no_quorum"},
		{5, ballots(3), []int32{1, 1}, "no_quorum", "no_quorum", "no_quorum"},
		{5, ballots(3), []int32{3, 0}, "0", "0", "0"},
		{5, ballots(3), []int32{2, 1}, "0", "0", "no_majority"},
		{2, ballots(3), []int32{2, 0}, "no_quorum", "no_quorum", "no_quorum"},

		{5, share(0.5), []int32{2, 0}, "no_quorum", "no_quorum", "no_quorum"},
		{5, share(0.5), []int32{2, 1}, "0", "0", "no_majority"},
		{4, share(0.5), []int32{1, 1}, "tie", "no_majority", "no_majority"},
		{5, share(1), []int32{4, 0}, "no_quorum", "no_quorum", "no_quorum"},
		{5, share(1), []int32{5, 0}, "0", "0", "0"},
		{0, share(1), []int32{0, 0}, "no_quorum", "no_quorum", "no_quorum"},
	} {
		v := &pb.Vote{Quorum: row.quorum, Electors: row.electors}
		for i, n := range row.ballots {
			v.Tally = append(v.Tally, &pb.VoteTally{Option: strconv.Itoa(i), Ballots: n})
		}
		for rule, want := range map[pb.VoteRule]string{
			pb.VoteRule_VOTE_RULE_PLURALITY: row.plurality,
			pb.VoteRule_VOTE_RULE_MAJORITY:  row.majority,
			pb.VoteRule_VOTE_RULE_UNANIMOUS: row.unanimous,
		} {
			v.Rule = rule
			outcome, got := votes.Count(v)
			if outcome != pb.VoteOutcome_VOTE_OUTCOME_WINNER {
				if got != "" {
					t.Errorf("%v: %s, and the winner %s", v, outcome, got)
				}
				got = work.Word(outcome)
			}
			if got != want {
				t.Errorf("%v: got %s, want %s", v, got, want)
			}
		}
	}
}

func share(of float64) *pb.Quorum { return &pb.Quorum{Quorum: &pb.Quorum_Share{Share: of}} }

func TestQuorum_RoundsAShareUpToWholeBallots(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		share          float64
		electors, want int32
	}{
		{0.5, 5, 3}, {0.5, 4, 2}, {2.0 / 3, 6, 4}, {2.0 / 3, 3, 2}, {2.0 / 3, 999, 666}, {2.0 / 3, 1000, 667},
		{0.07, 100, 7}, {0.01, 1000, 10}, {0.01, 5, 1}, {1, 1000, 1000}, {0.29, 100, 29}, {0.0001, 1, 1}, {0.5, 0, 1},
	} {
		if got := votes.Required(share(row.share), row.electors); got != row.want {
			t.Errorf("%v of %d electors are %d ballots, want %d", row.share, row.electors, got, row.want)
		}
	}
}

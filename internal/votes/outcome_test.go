package votes_test

import (
	"fmt"
	"testing"

	"brokerd/internal/votes"
)

func TestCount_RulesByBallots(t *testing.T) {
	t.Parallel()
	none := votes.Quorum{}
	for _, row := range []struct {
		electors int
		quorum   votes.Quorum
		ballots  []int
		// The outcome by plurality, majority and unanimity: the position of the winner, or a word.
		plurality, majority, unanimous string
	}{
		{5, none, []int{0, 0}, "no_quorum", "no_quorum", "no_quorum"},
		{0, none, []int{0, 0}, "no_quorum", "no_quorum", "no_quorum"},
		{5, none, []int{1, 0}, "0", "0", "0"},
		{5, none, []int{0, 0, 1}, "2", "2", "2"},
		{5, none, []int{3, 2}, "0", "0", "no_majority"},
		{5, none, []int{2, 3}, "1", "1", "no_majority"},
		{4, none, []int{2, 2}, "tie", "no_majority", "no_majority"},
		{5, none, []int{2, 2, 1}, "tie", "no_majority", "no_majority"},
		{5, none, []int{1, 2, 2}, "tie", "no_majority", "no_majority"},
		{5, none, []int{2, 1, 1}, "0", "no_majority", "no_majority"},
		{6, none, []int{3, 2, 1}, "0", "no_majority", "no_majority"},
		{7, none, []int{4, 2, 1}, "0", "0", "no_majority"},
		{3, none, []int{1, 1, 1}, "tie", "no_majority", "no_majority"},
		{5, none, []int{0, 5}, "1", "1", "1"},

		{5, votes.Quorum{Ballots: 3}, []int{2, 0}, "no_quorum", "no_quorum", "no_quorum"},
		{5, votes.Quorum{Ballots: 3}, []int{1, 1}, "no_quorum", "no_quorum", "no_quorum"},
		{5, votes.Quorum{Ballots: 3}, []int{3, 0}, "0", "0", "0"},
		{5, votes.Quorum{Ballots: 3}, []int{2, 1}, "0", "0", "no_majority"},
		{2, votes.Quorum{Ballots: 3}, []int{2, 0}, "no_quorum", "no_quorum", "no_quorum"},

		{5, votes.Quorum{Share: 0.5}, []int{2, 0}, "no_quorum", "no_quorum", "no_quorum"},
		{5, votes.Quorum{Share: 0.5}, []int{2, 1}, "0", "0", "no_majority"},
		{4, votes.Quorum{Share: 0.5}, []int{1, 1}, "tie", "no_majority", "no_majority"},
		{5, votes.Quorum{Share: 1}, []int{4, 0}, "no_quorum", "no_quorum", "no_quorum"},
		{5, votes.Quorum{Share: 1}, []int{5, 0}, "0", "0", "0"},
		{0, votes.Quorum{Share: 1}, []int{0, 0}, "no_quorum", "no_quorum", "no_quorum"},
	} {
		want := map[votes.Rule]string{
			votes.Plurality: row.plurality, votes.Majority: row.majority, votes.Unanimous: row.unanimous,
		}
		for rule, want := range want {
			outcome, winner := votes.Count(rule, row.quorum, row.electors, row.ballots)
			got := outcome.String()
			if outcome == votes.Winner {
				got = fmt.Sprint(winner)
			} else if winner != -1 {
				t.Errorf("%v of %d electors with %+v by %s: %s, and the winner %d", row.ballots, row.electors, row.quorum, rule,
					outcome, winner)
			}
			if got != want {
				t.Errorf("%v of %d electors with %+v by %s: got %s, want %s", row.ballots, row.electors, row.quorum, rule, got, want)
			}
		}
	}
}

func TestQuorum_RoundsAShareUpToWholeBallots(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		share          float64
		electors, want int
	}{
		{0.5, 5, 3}, {0.5, 4, 2}, {2.0 / 3, 6, 4}, {2.0 / 3, 3, 2}, {2.0 / 3, 999, 666}, {2.0 / 3, 1000, 667},
		{0.07, 100, 7}, {0.01, 1000, 10}, {0.01, 5, 1}, {1, 1000, 1000}, {0.29, 100, 29}, {0.0001, 1, 1}, {0.5, 0, 1},
	} {
		if got := (votes.Quorum{Share: row.share}).Required(row.electors); got != row.want {
			t.Errorf("%v of %d electors are %d ballots, want %d", row.share, row.electors, got, row.want)
		}
	}
}

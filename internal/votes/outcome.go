package votes

import (
	"math"

	pb "brokerd/gen/brokerd/v1"
)

// fraction is up to which part of a ballot a share needs no further ballot. It is far more than the
// error of a share such as 2/3 as a binary number.
const fraction = 1e-6

// Required returns how many ballots a quorum requires of a number of electors: at least one.
func Required(q *pb.Quorum, electors int32) int32 {
	n := q.GetBallots()
	if n == 0 {
		n = int32(math.Ceil(q.GetShare()*float64(electors) - fraction))
	}
	return max(n, 1)
}

// Count returns the outcome of a vote, and the option that won, empty if none did. The quorum comes
// first: with fewer ballots than it requires the outcome is NO_QUORUM, whatever the rule.
func Count(v *pb.Vote) (outcome pb.VoteOutcome, winner string) {
	cast, most, leader, leaders := int32(0), int32(0), "", 0
	for _, t := range v.Tally {
		cast += t.Ballots
		switch {
		case t.Ballots > most:
			most, leader, leaders = t.Ballots, t.Option, 1
		case t.Ballots == most:
			leaders++
		}
	}
	switch {
	case cast < Required(v.Quorum, v.Electors):
		return pb.VoteOutcome_VOTE_OUTCOME_NO_QUORUM, ""
	case v.Rule == pb.VoteRule_VOTE_RULE_PLURALITY && leaders > 1:
		return pb.VoteOutcome_VOTE_OUTCOME_TIE, ""
	case v.Rule == pb.VoteRule_VOTE_RULE_MAJORITY && 2*most <= cast,
		v.Rule == pb.VoteRule_VOTE_RULE_UNANIMOUS && most < cast:
		return pb.VoteOutcome_VOTE_OUTCOME_NO_MAJORITY, ""
	}
	return pb.VoteOutcome_VOTE_OUTCOME_WINNER, leader
}

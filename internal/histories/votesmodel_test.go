package histories_test

import (
	"fmt"

	"github.com/anishathalye/porcupine"

	pb "brokerd/gen/brokerd/v1"
)

const (
	polls   = 24 // votes in a history; each client opens the same number of them
	choices = 3  // options of a vote
)

// A pollVerb is an operation on a vote.
type pollVerb int

const (
	castBallot pollVerb = iota
	closePoll
	getPoll
)

// A pollCall is a request about one vote.
type pollCall struct {
	verb   pollVerb
	poll   int
	client int
	choice int8 // of a ballot, from 1
}

// A pollAnswer is the response.
type pollAnswer struct {
	refused bool // VOTE_CLOSED
	already bool // close: the vote was closed before
	closed  bool
	tally   [choices]int
	outcome pb.VoteOutcome
	winner  int8 // from 1; 0 = none
	ballots [clients]int8
}

// A pollState is a vote of the model: the choices of its electors, 0 = none.
type pollState struct {
	ballots [clients]int8
	closed  bool
}

func pollsModel() model {
	return model{
		Partition: func(all []porcupine.Operation) [][]porcupine.Operation {
			parts := make([][]porcupine.Operation, polls)
			for _, o := range all {
				n := o.Input.(pollCall).poll
				parts[n] = append(parts[n], o)
			}
			return parts
		},
		Init: func() any { return pollState{} },
		Step: func(state, input, output any) (bool, any) {
			s, call := state.(pollState), input.(pollCall)
			before := s
			s.apply(call)
			if output == nil {
				return true, s
			}
			return s.allows(before, call, output.(pollAnswer)), s
		},
		Equal: func(a, b any) bool { return a.(pollState) == b.(pollState) },
		DescribeOperation: func(input, output any) string {
			call := input.(pollCall)
			verb := [...]string{"cast", "close", "get"}[call.verb]
			return fmt.Sprintf("%s %+v: %+v", verb, call, output)
		},
		DescribeState: func(s any) string { return fmt.Sprintf("%+v", s) },
	}
}

// apply makes the change of a call; none if the vote is closed.
func (s *pollState) apply(call pollCall) {
	if s.closed || call.verb == getPoll {
		return
	}
	if call.verb == closePoll {
		s.closed = true
		return
	}
	s.ballots[call.client] = call.choice
	s.closed = true
	for _, b := range s.ballots {
		s.closed = s.closed && b != 0
	}
}

// allows reports whether a call that turned the state before into this one may have an answer.
func (s *pollState) allows(before pollState, call pollCall, a pollAnswer) bool {
	if a.refused {
		return before.closed
	}
	if call.verb == castBallot && before.closed || call.verb == closePoll && a.already != before.closed {
		return false
	}
	if call.verb == getPoll && a.ballots != s.ballots {
		return false
	}
	want := pollAnswer{closed: s.closed, tally: s.tally()}
	if s.closed {
		want.outcome, want.winner = s.outcome(call.poll)
	}
	return a.closed == want.closed && a.tally == want.tally && a.outcome == want.outcome && a.winner == want.winner
}

func (s *pollState) tally() (counts [choices]int) {
	for _, b := range s.ballots {
		if b > 0 {
			counts[b-1]++
		}
	}
	return counts
}

// ruleOf and quorumOf are the rule and the quorum of a vote: each rule with and without a quorum.
func ruleOf(poll int) pb.VoteRule { return pb.VoteRule(poll%3 + 1) }

func quorumOf(poll int) int { return 1 + poll/3%2*(clients/2-1) }

// outcome is written without the rules of the broker: it counts the options that win by the
// definition of each rule.
func (s *pollState) outcome(poll int) (pb.VoteOutcome, int8) {
	counts := s.tally()
	cast := counts[0] + counts[1] + counts[2]
	if cast < quorumOf(poll) {
		return pb.VoteOutcome_VOTE_OUTCOME_NO_QUORUM, 0
	}
	var winners []int8
	for i, n := range counts {
		wins := true
		switch ruleOf(poll) {
		case pb.VoteRule_VOTE_RULE_MAJORITY:
			wins = n > cast-n
		case pb.VoteRule_VOTE_RULE_UNANIMOUS:
			wins = n == cast
		default:
			for _, other := range counts {
				wins = wins && n >= other
			}
		}
		if wins {
			winners = append(winners, int8(i+1))
		}
	}
	switch len(winners) {
	case 0:
		return pb.VoteOutcome_VOTE_OUTCOME_NO_MAJORITY, 0
	case 1:
		return pb.VoteOutcome_VOTE_OUTCOME_WINNER, winners[0]
	default:
		return pb.VoteOutcome_VOTE_OUTCOME_TIE, 0
	}
}

package histories_test

import (
	"fmt"

	"github.com/anishathalye/porcupine"

	pb "brokerd/gen/brokerd/v1"
)

// cases are the decisions of a history; each client opens the same number of them.
const cases = 12

// A caseVerb is an operation on a decision.
type caseVerb int

const (
	decideCase caseVerb = iota
	resubmitCase
	cancelCase
	getCase
)

// A caseCall is a request about one decision.
type caseCall struct {
	verb    caseVerb
	number  int // of the decision
	client  int
	verdict string
}

// A caseAnswer is the response.
type caseAnswer struct {
	refused bool // DECISION_CLOSED or DECISION_NOT_REVISING
	state   caseState
}

// A caseState is a decision of the model, with its newest verdict.
type caseState struct {
	state   pb.DecisionState
	round   int
	verdict string
	by      string
}

func casesModel() model {
	return model{
		Partition: func(all []porcupine.Operation) [][]porcupine.Operation {
			parts := make([][]porcupine.Operation, cases)
			for _, o := range all {
				n := o.Input.(caseCall).number
				parts[n] = append(parts[n], o)
			}
			return parts
		},
		Init: func() any { return caseState{state: pb.DecisionState_DECISION_STATE_OPEN, round: 1} },
		Step: func(state, input, output any) (bool, any) {
			s := state.(caseState)
			done := s.apply(input.(caseCall))
			if output == nil {
				return true, s
			}
			a := output.(caseAnswer)
			return a.refused != done && (a.refused || a.state == s), s
		},
		Equal: func(a, b any) bool { return a == b },
		DescribeOperation: func(input, output any) string {
			call := input.(caseCall)
			verb := [...]string{"decide", "resubmit", "cancel", "get"}[call.verb]
			return fmt.Sprintf("%s %+v: %+v", verb, call, output)
		},
		DescribeState: func(s any) string { return fmt.Sprintf("%+v", s) },
	}
}

// apply makes the change of a call, and reports whether the state permits the call.
func (s *caseState) apply(call caseCall) bool {
	switch call.verb {
	case decideCase:
		if s.state != pb.DecisionState_DECISION_STATE_OPEN {
			return false
		}
		s.verdict, s.by = call.verdict, agentName(call.client)
		if s.state = pb.DecisionState_DECISION_STATE_DECIDED; call.verdict == "revise" {
			s.state = pb.DecisionState_DECISION_STATE_REVISING
		}
	case resubmitCase:
		if s.state != pb.DecisionState_DECISION_STATE_REVISING {
			return false
		}
		s.state = pb.DecisionState_DECISION_STATE_OPEN
		s.round++
	case cancelCase:
		if s.state == pb.DecisionState_DECISION_STATE_DECIDED {
			return false
		}
		s.state = pb.DecisionState_DECISION_STATE_CANCELLED
	case getCase:
	}
	return true
}

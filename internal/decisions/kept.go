package decisions

import "brokerd/internal/store"

// A keptDecision is a decision as the broker keeps it for a repeated request: without the verdict,
// which the table has. Answers that an earlier version of the broker kept have it, without feedback.
type keptDecision struct {
	Settled
	Short bool `json:",omitempty"` // without Rounds
}

func keep(s *Settled) keptDecision {
	kept := keptDecision{*s, true}
	kept.Rounds = nil
	return kept
}

// settled returns the decision as it was when it was kept, with the newest verdict of that time. A
// verdict never changes. If the rows have been removed since, it is absent.
func (k *keptDecision) settled(q store.Querier) (Settled, error) {
	out := k.Settled
	if !k.Short {
		return out, nil
	}
	err := out.readVerdicts(q, verdictBefore, out.Revision)
	return out, err
}

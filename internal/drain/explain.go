package drain

import (
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/calls"
	"brokerd/internal/finding"
	"brokerd/internal/store"
)

// Explain reports a drain.
func (s *Switch) Explain(q store.Querier, about finding.Question) ([]finding.Finding, error) {
	if about.Kind != finding.Everything {
		return nil, nil
	}
	since, err := s.Since(q)
	if err != nil || since.IsZero() {
		return nil, err
	}
	f := finding.Finding{Severity: finding.Error, Subject: "broker", Since: since,
		Summary: "the broker delivers no new work: an operator drains it",
		Reasons: []string{"the drain began at " + about.When(since) + " and lasts until an operator ends it, also over a restart"}}
	if about.Asker == "" {
		f.Calls = []calls.Call{calls.Do(&pb.DrainRequest{Resume: true})}
	}
	return []finding.Finding{f}, nil
}

package admin

import (
	"fmt"
	"time"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/calls"
	"brokerd/internal/finding"
	"brokerd/internal/store"
)

// slowCommit is from when on the time of a commit is a warning.
const slowCommit = 100 * time.Millisecond

// Commits explains that commits take long, for which everything waits.
type Commits struct{ Store *store.Store }

// Explain implements Explainer.
func (c Commits) Explain(q store.Querier, about finding.Question) ([]finding.Finding, error) {
	recent := c.Store.Stats().RecentCommit
	snap, outside := q.(*store.Snapshot)
	if about.Kind != finding.Everything || recent < slowCommit || !outside {
		return nil, nil
	}
	facts, err := c.Store.FactsIn(snap)
	if err != nil {
		return nil, err
	}
	return []finding.Finding{{Severity: finding.Warning, Subject: "database", Since: about.Now,
		Summary: fmt.Sprintf("a commit takes %v (a warning from %v on); each change waits for one",
			recent.Round(time.Millisecond), slowCommit),
		Reasons: []string{"the data is in " + c.Store.Name(), "a confirmed change is " + facts.Confirmed},
		Calls:   []calls.Call{calls.Do(&pb.GetStatusRequest{})}}}, nil
}

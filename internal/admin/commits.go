package admin

import (
	"fmt"
	"time"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/calls"
	"brokerd/internal/finding"
	"brokerd/internal/store"
)

const (
	slowCommit = 100 * time.Millisecond // from when on the time of a commit is a warning
	lately     = time.Minute            // since the last commit
)

// Commits explains that commits take long, for which everything waits.
type Commits struct{ Store *store.Store }

// Explain implements Explainer.
func (c Commits) Explain(q store.Querier, about finding.Question) ([]finding.Finding, error) {
	if about.Kind != finding.Everything {
		return nil, nil
	}
	stats := c.Store.Stats()
	if stats.RecentCommit < slowCommit || about.Now.Sub(stats.LastCommit) > lately {
		return nil, nil
	}
	reasons := []string{"the data is in " + c.Store.Name()}
	if snap, ok := q.(*store.Snapshot); ok {
		facts, err := c.Store.FactsIn(snap)
		if err != nil {
			return nil, err
		}
		reasons = append(reasons, "a confirmed change is "+facts.Confirmed)
	}
	return []finding.Finding{{Severity: finding.Warning, Subject: "database", Since: stats.LastCommit,
		Summary: fmt.Sprintf("the last commits took %v on average (a warning from %v on); each change waits for one",
			stats.RecentCommit.Round(time.Millisecond), slowCommit),
		Reasons: reasons,
		Calls:   []calls.Call{calls.Do(&pb.GetStatusRequest{})}}}, nil
}

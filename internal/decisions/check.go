package decisions

import (
	"fmt"

	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Checks returns functions that check the tables, one for each invariant. Each returns the
// violations, one line each, at most most of them. They may be called while the broker runs.
func Checks(most int) []func(q store.Querier) ([]string, error) {
	checks := make([]func(store.Querier) ([]string, error), 0, len(invariants))
	for _, i := range invariants {
		checks = append(checks, func(q store.Querier) ([]string, error) { return i.check(q, most) })
	}
	return checks
}

// An invariant is a query for decisions that break it, and the sentence about them.
type invariant struct{ says, query string }

func (i invariant) check(q store.Querier, most int) (problems []string, err error) {
	rows := q.Query(i.query)
	defer rows.Close()
	for len(problems) < most && rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		problems = append(problems, fmt.Sprintf("decision %s: %s", work.ID(idLetter, id), i.says))
	}
	return problems, rows.Close()
}

var invariants = [...]invariant{
	{"a verdict belongs to no decision", `
		SELECT DISTINCT v.decision FROM decision_verdicts v LEFT JOIN decisions d ON d.id = v.decision WHERE d.id IS NULL`},
	{"a round before the current one has no verdict, or a later one has", `
		SELECT d.id FROM decisions d
		WHERE (SELECT count(DISTINCT v.round) FROM decision_verdicts v WHERE v.decision = d.id AND v.round < d.round) <> d.round - 1
		   OR EXISTS (SELECT 1 FROM decision_verdicts v WHERE v.decision = d.id AND v.round > d.round)`},
	{"it is decided or revising without a verdict of the round, or open with one", `
		SELECT d.id FROM decisions d
		WHERE (d.state = 2 OR d.state = 4) AND NOT EXISTS (SELECT 1 FROM decision_verdicts v WHERE v.decision = d.id AND v.round = d.round)
		   OR d.state = 1 AND EXISTS (SELECT 1 FROM decision_verdicts v WHERE v.decision = d.id AND v.round = d.round)`},
	{"its final verdict is not that of the last round", `
		SELECT d.id FROM decisions d
		WHERE d.state = 4 AND NOT EXISTS (
			SELECT 1 FROM decision_verdicts v WHERE v.decision = d.id AND v.round = d.round AND v.verdict = d.verdict)
		   OR d.state <> 4 AND d.verdict IS NOT NULL`},
	{"it has more than one verdict of a round that no escalation has given", `
		SELECT decision FROM decision_verdicts GROUP BY decision, round, escalated HAVING count(*) > 1`},
}

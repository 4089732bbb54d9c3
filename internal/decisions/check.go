package decisions

import (
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Checks returns the checks of the tables; see work.Checks.
func Checks(most int) []func(q store.Querier) ([]string, error) {
	return work.Checks(most, invariants[:], func(id int64) string { return "decision " + work.ID(idLetter, id) })
}

var invariants = [...]work.Invariant{
	{Says: "a verdict belongs to no decision", Query: `
		SELECT DISTINCT v.decision FROM decision_verdicts v LEFT JOIN decisions d ON d.id = v.decision WHERE d.id IS NULL`},
	{Says: "a round before the current one has no verdict, or a later one has", Query: `
		SELECT d.id FROM decisions d
		WHERE (SELECT count(DISTINCT v.round) FROM decision_verdicts v WHERE v.decision = d.id AND v.round < d.round) <> d.round - 1
		   OR EXISTS (SELECT 1 FROM decision_verdicts v WHERE v.decision = d.id AND v.round > d.round)`},
	{Says: "it is decided or revising without a verdict of the round, or open with one", Query: `
		SELECT d.id FROM decisions d
		WHERE (d.state = 2 OR d.state = 4) AND NOT EXISTS (SELECT 1 FROM decision_verdicts v WHERE v.decision = d.id AND v.round = d.round)
		   OR d.state = 1 AND EXISTS (SELECT 1 FROM decision_verdicts v WHERE v.decision = d.id AND v.round = d.round)`},
	{Says: "its final verdict is not that of the last round", Query: `
		SELECT d.id FROM decisions d
		WHERE d.state = 4 AND NOT EXISTS (
			SELECT 1 FROM decision_verdicts v WHERE v.decision = d.id AND v.round = d.round AND v.verdict = d.verdict)
		   OR d.state <> 4 AND d.verdict IS NOT NULL`},
	{Says: "it has more than one verdict of a round that no escalation has given", Query: `
		SELECT decision FROM decision_verdicts GROUP BY decision, round, escalated HAVING count(*) > 1`},
}

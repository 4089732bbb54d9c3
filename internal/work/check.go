package work

import "brokerd/internal/store"

// An Invariant is a query for the rows that break a rule, and what is wrong with them. The query has
// one column, by which Checks names the row.
type Invariant struct{ Says, Query string }

// Checks returns the checks of a feature's tables, one for each invariant, for separate snapshots.
// A check returns one line per row that breaks the rule, at most most of them. It may run while the
// broker does.
func Checks[K any](most int, invariants []Invariant, name func(K) string) []func(q store.Querier) ([]string, error) {
	checks := make([]func(store.Querier) ([]string, error), len(invariants))
	for i, one := range invariants {
		checks[i] = func(q store.Querier) (problems []string, err error) {
			rows := q.Query(one.Query)
			defer rows.Close()
			for len(problems) < most && rows.Next() {
				var key K
				if err := rows.Scan(&key); err != nil {
					return nil, err
				}
				problems = append(problems, name(key)+": "+one.Says)
			}
			return problems, rows.Close()
		}
	}
	return checks
}

package votes

import (
	"fmt"

	"brokerd/internal/store"
)

// Checks returns the checks of the tables, each for a separate snapshot. A check returns a line for
// each problem, at most most of them.
func Checks(most int) []func(q store.Querier) ([]string, error) {
	checks := make([]func(store.Querier) ([]string, error), 0, len(invariants))
	for _, i := range invariants {
		checks = append(checks, func(q store.Querier) ([]string, error) { return i.check(q, most) })
	}
	return checks
}

// An invariant is a query for votes that cannot be, by key, and what is wrong with them.
type invariant struct{ says, query string }

func (i invariant) check(q store.Querier, most int) (problems []string, err error) {
	rows := q.Query(i.query)
	defer rows.Close()
	for len(problems) < most && rows.Next() {
		var key int64
		if err := rows.Scan(&key); err != nil {
			return nil, err
		}
		problems = append(problems, fmt.Sprintf("vote %d: %s", key, i.says))
	}
	return problems, rows.Close()
}

var invariants = [...]invariant{
	{"its numbers of electors and ballots are not those of its electorate", `
		SELECT v.id FROM votes v WHERE (v.electors, v.ballots) <> (
			SELECT count(*) FILTER (WHERE e.departed = 0 OR e.position IS NOT NULL), count(e.position)
			FROM vote_electors e WHERE e.vote = v.id)`},
	{"the ballots of an option are not those of its electorate", `
		SELECT o.vote FROM vote_options o WHERE o.ballots <> (
			SELECT count(*) FROM vote_electors e WHERE e.vote = o.vote AND e.position = o.position)`},
	{"it is open, but every remaining elector has voted", `
		SELECT v.id FROM votes v WHERE v.closed_at IS NULL AND v.electors <= v.ballots`},
	{"it is open with an outcome, or closed without one", `
		SELECT v.id FROM votes v WHERE (v.closed_at IS NULL) <> (v.outcome = 0) OR (v.outcome = 0) <> (v.ending = 0)`},
	{"it does not exist, but has options", `
		SELECT o.vote FROM vote_options o LEFT JOIN votes v ON v.id = o.vote WHERE v.id IS NULL`},
	{"it does not exist, but has electors", `
		SELECT e.vote FROM vote_electors e LEFT JOIN votes v ON v.id = e.vote WHERE v.id IS NULL`},
}

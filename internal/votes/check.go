package votes

import (
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Checks returns the checks of the tables; see work.Checks.
func Checks(most int) []func(q store.Querier) ([]string, error) {
	return work.Checks(most, invariants[:], func(key int64) string { return "vote " + work.ID(letter, key) })
}

var invariants = [...]work.Invariant{
	{Says: "its numbers of electors and ballots are not those of its electorate", Query: `
		SELECT v.id FROM votes v WHERE (v.electors, v.ballots) <> (
			SELECT count(*) FILTER (WHERE e.departed <> 1 OR e.position IS NOT NULL), count(e.position)
			FROM vote_electors e WHERE e.vote = v.id)`},
	{Says: "the ballots of an option are not those of its electorate", Query: `
		SELECT o.vote FROM vote_options o WHERE o.ballots <> (
			SELECT count(*) FROM vote_electors e WHERE e.vote = o.vote AND e.position = o.position)`},
	{Says: "it is open, but every remaining elector has voted", Query: `
		SELECT v.id FROM votes v WHERE v.closed_at IS NULL AND v.electors <= v.ballots`},
	{Says: "it is open with an outcome, or closed without one", Query: `
		SELECT v.id FROM votes v WHERE (v.closed_at IS NULL) <> (v.outcome = 0) OR (v.outcome = 0) <> (v.ending = 0)`},
	{Says: "it does not exist, but has options", Query: `
		SELECT o.vote FROM vote_options o LEFT JOIN votes v ON v.id = o.vote WHERE v.id IS NULL`},
	{Says: "it does not exist, but has electors", Query: `
		SELECT e.vote FROM vote_electors e LEFT JOIN votes v ON v.id = e.vote WHERE v.id IS NULL`},
}

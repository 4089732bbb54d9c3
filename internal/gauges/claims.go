package gauges

import (
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Claimants returns the names of the agents of a session that hold a claim. A name restricts the
// result to that agent.
func Claimants(q store.Querier, session int64, name string) (map[string]bool, error) {
	names := map[string]bool{}
	rows := q.Query(selectClaimants, session, name, name)
	for rows.Next() {
		var found string
		if err := rows.Scan(&found); err != nil {
			return nil, err
		}
		names[found] = true
	}
	return names, rows.Err()
}

// Holders counts the open claims of all sessions by their holders.
func Holders(q store.Querier) (all []work.Held, err error) {
	rows := q.Query(selectClaimsHeld)
	for rows.Next() {
		var h work.Held
		if err := rows.Scan(&h.Session, &h.Agent, &h.Claims, &h.Since); err != nil {
			return nil, err
		}
		all = append(all, h)
	}
	return all, rows.Err()
}

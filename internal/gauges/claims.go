package gauges

import (
	"time"

	"brokerd/internal/store"
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

// A Holder counts the claims that an agent of a session holds.
type Holder struct {
	Session int64
	Agent   string
	Claims  int64
	Since   time.Time // the time of the oldest claim
}

// Holders counts the open claims of all sessions by their holders.
func Holders(q store.Querier) (all []Holder, err error) {
	rows := q.Query(selectClaimsHeld)
	for rows.Next() {
		var h Holder
		if err := rows.Scan(&h.Session, &h.Agent, &h.Claims, &h.Since); err != nil {
			return nil, err
		}
		all = append(all, h)
	}
	return all, rows.Err()
}

package locks

import (
	"fmt"
	"math"

	"brokerd/internal/store"
)

// Checks returns what looks the tables of this package over, one function for each invariant. Each returns what is
// wrong, one line each, at most most, and may be called while the broker runs.
func Checks(most int) []func(q store.Querier) ([]string, error) {
	return []func(q store.Querier) ([]string, error){
		func(q store.Querier) ([]string, error) { return checkPaths(q, most) },
		func(q store.Querier) ([]string, error) { return checkHolders(q, most) },
		func(q store.Querier) ([]string, error) { return checkTickets(q, most) },
	}
}

// checkPaths looks for grants whose paths stand elsewhere than they should, and for paths of no grant.
func checkPaths(q store.Querier, most int) (problems []string, err error) {
	rows := q.Query(`SELECT p.fence, p.place FROM lock_paths p LEFT JOIN lock_grants g ON g.fence = p.fence AND g.session = p.session
		WHERE g.fence IS NULL LIMIT ?`, most)
	defer rows.Close()
	for rows.Next() {
		var fence int64
		var place string
		if err := rows.Scan(&fence, &place); err != nil {
			return nil, err
		}
		problems = append(problems, fmt.Sprintf("%q is held by fence %d, which nobody has", place, fence))
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	err = everyGrant(q, func(v *view, g *grant) (bool, error) {
		standing := map[string]bool{}
		err := v.overlapping(&g.claim, func(_ int, h *holder) bool {
			if h.fence == g.fence {
				standing[h.at] = true
			}
			return true
		})
		for _, name := range g.claim.names() {
			if !standing[name] {
				problems = append(problems, fmt.Sprintf("fence %d: nobody would find that it holds %q", g.fence, name))
			}
		}
		if g.ticket >= g.fence {
			problems = append(problems, fmt.Sprintf("fence %d is older than the ticket %d that it came from", g.fence, g.ticket))
		}
		return len(problems) < most, err
	})
	return problems, err
}

// checkHolders looks for grants of different owners that exclude each other.
func checkHolders(q store.Querier, most int) (problems []string, err error) {
	err = everyGrant(q, func(v *view, g *grant) (bool, error) {
		found, err := v.holders(&g.claim, g.owner, most)
		for _, h := range found {
			if h.fence > g.fence {
				problems = append(problems, fmt.Sprintf("%s and %s hold %s and %s at the same time (fences %d and %d)",
					g.owner, h.owner, g.claim.title(), h.at, g.fence, h.fence))
			}
		}
		return len(problems) < most, err
	})
	return problems, err
}

// everyGrant visits all grants of all sessions until visit returns false.
func everyGrant(q store.Querier, visit func(v *view, g *grant) (bool, error)) error {
	for after := int64(0); ; {
		found, err := readGrants(q.Query(selectEvery, after, grantPage))
		if err != nil || len(found) == 0 {
			return err
		}
		for _, g := range found {
			after = g.fence
			more, err := visit(&view{q: q, session: g.session, broad: true}, g)
			if err != nil || !more {
				return err
			}
		}
	}
}

// checkTickets looks for tickets that wait for nothing.
func checkTickets(q store.Querier, most int) (problems []string, err error) {
	sessions, err := sessionsOf(q.Query(selectWaiting))
	if err != nil {
		return nil, err
	}
	for _, id := range sessions {
		v := &view{q: q, session: id, broad: true}
		if v.queue, err = loadQueue(q, id); err != nil {
			return nil, err
		}
		waiting := v.queue.byOwner()
		for _, k := range v.queue.tickets {
			free, err := v.free(&k.claim, k.owner, k.place)
			if err != nil {
				return nil, err
			}
			if free && len(problems) < most {
				problems = append(problems, fmt.Sprintf("ticket %d: nobody is in the way of %s, who waits for %s", k.number, k.owner, k.claim.title()))
			}
			held, err := v.holders(&k.claim, k.owner, math.MaxInt)
			if err != nil {
				return nil, err
			}
			if circle, err := v.circle(k, held, waiting); err != nil || circle != nil && len(problems) < most {
				problems = append(problems, fmt.Sprintf("ticket %d is part of a deadlock: %s", k.number, spell(circle, k)))
			}
		}
	}
	return problems, nil
}

package locks

import "brokerd/internal/store"

// Holdings returns the locks and tokens that an agent holds, and its tickets, at most limit of each, oldest first.
func (t *Table) Holdings(q store.Querier, session int64, agent string, limit int) (held []Held, waiting []Place, err error) {
	v, err := t.view(q, session)
	if err != nil {
		return nil, nil, err
	}
	grants, err := readGrants(q.Query(selectAgents, session, agent))
	if err != nil {
		return nil, nil, err
	}
	for _, g := range grants[:min(len(grants), limit)] {
		held = append(held, v.held(g))
	}
	for _, k := range v.queue.tickets {
		if k.owner.Agent != agent || len(waiting) == limit {
			continue
		}
		p, err := v.standing(k)
		if err != nil {
			return nil, nil, err
		}
		waiting = append(waiting, p)
	}
	return held, waiting, nil
}

package locks

import (
	"slices"
	"time"

	"brokerd/internal/store"
)

// A ticket is a request that waits.
type ticket struct {
	number    int64
	session   int64
	owner     Owner
	role      string // the agent's
	claim     claim
	reason    string
	createdAt time.Time
	maxHold   time.Duration
	kept      bool // on purpose
}

// A queue has the tickets of a session in their order. What stands in the cache changes together with its rows.
type queue struct{ tickets []*ticket }

// queue returns the tickets of a session.
func (t *Table) queue(q store.Querier, session int64) (*queue, error) {
	if tx, ok := q.(*store.Tx); ok {
		return t.queues.Get(tx, session, func() (*queue, error) { return loadQueue(tx, session) })
	}
	return loadQueue(q, session)
}

func loadQueue(q store.Querier, session int64) (*queue, error) {
	rows := q.Query(selectTickets, session)
	defer rows.Close()
	list := &queue{}
	for rows.Next() {
		t := &ticket{}
		var kind, mode int
		var text string
		err := rows.Scan(&t.number, &t.session, &t.owner.Agent, &t.owner.Holder, &t.role, &kind, &mode, &text, &t.reason,
			&t.createdAt, &t.maxHold, &t.kept)
		if err == nil {
			t.claim, err = parseClaim(Kind(kind), Mode(mode), text)
		}
		if err != nil {
			return nil, err
		}
		list.tickets = append(list.tickets, t)
	}
	return list, rows.Err()
}

// find returns a ticket by its number, nil if it is not there.
func (q *queue) find(number int64) *ticket {
	i, found := slices.BinarySearchFunc(q.tickets, number, func(t *ticket, n int64) int { return int(t.number - n) })
	if !found {
		return nil
	}
	return q.tickets[i]
}

// of returns the tickets of an owner.
func (q *queue) of(o Owner) []*ticket {
	var own []*ticket
	for _, t := range q.tickets {
		if t.owner == o {
			own = append(own, t)
		}
	}
	return own
}

// remove takes a ticket out. Whoever walks over the old list is not disturbed.
func (q *queue) remove(t *ticket) {
	q.tickets = slices.DeleteFunc(slices.Clone(q.tickets), func(o *ticket) bool { return o == t })
}

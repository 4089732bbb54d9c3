package locks

import (
	"cmp"
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
	kept      bool  // on purpose
	place     int64 // in the queue: its number, or less than 0 in front of all that have theirs
}

// A queue has the tickets of a session in their order. A lockTx changes the cached queue and its
// tickets together with their rows, and calls changesQueue first.
type queue struct{ tickets []*ticket }

// changesQueue has the cached queue loaded again if the function is rolled back.
func (u *lockTx) changesQueue() { u.queues.Touch(u.tx, u.session) }

func loadQueue(q store.Querier, session int64) (*queue, error) {
	rows := q.Query(selectTickets, session)
	defer rows.Close()
	list := &queue{}
	for rows.Next() {
		t := &ticket{}
		var kind, mode int
		var text string
		err := rows.Scan(&t.number, &t.session, &t.owner.Agent, &t.owner.Holder, &t.role, &kind, &mode, &text, &t.reason,
			&t.createdAt, &t.maxHold, &t.kept, &t.place)
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
	for i, t := range q.tickets {
		if t.number == number {
			return t
		}
		if t.place > 0 { // from here on they are in the order of their numbers
			rest := q.tickets[i:]
			if i, found := slices.BinarySearchFunc(rest, number, func(t *ticket, n int64) int { return cmp.Compare(t.number, n) }); found {
				return rest[i]
			}
			return nil
		}
	}
	return nil
}

// add puts a ticket at its place. Whoever walks over the old list is not disturbed.
func (q *queue) add(t *ticket) {
	i, _ := slices.BinarySearchFunc(q.tickets, t.place, func(t *ticket, place int64) int { return cmp.Compare(t.place, place) })
	if i == len(q.tickets) {
		q.tickets = append(q.tickets, t)
		return
	}
	q.tickets = slices.Insert(slices.Clone(q.tickets), i, t)
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

// waitingFor returns the owner's ticket for the same claim, nil if there is none.
func (q *queue) waitingFor(c *claim, o Owner) *ticket {
	for _, t := range q.tickets {
		if t.owner == o && t.claim.same(c) {
			return t
		}
	}
	return nil
}

// byOwner returns the tickets of each owner.
func (q *queue) byOwner() map[Owner][]*ticket {
	all := map[Owner][]*ticket{}
	for _, t := range q.tickets {
		all[t.owner] = append(all[t.owner], t)
	}
	return all
}

// remove takes a ticket out. Whoever walks over the old list is not disturbed.
func (q *queue) remove(t *ticket) {
	q.tickets = slices.DeleteFunc(slices.Clone(q.tickets), func(o *ticket) bool { return o == t })
}

// size returns how many paths and tokens the tickets are for.
func (q *queue) size() (n int) {
	for _, t := range q.tickets {
		n += t.claim.size()
	}
	return n
}

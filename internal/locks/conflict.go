package locks

import (
	"encoding/json"
	"math"
	"slices"
	"time"

	"brokerd/internal/store"
)

// now is a ticket number after all others: that of a request which is being made.
const now = math.MaxInt64

// A view is a session's locks and tokens as a transaction or snapshot has them.
type view struct {
	q       store.Querier
	session int64
	queue   *queue
	broad   bool   // some grant covers more than single files
	near    *spots // nil for a snapshot
}

// view returns the locks of a session.
func (t *Table) view(q store.Querier, session int64) (view, error) {
	v := view{q: q, session: session}
	var err error
	if v.queue, err = t.queue(q, session); err != nil {
		return v, err
	}
	load := func() (broad bool, err error) {
		err = q.QueryRow(selectBroad, session).Scan(&broad)
		return broad, err
	}
	if tx, ok := q.(*store.Tx); ok {
		v.near = t.spots
		v.broad, err = t.broad.Get(tx, session, load)
	} else {
		v.broad, err = load()
	}
	return v, err
}

// A holder is a grant that overlaps something.
type holder struct {
	fence     int64
	owner     Owner
	mode      Mode
	at        string // what of it overlaps
	path      Path
	heldUntil time.Time
	reason    string
}

// overlapping visits the grants that overlap a claim, whatever the modes, once for each pair of resources; i counts the claim's. It ends
// when visit returns false.
func (v *view) overlapping(c *claim, visit func(i int, h *holder) bool) error {
	none := func(i int) bool { return v.near != nil && v.near.none(v.session, c, i) }
	if c.kind == Token {
		if none(0) {
			return nil
		}
		_, err := v.scan(nil, v.q.Query(selectAt, v.session, int(Token), c.token), func(h *holder) bool { return visit(0, h) })
		return err
	}
	for i := range c.paths {
		if none(i) {
			continue
		}
		p := &c.paths[i]
		look := func(query string, args ...any) (bool, error) {
			return v.scan(p, v.q.Query(query, append([]any{v.session, int(Lock)}, args...)...), func(h *holder) bool { return visit(i, h) })
		}
		at := place(*p)
		var more bool
		var err error
		if !v.broad {
			more, err = look(selectAt, at)
		} else {
			places, _ := json.Marshal(above(at)) // strings always marshal
			more, err = look(selectAbove, string(places))
		}
		if err == nil && more && p.Kind() != File {
			more, err = look(selectBelow, at, after(at))
		}
		if err != nil || !more {
			return err
		}
	}
	return nil
}

// after is the end of all places below one: the first text that does not begin with it.
func after(place string) string {
	if place == "" {
		return "\U0010FFFF"
	}
	return place[:len(place)-1] + string(place[len(place)-1]+1) // it ends in a slash
}

// scan visits the rows that overlap a path, all of them without one.
func (v *view) scan(p *Path, rows *store.Rows, visit func(*holder) bool) (more bool, err error) {
	defer rows.Close()
	for rows.Next() {
		var h holder
		var name string
		var mode int
		if err := rows.Scan(&h.at, &name, &h.fence, &h.owner.Agent, &h.owner.Holder, &mode, &h.heldUntil, &h.reason); err != nil {
			return false, err
		}
		h.mode = Mode(mode)
		if name != "" {
			h.at = name
		}
		if p != nil {
			if h.at == p.String() {
				h.path = *p
			} else if h.path, err = Parse(h.at, false); err != nil {
				return false, err
			} else if !Overlaps(h.path, *p) {
				continue
			}
		}
		if !visit(&h) {
			return false, nil
		}
	}
	return true, rows.Err()
}

// holders returns the grants of others that a claim conflicts with, each once, oldest first; no more than most.
func (v *view) holders(c *claim, o Owner, most int) ([]holder, error) {
	var found []holder
	err := v.overlapping(c, func(_ int, h *holder) bool {
		known := h.owner == o || c.mode == Shared && h.mode == Shared ||
			slices.ContainsFunc(found, func(other holder) bool { return other.fence == h.fence })
		if !known {
			found = append(found, *h)
		}
		return len(found) < most
	})
	slices.SortFunc(found, func(a, b holder) int { return int(a.fence - b.fence) })
	return found, err
}

// ahead returns the tickets of others that a claim conflicts with, of those before a place, and that it must wait for.
func (v *view) ahead(c *claim, o Owner, before int64) ([]*ticket, error) {
	var found []*ticket
	for _, t := range v.queue.tickets {
		if t.place < before && t.owner != o && t.claim.conflicts(c) {
			found = append(found, t)
		}
	}
	if len(found) == 0 {
		return nil, nil
	}
	waiting, err := v.waitersFor(o)
	return slices.DeleteFunc(found, func(t *ticket) bool { return waiting[t.owner] }), err
}

// free reports whether nobody is in the way of a claim.
func (v *view) free(c *claim, o Owner, before int64) (bool, error) {
	held, err := v.holders(c, o, 1)
	if err != nil || len(held) > 0 {
		return false, err
	}
	waiting, err := v.ahead(c, o, before)
	return len(waiting) == 0, err
}

// An Obstacle is somebody in the way of a request.
type Obstacle struct {
	Owner     Owner
	Resource  string
	Mode      Mode
	Revision  int64 // the fence, or the ticket if waiting
	Waiting   bool
	HeldUntil time.Time
	Reason    string
}

// mostObstacles is how many an answer names.
const mostObstacles = 20

// obstacles returns who is in the way of a claim, holders first, and how many owners that are.
func (t *Table) obstacles(v *view, c *claim, o Owner, before int64) (list []Obstacle, position int, err error) {
	owners := map[Owner]bool{}
	held, err := v.holders(c, o, math.MaxInt)
	if err != nil {
		return nil, 0, err
	}
	for _, h := range held {
		owners[h.owner] = true
		list = append(list, Obstacle{Owner: h.owner, Resource: h.at, Mode: h.mode, Revision: h.fence, HeldUntil: h.heldUntil, Reason: h.reason})
	}
	waiting, err := v.ahead(c, o, before)
	if err != nil {
		return nil, 0, err
	}
	for _, w := range waiting {
		owners[w.owner] = true
		list = append(list, Obstacle{Owner: w.owner, Resource: c.meets(&w.claim), Mode: w.claim.mode, Revision: w.number, Waiting: true, Reason: w.reason})
	}
	return list[:min(len(list), mostObstacles)], len(owners), nil
}

package locks

import (
	"math"
	"slices"
	"time"

	"brokerd/internal/deadline"
	"brokerd/internal/store"
)

// now is a ticket number after all others: that of a request which is being made.
const now = math.MaxInt64

// A view is a session's locks and tokens as a transaction or snapshot has them.
type view struct {
	q       store.Querier
	session int64
	queue   *queue
	ends    *deadline.Queue[alarm] // of the holds
	broad   bool                   // some grant covers more than single files
	near    *spots                 // nil for a snapshot
	found   map[area][]holder      // what stands in an area, as far as it was read to the end
	budget  *budget                // of a call that can be refused, or of the grant of a ticket; nil = no limit
	spent   int                    // about how much was read, compared and written: a path, row or pair is one
}

// An area is a place, or all places below it.
type area struct {
	at    string
	below bool
}

// view returns the locks of a session.
func (t *Table) view(q store.Querier, session int64) (view, error) {
	v := view{q: q, session: session, ends: t.alarms}
	loadBroad := func() (broad bool, err error) {
		err = q.QueryRow(selectBroad, session).Scan(&broad)
		return broad, err
	}
	var err error
	if tx, ok := q.(*store.Tx); ok {
		v.near = &t.spots
		if v.queue, err = t.queues.Get(tx, session, func() (*queue, error) { return loadQueue(tx, session) }); err == nil {
			v.broad, err = t.broad.Get(tx, session, loadBroad)
		}
	} else if v.queue, err = loadQueue(q, session); err == nil {
		v.broad, err = loadBroad()
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
		rows := v.q.Query(selectAt, v.session, int(Token), c.token)
		defer rows.Close()
		for rows.Next() {
			h, err := v.holder(rows, Token)
			if err != nil || !visit(0, &h) {
				return err
			}
		}
		return rows.Err()
	}
	for i := range c.paths {
		v.spent++
		if none(i) {
			continue
		}
		more, err := v.over(&c.paths[i], func(h *holder) bool { return visit(i, h) })
		if err != nil || !more {
			return err
		}
	}
	return nil
}

// over visits the grants that overlap a path. It reports whether visit was always true.
func (v *view) over(p *Path, visit func(*holder) bool) (more bool, err error) {
	overlaps := func(h *holder) (bool, error) {
		if h.path.String() == p.String() {
			v.count(1)
			return true, v.compared()
		}
		err := v.compare(h.path, *p)
		return err == nil && Overlaps(h.path, *p), err
	}
	at := place(*p)
	if p.Kind() != File {
		if more, err = v.within(area{at, true}, overlaps, visit); err != nil || !more {
			return more, err
		}
	}
	places := []string{at}
	if v.broad {
		places = above(at)
	}
	for _, at := range places {
		if v.near != nil && v.near.held.Get(spot{v.session, Lock, at}) == 0 {
			continue
		}
		if more, err = v.within(area{at: at}, overlaps, visit); err != nil || !more {
			return more, err
		}
	}
	return true, nil
}

// within visits the grants in an area that overlap something. It keeps what it has read to the end for
// the next path.
func (v *view) within(where area, overlaps func(*holder) (bool, error), visit func(*holder) bool) (more bool, err error) {
	if found, known := v.found[where]; known {
		for i := range found {
			if ok, err := overlaps(&found[i]); err != nil {
				return false, err
			} else if h := found[i]; ok && !visit(&h) {
				return false, nil
			}
		}
		return true, nil
	}
	var rows *store.Rows
	if where.below {
		rows = v.q.Query(selectBelow, v.session, int(Lock), where.at, after(where.at))
	} else {
		rows = v.q.Query(selectAt, v.session, int(Lock), where.at)
	}
	defer rows.Close()
	var found []holder
	for rows.Next() {
		h, err := v.holder(rows, Lock)
		if err != nil {
			return false, err
		}
		found = append(found, h)
		if ok, err := overlaps(&h); err != nil {
			return false, err
		} else if ok && !visit(&h) {
			return false, nil
		}
	}
	if v.found == nil {
		v.found = map[area][]holder{}
	}
	v.found[where] = found
	return true, rows.Err()
}

// holder reads a row of the queries of selectStanding.
func (v *view) holder(rows *store.Rows, kind Kind) (h holder, err error) {
	var name string
	var mode int
	if err := rows.Scan(&h.at, &name, &h.fence, &h.owner.Agent, &h.owner.Holder, &mode, &h.heldUntil, &h.reason); err != nil {
		return h, err
	}
	h.mode = Mode(mode)
	if name != "" {
		h.at = name
	}
	if kind == Lock {
		if h.path, err = Parse(h.at, false); err != nil {
			return h, err
		}
	}
	return h, v.read()
}

// after is the end of all places below one: the first text that does not begin with it.
func after(place string) string {
	if place == "" {
		return "\U0010FFFF"
	}
	return place[:len(place)-1] + string(place[len(place)-1]+1) // it ends in a slash
}

// holders returns the grants of others that a claim conflicts with, each once, oldest first; no more than most.
func (v *view) holders(c *claim, o Owner, most int) ([]holder, error) {
	var found []holder
	known := map[int64]bool{}
	err := v.overlapping(c, func(_ int, h *holder) bool {
		if h.owner != o && (c.mode != Shared || h.mode != Shared) && !known[h.fence] {
			known[h.fence] = true
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
		if t.place < before && t.owner != o && v.conflict(&t.claim, c) {
			found = append(found, t)
		}
		if err := v.compared(); err != nil {
			return nil, err
		}
	}
	if len(found) == 0 {
		return nil, nil
	}
	waiting, err := v.waitersFor(o)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(found, func(t *ticket) bool { return waiting[t.owner] }), nil
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

// obstacles returns who is in the way of a claim, holders first, and how many owners that are. Among very
// many it counts only those that it has found within the budget of a call.
func (v *view) obstacles(c *claim, o Owner, before int64) (list []Obstacle, position int, err error) {
	owners := map[Owner]bool{}
	if v.budget == nil {
		v.budget = newBudget()
		defer func() { v.budget = nil }()
	}
	held, err := v.holders(c, o, math.MaxInt)
	if err != nil && !tooBroad(err) {
		return nil, 0, err
	}
	for _, h := range held {
		owners[h.owner] = true
		list = append(list, Obstacle{Owner: h.owner, Resource: h.at, Mode: h.mode, Revision: h.fence, HeldUntil: h.heldUntil, Reason: h.reason})
	}
	waiting, err := v.ahead(c, o, before)
	if err != nil && !tooBroad(err) {
		return nil, 0, err
	}
	for _, w := range waiting {
		owners[w.owner] = true
		list = append(list, Obstacle{Owner: w.owner, Resource: c.meets(&w.claim), Mode: w.claim.mode, Revision: w.number, Waiting: true, Reason: w.reason})
	}
	return list[:min(len(list), mostObstacles)], len(owners), nil
}

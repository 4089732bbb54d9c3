package locks

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"brokerd/internal/identity"
)

// waitersFor returns the owners that wait for one, directly or not: see the package's comment. more are
// tickets that the owner is about to have. Errors: fault.Exhausted (LOCK_TOO_BROAD) beyond the budget.
func (v *view) waitersFor(o Owner, more ...*ticket) (map[Owner]bool, error) {
	var rest []*ticket
	owned := v.queue.byOwner()
	owned[o] = append(owned[o], more...)
	for _, t := range v.queue.tickets {
		if t.owner != o {
			rest = append(rest, t)
		}
	}
	found := map[Owner]bool{}
	for todo := []Owner{o}; len(todo) > 0 && len(rest) > 0; {
		next := todo[0]
		todo = todo[1:]
		held, err := v.heldBy(next)
		if err != nil {
			return nil, err
		}
		own := owned[next]
		var others []*ticket
		for _, t := range rest {
			if !found[t.owner] && v.waitsFor(t, held, own) {
				found[t.owner] = true
				todo = append(todo, t.owner)
			}
			if err := v.compared(); err != nil {
				return nil, err
			}
			if !found[t.owner] {
				others = append(others, t)
			}
		}
		rest = others
	}
	return found, nil
}

// heldBy returns what an owner holds: one claim for all locks of a mode, and one for each token.
func (v *view) heldBy(o Owner) ([]*claim, error) {
	grants, err := readGrants(v.q.Query(selectOwned, v.session, o.Agent, o.Holder))
	if err != nil {
		return nil, err
	}
	var held []*claim
	byMode := map[Mode][]Path{}
	for _, g := range grants {
		if err := v.read(); err != nil {
			return nil, err
		}
		v.spent += g.claim.size()
		if g.claim.kind == Token {
			held = append(held, &g.claim)
		} else {
			byMode[g.claim.mode] = append(byMode[g.claim.mode], g.claim.paths...)
		}
	}
	for mode, paths := range byMode {
		all := pathsClaim(mode, paths)
		held = append(held, &all)
	}
	return held, nil
}

// waitsFor reports whether a ticket waits for what another owner holds, or behind one of its tickets.
func (v *view) waitsFor(t *ticket, held []*claim, own []*ticket) bool {
	for _, c := range held {
		if v.conflict(c, &t.claim) {
			return true
		}
	}
	for _, o := range own {
		if o.place < t.place && v.conflict(&t.claim, &o.claim) {
			return true
		}
	}
	return false
}

// A link is one step of a circle: a ticket waits for a grant.
type link struct {
	ticket *ticket
	holder holder
}

// circle returns a cycle of owners each of which waits for a grant of the next, the first with the given
// ticket, which waits for the grants held; nil if there is none. waiting are the tickets of all owners.
// Errors: fault.Exhausted (LOCK_TOO_BROAD) beyond the budget.
func (v *view) circle(first *ticket, held []holder, waiting map[Owner][]*ticket) ([]link, error) {
	seen := map[Owner]bool{}
	var path []link
	var walk func(t *ticket, held []holder) (bool, error)
	walk = func(t *ticket, held []holder) (bool, error) {
		for _, h := range held {
			path = append(path, link{t, h})
			if h.owner == first.owner {
				return true, nil
			}
			if !seen[h.owner] {
				seen[h.owner] = true
				for _, next := range waiting[h.owner] {
					held, err := v.holders(&next.claim, next.owner, math.MaxInt)
					if err != nil {
						return false, err
					}
					if found, err := walk(next, held); found || err != nil {
						return found, err
					}
				}
			}
			path = path[:len(path)-1]
		}
		return false, nil
	}
	found, err := walk(first, held)
	if !found {
		return nil, err
	}
	return path, nil
}

// circleOf returns a cycle that a ticket of an owner is part of, nil if there is none, and the ticket that
// was examined last.
func (v *view) circleOf(o Owner) (t *ticket, circle []link, err error) {
	waiting := v.queue.byOwner()
	for _, t = range waiting[o] {
		held, err := v.holders(&t.claim, o, math.MaxInt)
		if err == nil {
			circle, err = v.circle(t, held, waiting)
		}
		if circle != nil || err != nil {
			return t, circle, err
		}
	}
	return t, nil, nil
}

// letPass grants what is free and, but to the given ticket, what may pass earlier tickets of some owners.
func (u *lockTx) letPass(waiting map[Owner]bool, t *ticket) error {
	return u.settle(func(queue []*ticket, i int) bool {
		r := queue[i]
		return len(waiting) > 0 && r != t && slices.ContainsFunc(queue[:i], func(w *ticket) bool {
			return waiting[w.owner] && w.owner != r.owner && u.conflict(&w.claim, &r.claim)
		})
	})
}

// untangle ends the cycles that a grant has closed, if the grant's owner waits for something else. The caller
// settles what they free, after the last of them: a ticket that is about to end must not count as waiting.
//
// The grant cannot be refused any more, so a search beyond the budget ends the owner's ticket that it began
// with: no deadlock remains undetected.
func (u *lockTx) untangle(o Owner) error {
	if len(u.queue.of(o)) == 0 {
		return nil
	}
	u.budget.pairs = maxPairs
	for {
		t, circle, err := u.circleOf(o)
		switch {
		case tooBroad(err):
			err = u.refuse(t, err)
		case err != nil || circle == nil:
			return err
		default:
			t = youngest(circle)
			err = u.abort(circle, t)
			u.freed = append(u.freed, &t.claim)
		}
		if err != nil {
			return err
		}
	}
}

// refuse ends a ticket whose grant takes more than the budget, and sends the error to the calls that wait for
// it. The caller grants what the ticket has blocked.
func (u *lockTx) refuse(t *ticket, why error) error {
	if u.aborted == nil {
		u.aborted = map[int64]error{}
	}
	u.aborted[t.number] = why
	f := seizeTx{lockTx: u, by: identity.System, reason: why.Error(), refusal: why}
	return f.takeTicket(t)
}

// abort ends a ticket because it closes a circle, and sends the reason to the calls that wait for it. The
// caller grants what the ticket has blocked.
func (u *lockTx) abort(circle []link, t *ticket) error {
	if err := u.tellDeadlock(circle, t); err != nil {
		return err
	}
	calls := u.drop(t)
	if u.aborted == nil {
		u.aborted = map[int64]error{}
	}
	u.aborted[t.number] = deadlock(circle, t)
	tell(u.tx, calls, verdict{err: u.aborted[t.number]})
	if len(calls) > 0 {
		return nil
	}
	return u.notify(t.owner, &t.claim, 0, "deadlock",
		"your ticket for "+t.claim.spoken()+" was ended: it was part of a deadlock",
		details{{"ticket", t.number}, {"circle", spell(circle, t)}})
}

// youngest returns the ticket of a circle that was made last.
func youngest(circle []link) *ticket {
	last := circle[0].ticket
	for _, l := range circle {
		if l.ticket.number > last.number {
			last = l.ticket
		}
	}
	return last
}

// spell writes a circle out, beginning with the given ticket's owner.
func spell(circle []link, first *ticket) string {
	from := 0
	for i, l := range circle {
		if l.ticket == first {
			from = i
		}
	}
	var b strings.Builder
	for i := range circle {
		l := circle[(from+i)%len(circle)]
		if i > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "%s waits for %s %s, held by %s (fence %d)",
			l.ticket.owner, l.ticket.claim.kind.noun(), l.holder.at, l.holder.owner, l.holder.fence)
	}
	return b.String()
}

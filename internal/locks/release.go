package locks

import (
	"context"
	"slices"

	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

// A ReleaseWish says what an owner gives back.
type ReleaseWish struct {
	Fences  []int64  // whoever the holder
	Tickets []int64  // whoever the holder
	Paths   []string // of the holder's
	Holder  string
	All     bool // of the holder's locks
}

// A Released says what was given back.
type Released struct {
	Released  int // paths held
	Cancelled int // requests that waited
	Revision  int64
}

// Release gives back what the caller holds or waits for, and grants it to whoever is next. What it does not hold is left out.
// fault.Precondition without a registered agent, fault.Invalid for a path.
func (t *Table) Release(ctx context.Context, c identity.Caller, req idempotency.Request, g ReleaseWish) (Released, error) {
	r, err := newReleaseCall(t, c, req, g)
	if err != nil {
		return Released{}, err
	}
	err = t.store.Drain(ctx, r.decide)
	return r.given, err
}

// A releaseCall is one call of Release.
type releaseCall struct {
	table  *Table
	caller identity.Caller
	req    idempotency.Request
	wish   ReleaseWish
	named  claim // its paths
	given  Released
}

func newReleaseCall(t *Table, c identity.Caller, req idempotency.Request, wish ReleaseWish) (*releaseCall, error) {
	named, err := namedClaim(wish.Paths, false)
	if err != nil {
		return nil, err
	}
	return &releaseCall{table: t, caller: c, req: req, wish: wish, named: named}, nil
}

// decide is the part of it that runs in the writer.
func (g *releaseCall) decide(tx *store.Tx) error {
	_, err := g.req.Do(tx, &g.given, func() error {
		session, agent, err := g.table.acting(tx, g.caller)
		if err != nil {
			return err
		}
		if session.Settings.GetFoldCase() {
			if g.named, err = namedClaim(g.wish.Paths, true); err != nil {
				return err
			}
		}
		u, err := g.table.lockTx(tx, session.ID)
		if err != nil {
			return err
		}
		r := releaseTx{lockTx: u, owner: Owner{agent.Name, g.wish.Holder}}
		g.given, err = r.run(g.wish, &g.named)
		return err
	})
	return err
}

// A releaseTx is one function that releases.
type releaseTx struct {
	*lockTx
	owner Owner
	given Released
	less  []*ticket // that wait for less than before
}

func (r *releaseTx) run(g ReleaseWish, named *claim) (Released, error) {
	for _, fence := range g.Fences {
		held, err := r.find(fence)
		if err == nil {
			err = r.grantBack(held)
		}
		if err != nil {
			return Released{}, err
		}
	}
	for _, number := range g.Tickets {
		if err := r.ticketBack(r.queue.find(number)); err != nil {
			return Released{}, err
		}
		held, err := findGrant(r.tx, selectGranted, r.session, r.owner.Agent, number) // it was granted meanwhile
		if err == nil {
			err = r.grantBack(held)
		}
		if err != nil {
			return Released{}, err
		}
	}
	if len(named.paths) > 0 || g.All {
		if err := r.ownBack(g, named); err != nil {
			return Released{}, err
		}
	}
	return r.given, r.settle(func(queue []*ticket, i int) bool { return slices.Contains(r.less, queue[i]) })
}

// find returns a grant; nil if there is none.
func (r *releaseTx) find(fence int64) (*grant, error) {
	if g := r.callers.answers.Get(fence).made; g != nil {
		return g, nil
	}
	return findGrant(r.tx, selectGrant, fence)
}

// grantBack ends a grant if it is the agent's.
func (r *releaseTx) grantBack(g *grant) error {
	if g == nil || g.session != r.session || g.owner.Agent != r.owner.Agent {
		return nil
	}
	if err := r.released(g.owner, g.role, &g.claim, details{{"fence", g.fence}}); err != nil {
		return err
	}
	r.given.Released += max(len(g.claim.paths), 1)
	r.freed = append(r.freed, &g.claim)
	return r.end(g)
}

func (r *releaseTx) released(o Owner, role string, c *claim, more details) (err error) {
	r.given.Revision, err = r.append(eventTypes{"lock.released", "token.released"}, 0, o, role, c, o.String()+" has released "+c.title(), more)
	return err
}

// ticketBack ends a ticket if it is the agent's.
func (r *releaseTx) ticketBack(t *ticket) error {
	if t == nil || t.owner.Agent != r.owner.Agent {
		return nil
	}
	var err error
	r.given.Revision, err = r.append(eventTypes{"lock.cancelled", "token.cancelled"}, events.Debug, t.owner, t.role, &t.claim, t.owner.String()+" waits for "+t.claim.title()+" no more",
		details{{"ticket", t.number}})
	if err != nil {
		return err
	}
	r.given.Cancelled++
	r.freed = append(r.freed, &t.claim)
	tell(r.tx, r.drop(t), verdict{err: errCancelled(t)})
	return nil
}

func errCancelled(t *ticket) error {
	return fault.New(fault.Precondition, "TICKET_RELEASED", "the place in the queue for %s was given up while this call waited for it", t.claim.title())
}

// ownBack gives back paths, or all locks of the owner.
func (r *releaseTx) ownBack(g ReleaseWish, named *claim) error {
	held, err := readGrants(r.tx.Query(selectOwned, r.session, r.owner.Agent, r.owner.Holder))
	if err != nil {
		return err
	}
	for _, h := range held {
		switch {
		case h.claim.kind != Lock:
		case g.All:
			err = r.grantBack(h)
		default:
			err = r.pathsBack(h, named)
		}
		if err != nil {
			return err
		}
	}
	for _, t := range r.queue.of(r.owner) {
		switch {
		case t.claim.kind != Lock:
		case g.All:
			err = r.ticketBack(t)
		default:
			if rest, gone := without(t.claim.paths, named); len(rest) == 0 {
				err = r.ticketBack(t)
			} else if len(gone) > 0 {
				err = r.lessen(t, rest, gone)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// without splits paths into those that are not named and those that are.
func without(paths []Path, named *claim) (rest, gone []Path) {
	for _, p := range paths {
		if named.has(p.String()) {
			gone = append(gone, p)
		} else {
			rest = append(rest, p)
		}
	}
	return rest, gone
}

// pathsBack takes paths out of a grant, and ends it with the last one.
func (r *releaseTx) pathsBack(g *grant, named *claim) error {
	rest, gone := without(g.claim.paths, named)
	switch {
	case len(gone) == 0:
		return nil
	case len(rest) == 0:
		return r.grantBack(g)
	}
	freed := &claim{kind: Lock, mode: g.claim.mode, paths: gone}
	if err := r.released(g.owner, g.role, freed, details{{"fence", g.fence}, {"left", len(rest)}}); err != nil {
		return err
	}
	r.given.Released += len(gone)
	r.freed = append(r.freed, freed)
	r.clear(g, freed)
	if g.claim.broad() {
		r.rebroaden()
	}
	g.claim.paths = rest
	r.callers.changed(r.tx, g)
	r.tx.Exec(updatePaths, g.claim.text(), g.claim.globs(), g.claim.broad(), g.fence)
	return nil
}

// lessen takes paths out of a ticket.
func (r *releaseTx) lessen(t *ticket, rest, gone []Path) error {
	freed := &claim{kind: Lock, mode: t.claim.mode, paths: gone}
	var err error
	r.given.Revision, err = r.append(eventTypes{"lock.cancelled", "token.cancelled"}, events.Debug, t.owner, t.role, freed, t.owner.String()+" waits for "+freed.title()+" no more",
		details{{"ticket", t.number}, {"left", len(rest)}})
	if err != nil {
		return err
	}
	r.changesQueue()
	t.claim.paths = rest
	r.tx.Exec(updateTicketPaths, t.claim.text(), t.number)
	r.freed = append(r.freed, freed)
	r.less = append(r.less, t)
	return nil
}

package locks

import (
	"context"
	"math"

	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

// A Seizure says what an operator takes away.
type Seizure struct {
	Revisions []int64  // fences or tickets of locks
	Paths     []string // everything held that conflicts with an exclusive lock on one of these
	Agent     string   // everything that it holds and waits for, tokens too
	Reason    string
}

// A Seized says what was taken away.
type Seized struct {
	Locks    []Held
	Revision int64
}

// ForceRelease takes locks and tickets from their owners, notifies them of the reason, and grants what is
// free to the next requests. Errors: fault.Invalid for a path, fault.Exhausted (LOCK_TOO_BROAD,
// TOO_MANY_RELEASES) if one function of the writer cannot release all of it.
func (t *Table) ForceRelease(ctx context.Context, c identity.Caller, req idempotency.Request, s Seizure) (Seized, error) {
	named, err := namedClaim(s.Paths, false)
	if err != nil {
		return Seized{}, err
	}
	var seized Seized
	err = t.store.Drain(ctx, func(tx *store.Tx) error {
		_, err := req.Do(tx, &seized, func() error {
			session, err := t.dir.Session(tx, c.Session)
			if err != nil {
				return err
			}
			if _, err := t.dir.Acting(tx, session.ID, c); err != nil {
				return err
			}
			if session.Settings.GetFoldCase() {
				if named, err = namedClaim(s.Paths, true); err != nil {
					return err
				}
			}
			u, err := t.lockTx(tx, session.ID)
			if err != nil {
				return err
			}
			u.budget = newBudget()
			f := seizeTx{lockTx: u, by: c.Name(), reason: s.Reason}
			if err := f.run(s, &named); err != nil {
				return err
			}
			seized = f.seized
			u.budget = nil
			return u.settle(nil)
		})
		return err
	})
	return seized, err
}

// A seizeTx is one function that takes locks and tickets away.
type seizeTx struct {
	*lockTx
	by, reason string
	refusal    error // for the calls that wait for a ticket; nil = TICKET_REVOKED
	seized     Seized
	taken      int
}

// maxTaken is how much one call takes away: the paths and tokens, and two for each request.
const maxTaken = 3000

// count counts a request that is taken away. Errors: fault.Exhausted (TOO_MANY_RELEASES) beyond maxTaken.
func (f *seizeTx) count(c *claim) error {
	if f.taken += 2 + c.size(); f.taken <= maxTaken {
		return nil
	}
	return exhausted("TOO_MANY_RELEASES", maxTaken,
		"the call would release more than %d paths, each request counted as two more: release them in several calls, by path or revision", maxTaken)
}

func (f *seizeTx) run(s Seizure, named *claim) error {
	for _, number := range s.Revisions {
		g, err := findGrant(f.tx, selectGrant, number)
		if err == nil && g != nil && g.session == f.session && g.claim.kind == Lock {
			err = f.take(g)
		}
		if k := f.queue.find(number); err == nil && k != nil && k.claim.kind == Lock {
			err = f.takeTicket(k)
		}
		if err != nil {
			return err
		}
	}
	if len(named.paths) > 0 {
		found, err := f.holders(named, Owner{}, math.MaxInt)
		if err != nil {
			return err
		}
		for _, h := range found {
			g, err := findGrant(f.tx, selectGrant, h.fence)
			if err == nil && g != nil {
				err = f.take(g)
			}
			if err != nil {
				return err
			}
		}
	}
	if s.Agent == "" {
		return nil
	}
	return f.each(s.Agent, f.take, f.takeTicket)
}

// each visits all grants and tickets of an agent.
func (u *lockTx) each(agent string, grants func(*grant) error, tickets func(*ticket) error) error {
	for _, k := range u.queue.tickets {
		if k.owner.Agent == agent {
			if err := tickets(k); err != nil {
				return err
			}
		}
	}
	held, err := readGrants(u.tx.Query(selectAgents, u.session, agent))
	if err != nil {
		return err
	}
	for _, g := range held {
		if err := grants(g); err != nil {
			return err
		}
	}
	return nil
}

func (f *seizeTx) take(g *grant) error {
	err := f.count(&g.claim)
	if err != nil {
		return err
	}
	f.seized.Revision, err = f.append(eventTypes{"lock.revoked", "token.revoked"}, events.Warning, g.owner, g.role, &g.claim,
		f.by+" has taken "+g.claim.title()+" from "+g.owner.String()+": "+f.reason, details{{"fence", g.fence}, {"reason", f.reason}, {"by", f.by}})
	if err != nil {
		return err
	}
	f.seized.Locks = append(f.seized.Locks, f.held(g))
	f.freed = append(f.freed, &g.claim)
	if err := f.end(g); err != nil {
		return err
	}
	return f.notify(g.owner, &g.claim, 0, "revoked", f.by+" has revoked "+g.claim.spoken()+", which you held: "+f.reason,
		details{{"fence", g.fence}, {"reason", f.reason}, {"by", f.by}})
}

func (f *seizeTx) takeTicket(k *ticket) error {
	err := f.count(&k.claim)
	if err != nil {
		return err
	}
	f.seized.Revision, err = f.append(eventTypes{"lock.revoked", "token.revoked"}, events.Warning, k.owner, k.role, &k.claim,
		f.by+" has ended the wait of "+k.owner.String()+" for "+k.claim.title()+": "+f.reason, details{{"ticket", k.number}, {"reason", f.reason}, {"by", f.by}})
	if err != nil {
		return err
	}
	f.freed = append(f.freed, &k.claim)
	calls := f.drop(k)
	why := f.refusal
	if why == nil {
		why = fault.New(fault.Precondition, "TICKET_REVOKED",
			"%s has ended the wait for %s: %s", f.by, k.claim.title(), f.reason)
	}
	tell(f.tx, calls, verdict{err: why})
	if len(calls) > 0 {
		return nil
	}
	return f.notify(k.owner, &k.claim, 0, "revoked", f.by+" has ended your wait for "+k.claim.spoken()+": "+f.reason,
		details{{"ticket", k.number}, {"reason", f.reason}, {"by", f.by}})
}

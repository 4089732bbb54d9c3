package locks

import (
	"context"
	"strconv"
	"time"

	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

// Extend lets grants of the caller be held longer, counted from now, all or none, and returns their ends in the order of the fences. With maxHold
// 0 each is held as long as was asked for. fault.Precondition without a registered agent, and (LOCK_LOST) if it does not hold one
// of them.
func (t *Table) Extend(ctx context.Context, c identity.Caller, req idempotency.Request, fences []int64, maxHold time.Duration) ([]time.Time, error) {
	e := extendCall{table: t, caller: c, req: req, fences: fences, maxHold: maxHold}
	err := t.store.Write(ctx, e.decide)
	return e.ends, err
}

// An extendCall is one call of Extend.
type extendCall struct {
	table   *Table
	caller  identity.Caller
	req     idempotency.Request
	fences  []int64
	maxHold time.Duration
	ends    []time.Time
}

// decide is the part of it that runs in the writer.
func (e *extendCall) decide(tx *store.Tx) error {
	_, err := e.req.Do(tx, &e.ends, func() error {
		session, agent, err := e.table.acting(tx, e.caller)
		if err != nil {
			return err
		}
		u, err := e.table.lockTx(tx, session.ID)
		if err != nil {
			return err
		}
		e.ends = make([]time.Time, len(e.fences))
		for i, fence := range e.fences {
			g, err := findGrant(tx, selectGrant, fence)
			if err != nil {
				return err
			}
			if g == nil || g.session != session.ID || g.owner.Agent != agent.Name || g.claim.kind != Lock {
				return lost("LOCK_LOST", agent.Name, fence)
			}
			if e.ends[i], err = u.extend(g, e.maxHold); err != nil {
				return err
			}
		}
		return nil
	})
	return err
}

func lost(reason, agent string, fence int64) error {
	return fault.New(fault.Precondition, reason, "the agent %q does not hold what was granted at %d any more: stop working on it, and ask for it again",
		agent, fence).With("fence", strconv.FormatInt(fence, 10))
}

// extend begins the hold of a grant anew, and returns its end.
func (u *lockTx) extend(g *grant, maxHold time.Duration) (time.Time, error) {
	if maxHold == 0 {
		maxHold = g.maxHold
	}
	_, err := u.append(eventTypes{"lock.extended", "token.extended"}, events.Debug, g.owner, g.role, &g.claim,
		g.owner.String()+" holds "+g.claim.title()+" for longer", details{{"fence", g.fence}, {"max_hold_seconds", maxHold.Seconds()}})
	if err != nil {
		return time.Time{}, err
	}
	end := u.tx.Now().Add(maxHold)
	u.tx.Exec(updateHold, maxHold, end, g.fence)
	if moot := g.claim.kind.noun() + "_expiring"; g.warned || !g.collected {
		if !g.collected {
			moot = "" // it was granted, or passed, to an owner that knows of it by now
		}
		if err := u.withdraw(g.fence, moot); err != nil {
			return time.Time{}, err
		}
	}
	u.tx.OnCommit(func() {
		u.alarms.Set(alarm{holdAlarm, g.fence}, u.tx.Now().Add(warnAfter(maxHold)))
		u.alarms.Remove(alarm{collectAlarm, g.fence})
	})
	return end, nil
}

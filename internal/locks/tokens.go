package locks

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

// A tokenRow is what is kept of a token whoever holds it.
type tokenRow struct {
	name     string // TYPE/SCOPE
	longest  time.Duration
	revision int64     // of its last change
	released time.Time // when a hold last ended without a pass; zero = never
	passed   int64     // the fence that it was passed on under; 0 = never
	passedBy string
	note     string
}

// findToken returns a token, nil if nobody has ever asked for it.
func findToken(q store.Querier, session int64, name string) (*tokenRow, error) {
	row := &tokenRow{name: name}
	err := q.QueryRow(selectTokenRow, session, name).Scan(&row.longest, &row.revision, &row.released, &row.passed, &row.passedBy, &row.note)
	if errors.Is(err, store.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read token: %w", err)
	}
	return row, nil
}

// hold returns how long the token may be held by who asks for it that long; 0 = does not say.
func (r *tokenRow) hold(asked time.Duration) (time.Duration, error) {
	if asked == 0 {
		return min(defaultHold, r.longest), nil
	}
	if asked > r.longest {
		return 0, fault.Field("max_hold", "is %v; whoever first acquired %s has set its longest hold to %v", asked, short(r.name), r.longest)
	}
	return asked, nil
}

// A first is a token that was passed to an agent when it was not alive: it comes before all others.
type first struct {
	revision int64 // 0 = there is none
	passedBy string
	note     string
}

// place is where its ticket stands: in front of all that were asked for.
func (f first) place() int64 { return -f.revision }

func findFirst(q store.Querier, session int64, token, agent string) (f first, err error) {
	err = q.QueryRow(selectFirst, session, token, agent).Scan(&f.revision, &f.passedBy, &f.note)
	if errors.Is(err, store.ErrNoRows) {
		return first{}, nil
	}
	return f, err
}

// passed notes that what was granted was passed to its owner.
func (u *lockTx) passed(g *grant) {
	u.tx.Exec(updatePassed, g.fence, g.passedBy, g.note, u.session, g.claim.token)
}

// firstServed notes that a token was granted to somebody who perhaps came before all others.
func (u *lockTx) firstServed(g *grant) error {
	if g.claim.kind != Token || g.owner.Agent == "" {
		return nil
	}
	f, err := findFirst(u.tx, u.session, g.claim.token, g.owner.Agent)
	if err != nil || f.revision == 0 {
		return err
	}
	if err := u.forgetFirst(f, g.claim.token, g.owner.Agent); err != nil {
		return err
	}
	if g.passedBy != "" {
		return nil
	}
	g.passedBy, g.note = f.passedBy, f.note
	u.passed(g)
	return nil
}

// forgetFirst ends an agent's first place, and withdraws the notice about it.
func (u *lockTx) forgetFirst(f first, token, agent string) error {
	u.tx.Exec(deleteFirst, u.session, token, agent)
	return u.withdraw(f.revision, "")
}

// token looks at what is special about a token before it is asked for like anything else: how long it may be held, whether it was passed to
// the caller, and whether the caller comes first. It reports whether the request is answered.
func (a *acquireCall) token(u *lockTx, o Owner, role string) (answered bool, err error) {
	row, err := findToken(u.tx, u.session, a.wanted.token)
	if err != nil {
		return false, err
	}
	if row == nil {
		row = &tokenRow{name: a.wanted.token, longest: a.wish.Longest}
		if row.longest == 0 {
			row.longest = mostHold
		}
	}
	if asked := a.wish.Longest; asked != 0 && asked != row.longest {
		return false, fault.Field("longest_hold", "is %v; the first acquirer of %s has set it to %v, which stays in force: omit it",
			asked, short(row.name), row.longest)
	}
	if a.maxHold, err = row.hold(a.wish.MaxHold); err != nil {
		return false, err
	}
	if row.revision == 0 && !a.wish.DryRun {
		u.tx.Exec(insertToken, u.session, row.name, row.longest)
	}
	g, err := findGrant(u.tx, selectToken, u.session, row.name)
	if err != nil {
		return false, err
	}
	if g != nil && row.passed == g.fence {
		g.passedBy, g.note = row.passedBy, row.note
		if g.owner == o {
			return true, a.again(u, g)
		}
		if (!g.collected || g.owner.Agent == "") && g.passedTo(o, role) {
			return true, a.takeOver(u, g, o, role)
		}
	}
	a.first, err = findFirst(u.tx, u.session, row.name, o.Agent)
	return false, err
}

// passedTo reports whether an uncollected grant is for an owner: it was passed to its agent, whichever the holder, or to its role.
func (g *grant) passedTo(o Owner, role string) bool {
	if g.owner.Agent == "" {
		return g.role == role
	}
	return g.owner == Owner{Agent: o.Agent}
}

// takeOver collects a grant that was passed to the caller's role, or to its agent and no particular holder.
func (a *acquireCall) takeOver(u *lockTx, g *grant, o Owner, role string) error {
	a.answer = Answer{Outcome: Granted, HeldUntil: g.until(u.alarms), PassedBy: g.passedBy, Note: g.note}
	if a.wish.DryRun {
		return errOpen
	}
	a.answer.Fence, a.answer.sent = g.fence, u.callers.promise(u.tx, g.fence, false)
	count(u.tx, &u.spots.owned, agentKey{u.session, g.owner.Agent}, -1)
	count(u.tx, &u.spots.owned, agentKey{u.session, o.Agent}, 1)
	g.owner, g.role = o, role
	u.callers.changed(u.tx, g)
	u.tx.Exec(updateOwner, o.Agent, o.Holder, role, g.fence)
	if err := u.collect(g); err != nil {
		return err
	}
	if mine := u.queue.waitingFor(&a.wanted, o); mine != nil {
		if err := u.answer(u.drop(mine), g); err != nil {
			return err
		}
	}
	if err := u.firstServed(g); err != nil {
		return err
	}
	return u.settled(g)
}

// settled does what follows when a token or lock has a new owner that may wait for something else: it ends
// cycles, and grants the requests that may pass those that wait for the new owner.
func (u *lockTx) settled(g *grant) error {
	u.budget = &budget{rows: ticketRows, pairs: maxPairs}
	err := u.untangle(g.owner)
	if err != nil {
		return err
	}
	waiting, err := u.waitersFor(g.owner)
	u.budget = nil
	if tooBroad(err) { // each ticket gets its own budget
		u.settleLater(math.MinInt64)
	} else if err != nil {
		return err
	}
	return u.letPass(waiting, nil)
}

// A TokenRef names a token and which of the caller's workers is meant.
type TokenRef struct {
	Token  string // TYPE/SCOPE
	Holder string
}

// errTokenLost is the error for a token that the caller does not hold.
func errTokenLost(agent, token string) error {
	return fault.New(fault.Precondition, "TOKEN_LOST", "the agent %q does not hold the token %s (any more): stop working on it, and acquire it again", agent, short(token))
}

// heldToken returns a token and its grant, which the owner must have.
func (v *view) heldToken(o Owner, token string) (*tokenRow, *grant, error) {
	row, err := findToken(v.q, v.session, token)
	if err != nil {
		return nil, nil, err
	}
	if row == nil {
		return nil, nil, errTokenLost(o.Agent, token)
	}
	g, err := findGrant(v.q, selectToken, v.session, token)
	if err == nil && (g == nil || g.owner != o) {
		err = errTokenLost(o.Agent, token)
	}
	return row, g, err
}

// ExtendToken lets a token be held longer, counted from now, as long as was asked for if maxHold is 0, but no longer than the token's longest
// hold since it was granted; it returns the end. fault.Precondition without a registered agent, and (TOKEN_LOST) if it does not hold it; fault.Invalid
// beyond the longest hold.
func (t *Table) ExtendToken(ctx context.Context, c identity.Caller, req idempotency.Request, which TokenRef, maxHold time.Duration) (time.Time, error) {
	var end time.Time
	err := t.store.Write(ctx, func(tx *store.Tx) error {
		_, err := req.Do(tx, &end, func() error {
			u, owner, err := t.calling(tx, c, which)
			if err != nil {
				return err
			}
			row, g, err := u.heldToken(owner, which.Token)
			if err != nil {
				return err
			}
			lasts := g.maxHold
			if maxHold != 0 {
				if lasts, err = row.hold(maxHold); err != nil {
					return err
				}
			}
			lasts = min(lasts, g.grantedAt.Add(row.longest).Sub(tx.Now()))
			if lasts <= 0 { // after a restart, which gives everybody more
				end = g.until(u.alarms)
				return nil
			}
			end, err = u.extend(g, lasts)
			return err
		})
		return err
	})
	return end, err
}

// calling returns a lockTx for the caller, and the owner as which it acts.
func (t *Table) calling(tx *store.Tx, c identity.Caller, which TokenRef) (*lockTx, Owner, error) {
	session, agent, err := t.acting(tx, c)
	if err != nil {
		return nil, Owner{}, err
	}
	u, err := t.lockTx(tx, session.ID)
	return u, Owner{agent.Name, which.Holder}, err
}

// ReleaseToken gives a token back, and what else the owner has of it: its place in the queue, or the first one. It is granted to whoever is next. What the caller
// does not have is left out. fault.Precondition without a registered agent.
func (t *Table) ReleaseToken(ctx context.Context, c identity.Caller, req idempotency.Request, which TokenRef) (Released, error) {
	var given Released
	err := t.store.Drain(ctx, func(tx *store.Tx) error {
		_, err := req.Do(tx, &given, func() error {
			u, owner, err := t.calling(tx, c, which)
			if err != nil {
				return err
			}
			r := releaseTx{lockTx: u, owner: owner}
			g, err := findGrant(tx, selectToken, u.session, which.Token)
			if err == nil && g != nil && (g.owner == owner || !g.collected && g.owner == Owner{Agent: owner.Agent}) {
				err = r.grantBack(g)
			}
			if err != nil {
				return err
			}
			wanted := claim{kind: Token, mode: Exclusive, token: which.Token}
			if mine := u.queue.waitingFor(&wanted, owner); mine != nil {
				if err := r.ticketBack(mine); err != nil {
					return err
				}
			}
			f, err := findFirst(tx, u.session, which.Token, owner.Agent)
			if err == nil && f.revision != 0 {
				err = u.forgetFirst(f, which.Token, owner.Agent)
			}
			if err != nil {
				return err
			}
			given = r.given
			return u.settle(nil)
		})
		return err
	})
	return given, err
}

// A Revoked says whose token was taken away.
type Revoked struct {
	Agent    string
	Revision int64
}

// RevokeToken takes a token from its owner and grants it to the next request. With a ticket, it ends the
// wait of that request instead. It notifies the owner.
func (t *Table) RevokeToken(
	ctx context.Context, c identity.Caller, req idempotency.Request, token string, ticket int64, reason string,
) (Revoked, error) {
	var revoked Revoked
	err := t.store.Drain(ctx, func(tx *store.Tx) error {
		_, err := req.Do(tx, &revoked, func() error {
			session, err := t.dir.Session(tx, c.Session)
			if err != nil {
				return err
			}
			if _, err := t.dir.Acting(tx, session.ID, c); err != nil {
				return err
			}
			u, err := t.lockTx(tx, session.ID)
			if err != nil {
				return err
			}
			f := seizeTx{lockTx: u, by: c.Name(), reason: reason}
			if ticket != 0 {
				k := u.queue.find(ticket)
				if k == nil || k.claim.kind != Token || k.claim.token != token {
					return nil
				}
				err = f.takeTicket(k)
				revoked.Agent = k.owner.Agent
			} else {
				g, found := findGrant(tx, selectToken, session.ID, token)
				if found != nil || g == nil {
					return found
				}
				err = f.take(g)
				revoked.Agent = g.owner.Agent
			}
			if err != nil {
				return err
			}
			revoked.Revision = f.seized.Revision
			return u.settle(nil)
		})
		return err
	})
	return revoked, err
}

package locks

import (
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/store"
)

// Find returns the name of the lock or token that an agent holds by a fence: the paths, separated by a
// space and clipped, or TYPE/SCOPE. found is false if the agent does not hold it.
func (t *Table) Find(
	q store.Querier, session int64, agent string, fence int64,
) (name string, token, found bool, err error) {
	g, err := findGrant(q, selectGrant, fence)
	if err != nil || g == nil || g.session != session || g.owner.Agent != agent {
		return "", false, false, err
	}
	return lossName(&g.claim), g.claim.kind == Token, true, nil
}

// Transfer moves a lock or token to another agent that is alive, past the queue and under a new
// fence, which it returns. The hold begins again. A lock then has no holder; a token has that of a
// request of the agent that waits for it, if there is one. why is for people. Errors:
// fault.Precondition (LOCK_LOST) if from does not hold the fence.
func (t *Table) Transfer(
	tx *store.Tx, session, fence int64, from string, to directory.Agent, why string,
) (int64, error) {
	g, err := findGrant(tx, selectGrant, fence)
	if err != nil {
		return 0, err
	}
	if g == nil || g.session != session || g.owner.Agent != from {
		return 0, fault.New(fault.Precondition, "LOCK_LOST", "%s does not hold fence %d any more", from, fence)
	}
	u, err := t.lockTx(tx, session)
	if err != nil {
		return 0, err
	}
	if g.claim.kind == Token {
		row, err := findToken(tx, session, g.claim.token)
		if err != nil {
			return 0, err
		}
		wish := PassWish{TokenRef: TokenRef{Token: g.claim.token}, Agent: to.Name, Note: why, MaxHold: g.maxHold, settled: true}
		x := passTx{lockTx: u, row: row, from: g, wish: wish}
		passed, err := x.run()
		return passed.Fence, err
	}
	_, err = u.append(eventTypes{lock: "lock.passed"}, events.Info, g.owner, g.role, &g.claim,
		g.owner.String()+" passes "+g.claim.title()+" to "+to.Name, details{{"fence", g.fence}, {"to", to.Name}, {"note", why}})
	if err != nil {
		return 0, err
	}
	if err := u.remove(g); err != nil {
		return 0, err
	}
	next := &grant{
		session: session, owner: Owner{Agent: to.Name}, role: to.Role, claim: g.claim, maxHold: g.maxHold, collected: true,
		reason: "passed on by " + from,
	}
	if err := u.grant(next); err != nil {
		return 0, err
	}
	u.freed = append(u.freed, &g.claim) // a request of the new owner that waited for the lock does not wait for itself
	return next.fence, u.settled(next)
}

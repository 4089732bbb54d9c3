package locks

import (
	"cmp"
	"context"
	"time"

	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/nearest"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Who gets a token that is passed on:
//
//	to a live agent     the agent: a request of its that waits for the token, if there is one, else whichever of its workers asks first
//	to one that failed  the head of the queue, or nobody; the agent's next request comes before all others
//	to a role           the first of its agents that asks for it, or has a call waiting for it already
//
// Who has no call waiting is told by a message, and has 2 min to ask for it; then it goes to the next in the
// queue. A grant for a role has no agent until somebody collects it, and keeps its fence then.

// A PassWish says who is to get a token that the caller holds.
type PassWish struct {
	TokenRef
	Agent   string // or
	Role    string
	Note    string
	MaxHold time.Duration // 0 = as the receiver has asked for, or 30 min
	settled bool          // the receiver need not collect it within 2 min
}

// A Passed says who has a token now.
type Passed struct {
	Agent    string // empty if it went to a role, or to nobody
	Fence    int64
	Revision int64
}

// Pass passes a token on. fault.Precondition without a registered agent, and (TOKEN_LOST) if it does not hold
// it; fault.NotFound if nobody of that name is registered; fault.Invalid for more than the longest hold.
func (t *Table) Pass(ctx context.Context, c identity.Caller, req idempotency.Request, p PassWish) (Passed, error) {
	var passed Passed
	err := t.store.Write(ctx, func(tx *store.Tx) error {
		_, err := req.Do(tx, &passed, func() error {
			u, owner, err := t.calling(tx, c, p.TokenRef)
			if err != nil {
				return err
			}
			row, g, err := u.heldToken(owner, p.Token)
			if err != nil {
				return err
			}
			x := passTx{lockTx: u, row: row, from: g, wish: p}
			passed, err = x.run()
			return err
		})
		return err
	})
	return passed, err
}

// A passTx is one function that passes a token on.
type passTx struct {
	*lockTx
	row  *tokenRow
	from *grant
	wish PassWish
}

// run passes the token on, and notifies its receiver.
func (x *passTx) run() (Passed, error) {
	g, p := x.from, x.wish
	maxHold, err := x.row.hold(p.MaxHold)
	if err != nil {
		return Passed{}, err
	}
	to, alive := directory.Agent{}, true
	if p.Agent != "" {
		if to, alive, err = x.receiver(); err != nil {
			return Passed{}, err
		}
	}
	more := details{{"fence", g.fence}, {"to", p.Agent}, {"to_role", p.Role}, {"note", p.Note}, {"alive", alive}}
	receiver := p.Agent
	if receiver == "" {
		receiver = "role:" + p.Role
	}
	revision, err := x.append(eventTypes{token: "token.passed"}, events.Info, g.owner, g.role, &g.claim,
		g.owner.String()+" passes "+g.claim.title()+" to "+receiver, more)
	if err != nil {
		return Passed{}, err
	}
	if err := x.remove(g); err != nil {
		return Passed{}, err
	}
	if !alive {
		return x.keepFirst(revision)
	}
	next := &grant{
		session: x.session, owner: Owner{Agent: p.Agent}, role: to.Role, claim: g.claim, maxHold: maxHold, kept: true,
		reason: "passed on by " + g.owner.Agent, passedBy: g.owner.Agent, note: p.Note,
	}
	if p.Role != "" {
		next.role, next.reason = p.Role, "passed on by "+g.owner.Agent+" to the role "+p.Role
	}
	next.collected = p.settled
	var calls []*call
	if k := x.receivingTicket(); k != nil {
		next.owner, next.role, next.reason, next.ticket = k.owner, k.role, k.reason, k.number
		if p.MaxHold == 0 {
			next.maxHold = k.maxHold
		}
		calls = x.drop(k)
		next.collected = p.settled || len(calls) > 0
	}
	if err := x.grant(next); err != nil {
		return Passed{}, err
	}
	x.passed(next)
	if err := x.answer(calls, next); err != nil {
		return Passed{}, err
	}
	if len(calls) == 0 {
		what := "acquire it within 2 min to collect it"
		if p.settled {
			what = "you hold it"
		}
		if err := x.notifyPassed(next, next.fence, what); err != nil {
			return Passed{}, err
		}
	}
	done := Passed{Agent: next.owner.Agent, Fence: next.fence, Revision: revision}
	if next.owner.Agent == "" {
		return done, nil
	}
	return done, x.settled(next)
}

// receiver returns the agent that the token is passed to, and whether it is alive.
func (x *passTx) receiver() (to directory.Agent, alive bool, err error) {
	name := x.wish.Agent
	to, found, err := x.dir.Find(x.tx, x.session, name)
	if err != nil {
		return directory.Agent{}, false, err
	}
	if found {
		return to, !to.Ended(), nil
	}
	near, err := x.dir.Nearest(x.tx, x.session, name)
	if err != nil {
		return directory.Agent{}, false, err
	}
	hint := cmp.Or(nearest.Hint(name, near), "the session has no agents")
	return directory.Agent{}, false, fault.Missing("agent", name, "no agent %q is registered; %s", name, hint)
}

// receivingTicket returns the ticket that gets the token: one of the agent's, if possible one on which a call waits,
// or one of the role's on which a call waits; nil if there is none.
func (x *passTx) receivingTicket() *ticket {
	p := x.wish
	var found *ticket
	for _, k := range x.queue.tickets {
		if k.claim.kind != Token || k.claim.token != x.from.claim.token {
			continue
		}
		awaited := x.callers.awaited(k.number)
		switch {
		case awaited && (p.Role != "" && k.role == p.Role || p.Agent != "" && k.owner.Agent == p.Agent):
			return k
		case found == nil && p.Agent != "" && k.owner.Agent == p.Agent:
			found = k
		}
	}
	return found
}

// keepFirst keeps the first place for an agent that is not alive, and grants the token to the head of the queue
// meanwhile.
func (x *passTx) keepFirst(revision int64) (Passed, error) {
	g, p := x.from, x.wish
	before, err := findFirst(x.tx, x.session, g.claim.token, p.Agent)
	if err == nil && before.revision != 0 {
		err = x.forgetFirst(before, g.claim.token, p.Agent)
	}
	if err != nil {
		return Passed{}, err
	}
	x.tx.Exec(insertFirst, x.session, g.claim.token, p.Agent, revision, g.owner.Agent, p.Note)
	absent := &grant{session: x.session, owner: Owner{Agent: p.Agent}, claim: g.claim, passedBy: g.owner.Agent, note: p.Note}
	err = x.notifyPassed(absent, revision, "you were not alive, so it went to the next in the queue; acquire it, and you come first")
	if err != nil {
		return Passed{}, err
	}
	if err := x.passOn(&g.claim); err != nil {
		return Passed{}, err
	}
	now, err := findGrant(x.tx, selectToken, x.session, g.claim.token)
	if err != nil || now == nil {
		return Passed{Revision: revision}, err
	}
	return Passed{Agent: now.owner.Agent, Fence: now.fence, Revision: revision}, nil
}

// notifyPassed notifies the agent or the role that a token is passed to.
func (x *passTx) notifyPassed(g *grant, about int64, what string) error {
	subject := g.passedBy + " has passed you " + g.claim.spoken() + ": " + what
	more := details{{"passed_by", g.passedBy}, {"note", g.note}}
	if g.fence != 0 {
		more = append(more, detail{"fence", g.fence})
	}
	if g.owner.Agent == "" {
		more = append(more, detail{"role", g.role})
		return x.notifyRole(g.role, &g.claim, about, "passed", subject, more)
	}
	return x.notify(g.owner, &g.claim, about, "passed", subject, more)
}

// notifyRole sends all agents of a role a notice about a token.
func (x *passTx) notifyRole(role string, c *claim, about int64, what, subject string, more details) error {
	if x.notices == nil {
		return nil
	}
	text, err := more.on(c).text()
	if err != nil {
		return err
	}
	return x.notices.Notify(x.tx, x.session,
		work.Notice{Role: role, Type: c.kind.noun() + "_" + what, Subject: subject, Payload: text, About: about})
}

package locks

import (
	"brokerd/internal/events"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Hand passes a token on in the transaction of another change, or releases it. It reports whether it
// did: false if the token has neither the grant nor the holder. fence is that of the new grant; 0 if
// the receiver has none, because it has failed or the token was released. An agent holds the token at
// once, as long as the agent that passes it was to hold it; the token waits as long for the first
// agent of a role that acquires it. Errors: fault.NotFound for an agent that is not registered.
func (t *Table) Hand(tx *store.Tx, session int64, h work.TokenPass) (fence int64, passed bool, err error) {
	u, err := t.lockTx(tx, session)
	if err != nil {
		return 0, false, err
	}
	row, err := findToken(tx, session, h.Token)
	if err != nil || row == nil {
		return 0, false, err
	}
	g, err := findGrant(tx, selectToken, session, h.Token)
	if err != nil || g == nil || g.fence != h.Fence && (h.From == "" || g.owner.Agent != h.From) {
		return 0, false, err
	}
	if h.Agent == "" && h.Role == "" {
		return 0, true, u.discard(g, h.Note)
	}
	wish := PassWish{TokenRef: TokenRef{Token: h.Token}, Agent: h.Agent, Role: h.Role, Note: h.Note, MaxHold: g.maxHold, settled: true}
	x := passTx{lockTx: u, row: row, from: g, wish: wish}
	done, err := x.run()
	if err != nil || h.Agent != "" && done.Agent != h.Agent {
		return 0, err == nil, err
	}
	return done.Fence, true, nil
}

// discard releases a grant in the name of the broker.
func (u *lockTx) discard(g *grant, why string) error {
	_, err := u.append(eventTypes{token: "token.released"}, events.Info, g.owner, g.role, &g.claim,
		g.owner.String()+" has lost "+g.claim.title()+": "+why, details{{"fence", g.fence}, {"cause", why}})
	if err != nil {
		return err
	}
	if err := u.end(g); err != nil {
		return err
	}
	return u.passOn(&g.claim)
}

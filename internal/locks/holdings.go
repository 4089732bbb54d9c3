package locks

import (
	"strings"

	"brokerd/internal/directory"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Holdings adds the locks and tokens that an agent holds, and its tickets, at most work.MostHeld of each
// of the two, oldest first.
func (t *Table) Holdings(q store.Querier, a directory.Agent, to *work.Holdings) error {
	v, err := t.view(q, a.Session)
	if err != nil {
		return err
	}
	grants, err := readGrants(q.Query(selectAgents, a.Session, a.Name))
	if err != nil {
		return err
	}
	for _, g := range grants[:min(len(grants), work.MostHeld)] {
		h := v.held(g)
		if h.Kind == Token {
			kind, scope, _ := strings.Cut(h.Names[0], "/")
			to.Tokens = append(to.Tokens, work.HeldToken{
				Type: kind, Scope: scope, Holder: h.Owner.Holder, Fence: h.Fence, HeldUntil: h.HeldUntil,
			})
			continue
		}
		to.Locks = append(to.Locks, work.HeldLock{
			Paths: h.Names, Holder: h.Owner.Holder, Fence: h.Fence, Shared: h.Mode == Shared, HeldUntil: h.HeldUntil,
		})
	}
	for _, k := range v.queue.tickets {
		if k.owner.Agent != a.Name || len(to.Tickets) == work.MostHeld {
			continue
		}
		p, err := v.standing(k)
		if err != nil {
			return err
		}
		to.Tickets = append(to.Tickets, work.WaitingTicket{
			Ticket: p.Ticket, Resources: p.Names, Token: p.Kind == Token, Position: p.Position, CreatedAt: p.CreatedAt,
		})
	}
	return nil
}

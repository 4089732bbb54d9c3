package handoffs

import (
	"context"
	"go.uber.org/zap"

	"brokerd/internal/directory"
	"brokerd/internal/identity"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// The kinds of chores. A chore is about the pending handoffs up to its bound, and continues after the
// last one that it has read.
const (
	goneChore   = "gone"   // reject those to the agent Name
	closedChore = "closed" // cancel those of the session
)

// AgentGone rejects the pending handoffs to a deregistered agent. If there are many, the backlog
// rejects the rest. It is a hook of the deregistration.
func (d *Desk) AgentGone(tx *store.Tx, session int64, agent string) error {
	_, err := d.backlog.Do(tx, work.Chore{Kind: goneChore, Session: session, Name: agent})
	return err
}

// SessionClosed cancels the pending handoffs of a session. If there are many, the backlog cancels the
// rest. It is a hook of the closing.
func (d *Desk) SessionClosed(tx *store.Tx, session int64) error {
	_, err := d.backlog.Do(tx, work.Chore{Kind: closedChore, Session: session})
	return err
}

// page does the next page of a chore, and reports whether there may be more.
func (d *Desk) page(tx *store.Tx, c *work.Chore) (more bool, err error) {
	var rows *store.Rows
	if c.Kind == goneChore {
		rows = tx.Query(selectPendingFor, c.Session, c.Name, c.After, c.Newest(), work.MostPaged)
	} else {
		rows = tx.Query(selectUnsettled, c.Session, c.After, c.Newest(), work.MostPaged)
	}
	state, why := Cancelled, "the session was closed"
	if c.Kind == goneChore {
		state, why = Rejected, c.Name+" has deregistered"
	}
	list, read, last, err := d.readSound(rows)
	if err != nil {
		return false, err
	}
	page := work.NewPage(tx)
	for i := range list {
		if page.Full() {
			return c.Rest(tx)
		}
		if err := d.end(tx, directory.Agent{Name: identity.System}, &list[i], state, why); err != nil {
			return false, err
		}
		c.After = list[i].ID
	}
	if c.After = last; read == work.MostPaged {
		return c.Rest(tx)
	}
	return false, nil
}

// readSound is read, but it leaves out handoffs with damaged columns: they stay as they are. It also
// returns how many rows it has read, and the id in the last one.
func (d *Desk) readSound(rows *store.Rows) (list []Handoff, read int, last int64, err error) {
	defer rows.Close()
	for ; rows.Next(); read++ {
		h, err := scan(rows)
		last = h.ID
		switch {
		case work.IsDamage(err):
			d.zap.Error("a damaged handoff stays as it is", zap.String("handoff", h.Name()), zap.Error(err))
		case err != nil:
			return nil, 0, 0, err
		default:
			list = append(list, h)
		}
	}
	return list, read, last, rows.Close()
}

// AwaitClosed does what is left to do in a closed session, and returns when that is done.
func (d *Desk) AwaitClosed(ctx context.Context, session int64) error {
	return d.backlog.FinishSession(ctx, session)
}

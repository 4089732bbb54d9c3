package decisions

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"brokerd/internal/store"
	"brokerd/internal/work"
)

// The kinds of chores. A chore is about the unfinished decisions up to its bound, and continues after
// the last one that it has read.
const (
	goneChore   = "gone"   // end those that the agent Name has opened, and escalate those that it owes
	closedChore = "closed" // cancel those of the session
)

// AgentGone cancels the unfinished decisions that a deregistered agent opened, and escalates those
// that it owes. If there are many, the backlog does the rest. It is a hook of the deregistration.
func (t *Table) AgentGone(tx *store.Tx, session int64, agent string) error {
	_, err := t.backlog.Do(tx, work.Chore{Kind: goneChore, Session: session, Name: agent})
	return err
}

// SessionClosed cancels all unfinished decisions. If there are many, the backlog cancels the rest. It
// is a hook of the closing.
func (t *Table) SessionClosed(tx *store.Tx, session int64) error {
	_, err := t.backlog.Do(tx, work.Chore{Kind: closedChore, Session: session})
	return err
}

// page does the next page of a chore, and reports whether there may be more.
func (t *Table) page(tx *store.Tx, c *work.Chore) (more bool, err error) {
	var rows *store.Rows
	if c.Kind == goneChore {
		rows = tx.Query(selectLeft, c.Session, c.Name, c.Name, c.After, c.Newest(), work.MostPaged)
	} else {
		rows = tx.Query(selectOpenIDs, c.Session, c.After, c.Newest(), work.MostPaged)
	}
	ids, err := store.Collect(rows, func(r *store.Rows) (id int64, err error) { return id, r.Scan(&id) })
	if err != nil || len(ids) == 0 {
		return false, err
	}
	s, err := t.Directory.ByID(tx, c.Session)
	if err != nil || s.Closed() && c.Kind == goneChore {
		return false, err
	}
	u := &decisionTx{Table: t, tx: tx, session: s}
	page := work.NewPage(tx)
	for _, id := range ids {
		if page.Full() {
			return c.Rest(tx)
		}
		if err := u.endFor(c, id); err != nil {
			return false, fmt.Errorf("end decision %s: %w", work.ID(idLetter, id), err)
		}
		c.After = id
	}
	if len(ids) == work.MostPaged {
		return c.Rest(tx)
	}
	return false, nil
}

// endFor makes the change of a chore to one decision.
func (u *decisionTx) endFor(c *work.Chore, id int64) error {
	d, err := find(u.tx, c.Session, work.ID(idLetter, id))
	why := c.Name + " has deregistered"
	switch {
	case work.IsDamage(err):
		u.Zap.Error("a damaged decision stays as it is", zap.String("decision", work.ID(idLetter, id)), zap.Error(err))
		return nil
	case err != nil:
		return err
	case c.Kind == closedChore:
		d.State, d.Note = Cancelled, "the session was closed"
		if err := u.append(&d, "decision.cancelled", nil, "the session ends "+d.String()); err != nil {
			return err
		}
		d.save(u.tx)
		return nil
	case d.OpenedBy == c.Name:
		return u.cancel(&d, why, "")
	}
	return u.escalate(&d, nil, why)
}

// AwaitClosed does what is left to do in a closed session, and returns when that is done.
func (t *Table) AwaitClosed(ctx context.Context, session int64) error {
	return t.backlog.FinishSession(ctx, session)
}

package blockers

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/identity"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// escalations returns the blockers that escalate next.
func escalations(q store.Querier, limit int) ([]work.Entry[int64], error) {
	return store.Collect(q.Query(selectEscalations, limit), func(r *store.Rows) (e work.Entry[int64], err error) {
		return e, r.Scan(&e.Key, &e.At)
	})
}

// escalateDue escalates a blocker if it is due.
func (b *Board) escalateDue(tx *store.Tx, id int64) error {
	x, found, err := one(tx, id)
	if err != nil || !found || x.EscalatesAt.IsZero() || x.EscalatesAt.After(tx.Now()) {
		return err
	}
	return b.escalate(tx, &x)
}

// escalate notifies the next role of a blocker that no agent has acknowledged.
func (b *Board) escalate(tx *store.Tx, x *Blocker) error {
	s, err := b.dir.ByID(tx, x.Session)
	if err != nil {
		return err
	}
	x.EscalatesAt = time.Time{}
	if s.Closed() || s.BlockerTime <= 0 {
		return b.save(tx, x)
	}
	role, err := b.nextRole(tx, s, x)
	if err != nil {
		return err
	}
	x.Escalations++
	to, summary := Recipient{}, "no role of escalate_to has an agent for the blocker of "
	if role != "" {
		to, summary = Recipient{Role: role}, "the role "+role+" is notified of the blocker of "
	}
	broker := directory.Agent{Name: identity.System}
	revision, err := b.append(tx, x, broker, "blocker.escalated", events.Warning, summary+x.Agent+": "+x.headline(),
		map[string]any{"role": role, "escalations": x.Escalations})
	if err != nil {
		return err
	}
	e := Entry{Step: Escalated, At: tx.Now(), Agent: identity.System, Recipient: to, Revision: revision}
	if role != "" {
		if e.Message, err = b.notify(tx, x, directory.Agent{}, to); err != nil {
			return err
		}
	}
	x.Revision, x.Timeline = revision, append(x.Timeline, e)
	if x.Escalations < mostEscalations {
		x.EscalatesAt = tx.Now().Add(s.BlockerTime)
	}
	b.count(tx, "escalated")
	return b.save(tx, x)
}

// AgentCompleted resolves the blockers that await an agent and resolve themselves. It is a hook of
// the report of the status completed.
func (b *Board) AgentCompleted(tx *store.Tx, session int64, agent string) error {
	return b.resolveReached(tx, session, Awaited{Agent, agent})
}

// TaskDone resolves the blockers that await a task and resolve themselves. It is a hook of the
// task's completion.
func (b *Board) TaskDone(tx *store.Tx, session int64, task string) error {
	return b.resolveReached(tx, session, Awaited{Task, task})
}

// Stopping returns the ids of the unresolved blockers for which a task is BLOCKED, oldest first, at
// most limit.
func (b *Board) Stopping(q store.Querier, session int64, task string, limit int) ([]string, error) {
	return b.stopping(q, session, task, 0, limit)
}

// stopping is Stopping without one of the blockers.
func (b *Board) stopping(q store.Querier, session int64, task string, except int64, limit int) ([]string, error) {
	var ids []string
	rows := q.Query(selectStopping, session, task, except, limit)
	defer rows.Close()
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, work.ID(letter, id))
	}
	return ids, errors.Join(rows.Err(), rows.Close())
}

// Freed records that a task is no longer BLOCKED for any blocker, because its claim has ended. The
// blockers stay unresolved. It is a hook of the end of a claim.
func (b *Board) Freed(tx *store.Tx, session int64, task string) {
	tx.Exec(freeTask, session, task)
}

// The kinds of chores. A chore is about the blockers up to its bound, and continues after the last one
// that it has read.
const (
	reachedChore = "reached" // resolve those that await an object: Item is its kind, Name its name
	goneChore    = "gone"    // resolve those that the agent Name has raised
	failedChore  = "failed"  // reopen those on which the agent Name works
)

func (b *Board) resolveReached(tx *store.Tx, session int64, object Awaited) error {
	_, err := b.backlog.Do(tx, work.Chore{
		Kind: reachedChore, Session: session, Item: int64(object.Kind), Name: object.Name,
	})
	return err
}

// AgentGone resolves the blockers that a deregistered agent has raised: they stop no agent any more.
// If there are many, the backlog resolves the rest. It is a hook of the deregistration.
func (b *Board) AgentGone(tx *store.Tx, session int64, agent string) error {
	_, err := b.backlog.Do(tx, work.Chore{Kind: goneChore, Session: session, Name: agent})
	if err != nil {
		return err
	}
	return b.AgentEnded(tx, session, agent)
}

// AgentEnded reopens the blockers that an agent has acknowledged and no other agent that is alive
// has: they escalate again. If there are many, the backlog reopens the rest. It is a hook of the
// end of an agent, which has failed or stopped.
func (b *Board) AgentEnded(tx *store.Tx, session int64, agent string) error {
	_, err := b.backlog.Do(tx, work.Chore{Kind: failedChore, Session: session, Name: agent})
	return err
}

// page does the next page of a chore, and reports whether there may be more.
func (b *Board) page(tx *store.Tx, c *work.Chore) (more bool, err error) {
	var rows *store.Rows
	switch c.Kind {
	case reachedChore:
		rows = tx.Query(selectAwaiting, c.Session, c.Item, c.Name, c.After, c.Newest(), work.MostPaged)
	case goneChore:
		rows = tx.Query(selectRaisedBy, c.Session, c.Name, c.After, c.Newest(), work.MostPaged)
	default:
		rows = tx.Query(selectAcknowledgedBy, c.Session, c.Name, c.After, c.Newest(), work.MostPaged)
	}
	ids, err := store.Collect(rows, scanID)
	if err != nil || len(ids) == 0 {
		return false, err
	}
	if s, err := b.dir.ByID(tx, c.Session); err != nil || s.Closed() {
		return false, err
	}
	page := work.NewPage(tx)
	for _, id := range ids {
		if page.Full() {
			return c.Rest(tx)
		}
		if err := b.endFor(tx, c, id); err != nil {
			return false, err
		}
		c.After = id
	}
	if len(ids) == work.MostPaged {
		return c.Rest(tx)
	}
	return false, nil
}

// endFor makes the change of a chore to one blocker.
func (b *Board) endFor(tx *store.Tx, c *work.Chore, id int64) error {
	x, found, err := one(tx, id)
	broker := directory.Agent{Name: identity.System}
	switch {
	case work.IsDamage(err):
		b.zap.Error("a damaged blocker stays as it is", zap.String("blocker", work.ID(letter, id)), zap.Error(err))
		return nil
	case err != nil || !found || x.State == Resolved:
		return err
	case c.Kind == reachedChore:
		return b.resolve(tx, broker, &x, Awaited{AwaitedKind(c.Item), c.Name}.reachedText())
	case c.Kind == goneChore:
		return b.resolve(tx, broker, &x, c.Name+" has deregistered")
	}
	return b.reopen(tx, &x, c.Name)
}

func (b *Board) reopen(tx *store.Tx, x *Blocker, lost string) error {
	for _, e := range x.Acknowledgements() {
		if e.Agent == lost {
			continue
		}
		a, found, err := b.dir.Find(tx, x.Session, e.Agent)
		if err != nil || e.Agent == identity.System || found && !a.Ended() {
			return err
		}
	}
	s, err := b.dir.ByID(tx, x.Session)
	if err != nil {
		return err
	}
	broker := directory.Agent{Name: identity.System}
	revision, err := b.append(tx, x, broker, "blocker.reopened", events.Warning, lost+" has ended or deregistered, and no agent works on the blocker of "+x.Agent,
		map[string]any{"lost": lost})
	if err != nil {
		return err
	}
	tx.Exec(deleteAcknowledgers, x.ID)
	x.Revision, x.State = revision, Open
	x.Timeline = append(x.Timeline, Entry{Step: Reopened, At: tx.Now(), Agent: lost, Revision: revision})
	if s.BlockerTime > 0 && x.Escalations < mostEscalations {
		x.EscalatesAt = tx.Now().Add(s.BlockerTime)
	}
	b.count(tx, "reopened")
	return b.save(tx, x)
}

// SessionClosed ends the escalations of a session. It is a hook of the closing.
func (b *Board) SessionClosed(tx *store.Tx, session int64) {
	tx.Exec(endEscalations, session)
}

// AwaitClosed does what is left to do in a closed session, and returns when that is done.
func (b *Board) AwaitClosed(ctx context.Context, session int64) error {
	return b.backlog.FinishSession(ctx, session)
}

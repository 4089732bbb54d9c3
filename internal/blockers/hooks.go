package blockers

import (
	"errors"
	"time"

	"brokerd/internal/caller"
	"brokerd/internal/events"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// duePage is how many blockers escalate in one transaction.
const duePage = 20

// escalateDue escalates the blockers that are due, and returns when the next one is.
func (b *Board) escalateDue(tx *store.Tx) (time.Time, error) {
	due, err := read(tx.Query(selectDue, tx.Now(), duePage))
	if err != nil {
		return time.Time{}, err
	}
	for i := range due {
		if err := b.escalate(tx, &due[i]); err != nil {
			return time.Time{}, err
		}
	}
	var next time.Time
	err = tx.QueryRow(nextEscalation).Scan(&next)
	if errors.Is(err, store.ErrNoRows) {
		return time.Time{}, nil
	}
	return next, err
}

// escalate notifies the next role of a blocker that no agent has acknowledged.
func (b *Board) escalate(tx *store.Tx, x *Blocker) error {
	s, closed, err := b.dir.ByID(tx, x.Session)
	if err != nil {
		return err
	}
	x.EscalatesAt = time.Time{}
	if closed || s.EscalateTime <= 0 {
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
	broker := work.Agent{Name: caller.System}
	revision, err := b.append(tx, x, broker, "blocker.escalated", events.Warning, summary+x.Agent+": "+x.headline(),
		map[string]any{"role": role, "escalations": x.Escalations})
	if err != nil {
		return err
	}
	e := Entry{Step: Escalated, At: tx.Now(), Agent: caller.System, Recipient: to, Revision: revision}
	if role != "" {
		if e.Message, err = b.notify(tx, x, work.Agent{}, to); err != nil {
			return err
		}
	}
	x.Revision, x.Timeline = revision, append(x.Timeline, e)
	if x.Escalations < mostEscalations {
		x.EscalatesAt = tx.Now().Add(s.EscalateTime)
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
func (b *Board) Freed(tx *store.Tx, session int64, task string) error {
	_, err := tx.Exec(freeTask, session, task)
	return err
}

func (b *Board) resolveReached(tx *store.Tx, session int64, object Awaited) error {
	list, err := read(tx.Query(selectAwaiting, session, int(object.Kind), object.Name))
	for i := range list {
		if err == nil {
			err = b.resolve(tx, work.Agent{Name: caller.System}, &list[i], object.reachedText())
		}
	}
	return err
}

// AgentGone resolves the blockers that a deregistered agent has raised: they stop no agent any more.
// It is a hook of the deregistration.
func (b *Board) AgentGone(tx *store.Tx, session int64, agent string) error {
	list, err := read(tx.Query(selectRaisedBy, session, agent))
	for i := range list {
		if err == nil {
			err = b.resolve(tx, work.Agent{Name: caller.System}, &list[i], agent+" has deregistered")
		}
	}
	if err != nil {
		return err
	}
	return b.AgentFailed(tx, session, agent)
}

// AgentFailed reopens the blockers that an agent has acknowledged and no other agent that is alive
// has: they escalate again. It is a hook of the end of a lease.
func (b *Board) AgentFailed(tx *store.Tx, session int64, agent string) error {
	list, err := read(tx.Query(selectUnresolved, session))
	if err != nil {
		return err
	}
	for i := range list {
		if !list[i].acknowledgedBy(agent) {
			continue
		}
		if err := b.reopen(tx, &list[i], agent); err != nil {
			return err
		}
	}
	return nil
}

func (b *Board) reopen(tx *store.Tx, x *Blocker, lost string) error {
	for _, e := range x.Acknowledgements() {
		if e.Agent == lost {
			continue
		}
		a, found, err := b.dir.Find(tx, x.Session, e.Agent)
		if err != nil || e.Agent == caller.System || found && !a.Failed {
			return err
		}
	}
	s, _, err := b.dir.ByID(tx, x.Session)
	if err != nil {
		return err
	}
	broker := work.Agent{Name: caller.System}
	revision, err := b.append(tx, x, broker, "blocker.reopened", events.Warning, lost+" has failed or deregistered, and no agent works on the blocker of "+x.Agent,
		map[string]any{"lost": lost})
	if err != nil {
		return err
	}
	x.Revision, x.State = revision, Open
	x.Timeline = append(x.Timeline, Entry{Step: Reopened, At: tx.Now(), Agent: lost, Revision: revision})
	if s.EscalateTime > 0 && x.Escalations < mostEscalations {
		x.EscalatesAt = tx.Now().Add(s.EscalateTime)
	}
	b.count(tx, "reopened")
	return b.save(tx, x)
}

// SessionClosed ends the escalations of a session. It is a hook of the closing.
func (b *Board) SessionClosed(tx *store.Tx, session int64) error {
	_, err := tx.Exec(endEscalations, session)
	return err
}

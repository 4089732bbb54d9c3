package tasks

import (
	"context"
	"errors"
	"fmt"

	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// The kinds of chores.
const (
	leaveChore   = "leave"   // take the agent Name, which has deregistered, from its tasks
	failChore    = "fail"    // end the claims with fences up to Bound of the agent Name, which has failed, or stopped as Text says
	closeChore   = "close"   // release the tasks of a closed session
	supplyChore  = "supply"  // make dependents READY of the task Item, which became DONE at Bound
	cascadeChore = "cascade" // cancel dependents and parts of the task Item; see cascade
	serveChore   = "serve"   // serve the waiters that have come up to Bound, those of the agent Name or all
)

// hasStopped is the Text of a failChore for an agent that has stopped.
const hasStopped = "stopped"

const (
	pageTasks = 100 // that one query of a page reads
	pageEdges = 500 // dependencies that one query of a page reads

	firstSupply = 3 * work.PageRows // rows, so that an answer lists up to mostListed tasks
)

// weight is about how many rows a change of the state of a task changes: the task, its event, its
// queue, its labels, a notice to its holder and a letter to its assignee. Waiters count too, because
// an offer compares the task with each, and dependencies, because letters and answers name them.
func (u *taskTx) weight(task *Task) int {
	n := 3 + len(task.Labels) + task.needs/20 + len(u.waiters.Get(u.Session.ID))/100
	if task.State.held() {
		n += noticeRows
	}
	if task.Assignee != "" {
		n += letterRows
	}
	return n
}

// doChore does the next page of a chore.
func (t *Tasks) doChore(tx *store.Tx, c *work.Chore) (more bool, err error) {
	u, closed, err := t.byBroker(tx, c.Session)
	if errors.Is(err, store.ErrNoRows) { // the session was deleted
		return false, nil
	}
	if err != nil || closed && c.Kind != closeChore && c.Kind != supplyChore {
		return false, err
	}
	switch c.Kind {
	case leaveChore:
		return u.leave(c)
	case failChore:
		return u.endClaims(c, "the lease of its holder "+c.Name+" has ended", work.PageRows)
	case closeChore:
		return u.releaseAll()
	case supplyChore:
		_, more, err = u.supplyMore(c, closed, work.PageRows)
		return more, err
	case cascadeChore:
		return u.cascadeOn(c)
	case serveChore:
		return u.serveSome(c)
	}
	return false, fmt.Errorf("tasks know no chore %q", c.Kind)
}

// leave takes an agent from the tasks that are assigned to it, and then ends its claims.
func (u *taskTx) leave(c *work.Chore) (more bool, err error) {
	const why = "it has deregistered"
	budget := work.PageRows
	assigned, read, err := u.scanSound(u.Query(selectAssigned, u.Session.ID, c.Name, pageTasks))
	if err != nil {
		return false, err
	}
	for _, task := range assigned {
		if budget <= 0 {
			return true, nil
		}
		budget -= noticeRows + u.weight(task)
		if err := u.unassign(task, "taken from "+c.Name, why); err != nil {
			return false, err
		}
	}
	if read == pageTasks && len(assigned) > 0 {
		return true, nil
	}
	return u.endClaims(c, "its holder "+c.Name+" has deregistered", budget)
}

// endClaims ends the next claims of an agent: as failed attempts, or uncounted if it has stopped.
func (u *taskTx) endClaims(c *work.Chore, why string, budget int) (more bool, err error) {
	held, read, err := u.scanSound(u.Query(selectHeldBetween, u.Session.ID, c.Name, c.After, c.Bound, pageTasks))
	if err != nil {
		return false, err
	}
	for _, task := range held {
		if budget <= 0 {
			return true, nil
		}
		budget -= noticeRows + u.weight(task)
		c.After = task.Fence
		if c.Text == hasStopped {
			err = u.release(task, "it has stopped")
		} else {
			u.CountOutcome(u.Tx, Kind, "lost")
			err = u.endAttempt(task, why, false, 0)
		}
		if err != nil {
			return false, err
		}
	}
	return read == pageTasks && len(held) > 0, nil
}

// releaseAll releases the next tasks of a closed session.
func (u *taskTx) releaseAll() (more bool, err error) {
	held, read, err := u.scanSound(u.Query(selectAllHeld, u.Session.ID, pageTasks))
	if err != nil {
		return false, err
	}
	budget := work.PageRows
	for _, task := range held {
		if budget <= 0 {
			return true, nil
		}
		budget -= u.weight(task)
		details := map[string]any{"agent": task.Holder, "reason": "the session is closed"}
		u.unhold(task)
		task.ReadyAt = u.Now()
		if err := u.enter(task, Ready, "task.released", 0, "released: the session is closed", details); err != nil {
			return false, err
		}
	}
	return read == pageTasks && len(held) > 0, nil
}

// supply makes the dependents of a task that has just become DONE READY for which it was the last
// dependency. It returns the first of them, at most mostListed. If they are more than a page, the
// backlog continues.
func (u *taskTx) supply(task *Task) ([]Brief, error) {
	c := work.Chore{Kind: supplyChore, Session: u.Session.ID, Item: task.Created, Bound: task.Entered}
	ready, more, err := u.supplyMore(&c, false, firstSupply)
	if err != nil {
		return nil, err
	}
	if more {
		u.backlog.Add(u.Tx.Tx, c)
	}
	return ready, nil
}

// supplyMore does the next page of a supply, with a budget of rows. A task that was created after Bound counts the
// dependency as DONE already.
func (u *taskTx) supplyMore(c *work.Chore, closed bool, budget int) (ready []Brief, more bool, err error) {
	keys, err := scanKeys(u.Query(selectDependentKeys, c.Item, c.After, c.Bound, pageEdges))
	if err != nil {
		return nil, false, fmt.Errorf("read dependents of task %d: %w", c.Item, err)
	}
	for _, k := range keys {
		if budget <= 0 {
			return ready, true, nil
		}
		budget--
		c.After = k
		d, err := scan(u.QueryRow(selectTask, k))
		if errors.Is(err, store.ErrNoRows) || u.skip(Kind, k, err) {
			continue
		}
		if err != nil {
			return nil, false, err
		}
		if d.State != Waiting {
			continue
		}
		if d.Missing--; d.Missing > 0 {
			d.save(u.Tx.Tx)
			continue
		}
		budget -= u.weight(d)
		d.ReadyAt = u.Now()
		if err := u.enter(d, Ready, "task.ready", events.Debug, "is ready", map[string]any{}); err != nil {
			return nil, false, err
		}
		if len(ready) < mostListed {
			ready = append(ready, d.brief())
		}
		if closed {
			continue
		}
		if err := u.offer(d); err != nil {
			return nil, false, err
		}
	}
	return ready, len(keys) == pageEdges, nil
}

func scanKeys(rows *store.Rows) ([]int64, error) {
	return store.Collect(rows, func(r *store.Rows) (k int64, err error) { return k, r.Scan(&k) })
}

// ended returns the highest fence of the claims of an agent that its end has ended, but that the
// backlog has yet to release; 0 if there are none.
func (u *taskTx) ended(agent string) (int64, error) {
	bound, _, err := u.backlog.Pending(u.Tx, failChore, u.Session.ID, agent)
	return bound, err
}

// isHolder reports whether the acting agent holds a task.
func (u *taskTx) isHolder(task *Task) (bool, error) {
	if !task.State.held() || task.Holder != u.Actor.Name {
		return false, nil
	}
	ended, err := u.ended(u.Actor.Name)
	return task.Fence > ended, err
}

// AwaitDeparture takes an agent that has deregistered from the rest of its tasks, and returns when
// that is done: the agent may then register again. A session that does not exist is no error.
func (t *Tasks) AwaitDeparture(ctx context.Context, session, agent string) error {
	var id int64
	err := t.Store.Read(ctx, func(snap *store.Snapshot) error {
		s, err := t.Directory.Session(snap, session)
		id = s.ID
		return err
	})
	if fault.KindOf(err) == fault.NotFound && err != nil {
		return nil
	}
	if err != nil {
		return err
	}
	return t.backlog.Finish(ctx, leaveChore, id, agent)
}

// AwaitClosed does what is left to do in a closed session, and returns when that is done.
func (t *Tasks) AwaitClosed(ctx context.Context, session int64) error {
	return t.backlog.FinishSession(ctx, session)
}

package tasks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// The kinds of chores.
const (
	leaveChore   = "leave"   // take the agent Name, which has deregistered, from its tasks
	failChore    = "fail"    // end claims up to Bound of the agent Name, which has failed, or stopped as Text says
	closeChore   = "close"   // release the tasks of a closed session
	supplyChore  = "supply"  // make dependents READY of the task Item, which became DONE at Bound
	cascadeChore = "cascade" // cancel dependents and parts of the task Item; see cascadeOn
	serveChore   = "serve"   // serve the waiters that have come up to Bound, those of the agent Name or all
)

// hasStopped is the Text of a failChore for an agent that has stopped.
const hasStopped = "stopped"

const (
	mostLost   = 5000 // claims that the end of a lease reports
	mostServed = 10   // sessions whose waits the end of a drain serves in its transaction
)

// AgentEnded ends the claims of an agent that has failed or stopped, and returns what it held, at most
// mostLost. The claims of one that has failed are failed attempts; the claims of one that has stopped
// are not counted. If there are many, the backlog ends them page by page; the broker refuses calls by
// these claims at once. It is a hook of the agent's end.
func (s *Service) AgentEnded(tx *store.Tx, a directory.Agent) ([]directory.Loss, error) {
	u, closed, err := s.byBroker(tx, a.Session)
	if err != nil || closed {
		return nil, err
	}
	chore := work.Chore{Kind: failChore, Session: a.Session, Name: a.Name}
	if a.Stopped() {
		u.waiters.endOf(u.Tx, a.Name, fault.AgentStopped(a.Name))
		chore.Text = hasStopped
	} else {
		u.waiters.endOf(u.Tx, a.Name, errNoLonger(a.Name, "its lease has ended"))
	}
	chore.Bound = tx.NextRevision()
	rows := tx.Query(selectLosses, a.Session, a.Name, chore.Bound, mostLost)
	losses, err := store.Collect(rows, func(r *store.Rows) (l directory.Loss, err error) {
		l.Kind = directory.LostTask
		err = r.Scan(&l.Name, &l.Revision)
		return l, err
	})
	if err != nil || len(losses) == 0 {
		return nil, err
	}
	_, err = s.Backlog.Do(tx, chore)
	return losses, err
}

// AgentGone ends the claims of an agent that has deregistered, and takes it from the tasks that are
// assigned to it. If these are more than a page, the backlog does the rest: until then no agent can
// claim them, and AgentRegistered refuses the agent. It is a hook of the end of a registration.
func (s *Service) AgentGone(tx *store.Tx, a directory.Agent, _ string) error {
	u, closed, err := s.byBroker(tx, a.Session)
	if err != nil || closed {
		return err
	}
	u.waiters.endOf(u.Tx, a.Name, errNoLonger(a.Name, "it has deregistered"))
	_, err = s.Backlog.Do(tx, work.Chore{Kind: leaveChore, Session: a.Session, Name: a.Name, Bound: tx.NextRevision()})
	return err
}

func errNoLonger(agent, why string) error {
	return fault.New(fault.Precondition, "AGENT_NOT_REGISTERED", "agent %q no longer waits for a task: %s", agent, why)
}

// AgentRegistered gives the waits of an agent its present role and capabilities. It refuses an agent
// that the backlog has yet to take from tasks of an earlier registration: see AwaitDeparture. It is a
// hook of a registration. The tasks that the agent holds stay.
func (s *Service) AgentRegistered(tx *store.Tx, agent directory.Agent) error {
	u, closed, err := s.byBroker(tx, agent.Session)
	if err != nil || closed {
		return err
	}
	_, departing, err := s.Backlog.Pending(tx, leaveChore, agent.Session, agent.Name)
	if err == nil && departing {
		err = errDeparting(agent.Name)
	}
	if err != nil {
		return err
	}
	u.waiters.renew(u.Tx, agent)
	return u.serveWaits(agent.Name)
}

// errDeparting is the error for an agent that registers again before the broker has taken it from all
// tasks of its earlier registration.
func errDeparting(agent string) error {
	e := fault.New(fault.Unavailable, "AGENT_DEPARTING", "the broker is still taking agent %q from the tasks "+
		"that it left when it deregistered; register again in a moment", agent)
	e.RetryAfter = time.Second
	return e
}

// AgentResumed serves the waits of an agent that is no longer halted. It is a hook of a resume.
func (s *Service) AgentResumed(tx *store.Tx, session int64, agent string) error {
	u, closed, err := s.byBroker(tx, session)
	if err != nil || closed {
		return err
	}
	return u.serveWaits(agent)
}

// DrainEnded serves the waits of all sessions. It is a hook of the end of a drain.
func (s *Service) DrainEnded(tx *store.Tx) error {
	var sessions []int64
	for session := range s.waiters.bySession.All() {
		sessions = append(sessions, session)
	}
	slices.Sort(sessions)
	for i, session := range sessions {
		u, closed, err := s.byBroker(tx, session)
		if err != nil {
			return err
		}
		if closed {
			continue
		}
		if i >= mostServed {
			s.Backlog.Add(tx, u.waiters.chore(u.Tx, ""))
		} else if err := u.serveWaits(""); err != nil {
			return err
		}
	}
	return nil
}

// AgentCompleted wakes the calls that wait for an agent to report completed. It is a hook of a
// heartbeat.
func (s *Service) AgentCompleted(tx *store.Tx, a directory.Agent) error {
	tx.OnCommit(func() { s.hub.Wake(key{session: a.Session, agent: a.Name}) })
	return nil
}

// SessionClosed ends the waits of a session that is closed for good, and releases its tasks. If these
// are more than a page, the backlog releases the rest. It is a hook of the closing.
func (s *Service) SessionClosed(tx *store.Tx, session directory.Session) error {
	u, _, err := s.byBroker(tx, session.ID)
	if err != nil {
		return err
	}
	u.waiters.end(u.Tx, verdict{err: fault.SessionClosed(u.Session.Name)}, func(*waiter) bool { return true })
	_, err = s.Backlog.Do(tx, work.Chore{Kind: closeChore, Session: session.ID})
	return err
}

// AwaitDeparture takes an agent that has deregistered from the rest of its tasks, and returns when
// that is done: the agent may then register again. A session that does not exist is no error.
func (t *table) AwaitDeparture(ctx context.Context, session, agent string) error {
	var id int64
	err := t.Store.Read(ctx, func(snap *store.Snapshot) error {
		found, err := t.Directory.Session(snap, session)
		id = found.ID
		return err
	})
	if err != nil && fault.KindOf(err) == fault.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	return t.Backlog.Finish(ctx, leaveChore, id, agent)
}

// AwaitClosed does what is left to do in a closed session, and returns when that is done.
func (t *table) AwaitClosed(ctx context.Context, session int64) error {
	return t.Backlog.FinishSession(ctx, session)
}

// A choreTx is one function of the writer that does a page of a chore.
type choreTx struct {
	*taskTx
	*work.Chore
}

// chore does the next page of a chore.
func (s *Service) chore(tx *store.Tx, c *work.Chore) (more bool, err error) {
	u, closed, err := s.byBroker(tx, c.Session)
	if errors.Is(err, store.ErrNoRows) { // the session was deleted
		return false, nil
	}
	if err != nil || closed && c.Kind != closeChore && c.Kind != supplyChore {
		return false, err
	}
	k := choreTx{u, c}
	switch c.Kind {
	case leaveChore:
		return k.leave()
	case failChore:
		return k.endClaims("the lease of its holder "+c.Name+" has ended", work.PageRows)
	case closeChore:
		return k.release()
	case supplyChore:
		_, more, err = k.supply(closed, work.PageRows)
		return more, err
	case cascadeChore:
		return k.cascade()
	case serveChore:
		return k.serve()
	}
	return false, fmt.Errorf("tasks know no chore %q", c.Kind)
}

// each changes the tasks that a query for at most pageTasks returns, as many as the budget of rows permits. A change
// has the given rows beside those of the state. It reports whether there may be more.
func (c choreTx) each(rows *store.Rows, budget *int, besides int, change func(t *task) error) (more bool, err error) {
	list, read, err := c.scanSound(rows)
	if err != nil {
		return false, err
	}
	for _, t := range list {
		if *budget <= 0 {
			return true, nil
		}
		*budget -= besides + c.weight(t)
		if err := change(t); err != nil {
			return false, err
		}
	}
	return read == pageTasks && len(list) > 0, nil
}

// leave takes an agent from the tasks that are assigned to it, and then ends its claims.
func (c choreTx) leave() (more bool, err error) {
	budget := work.PageRows
	assigned := c.Query(selectAssigned, c.taskTx.Session.ID, c.Name, pageTasks)
	more, err = c.each(assigned, &budget, noticeRows, func(t *task) error {
		return c.unassign(t, "taken from "+c.Name, "it has deregistered")
	})
	if more || err != nil {
		return more, err
	}
	return c.endClaims("its holder "+c.Name+" has deregistered", budget)
}

// endClaims ends the next claims of an agent: as failed attempts, or uncounted if it has stopped.
func (c choreTx) endClaims(why string, budget int) (more bool, err error) {
	held := c.Query(selectHeldBetween, c.taskTx.Session.ID, c.Name, c.After, c.Bound, pageTasks)
	return c.each(held, &budget, noticeRows, func(t *task) error {
		c.After = t.Fence
		if c.Text == hasStopped {
			return c.taskTx.release(t, "it has stopped")
		}
		c.count("lost")
		return c.endAttempt(t, why, false, 0)
	})
}

// release releases the next tasks of a closed session.
func (c choreTx) release() (more bool, err error) {
	budget := work.PageRows
	held := c.Query(selectAllHeld, c.taskTx.Session.ID, pageTasks)
	return c.each(held, &budget, 0, func(t *task) error {
		details := map[string]any{"agent": t.Holder, "reason": "the session is closed"}
		t.unhold()
		t.readyAt = c.Now()
		return c.enter(t, ready, "task.released", 0, "released: the session is closed", details)
	})
}

// serve serves the next waiters: those of one agent, or all, that have come until the chore began.
func (c choreTx) serve() (more bool, err error) {
	budget := searchRows
	granted := work.PageRows
	for _, w := range c.waiters.of(c.Tx) {
		if w.number <= c.After || w.number > c.Bound || c.Name != "" && w.agent.Name != c.Name {
			continue
		}
		if budget <= 0 || granted <= 0 {
			return true, nil
		}
		if more, err := c.taskTx.serve(w.number, &budget); err != nil || more {
			return more, err
		}
		c.After = w.number
		granted -= 10 + len(w.in.GetLabels()) // about what the claim of its task changes
	}
	return false, nil
}

package tasks

import (
	"fmt"
	"slices"
	"time"

	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

const (
	mostLost   = 5000 // claims that the end of a lease reports
	mostServed = 10   // sessions whose waits the end of a drain serves in its transaction
)

// A Loss is a task that an agent held.
type Loss struct {
	ID    string
	Fence int64
}

// AgentEnded ends the claims of an agent that has failed or stopped, and returns what it held, at most
// mostLost. The claims of one that has failed are failed attempts; the claims of one that has stopped
// are not counted. If there are many, the backlog ends them page by page; the broker refuses calls by
// these claims at once. It is a hook of the agent's end.
func (t *Tasks) AgentEnded(tx *store.Tx, session int64, agent string, stopped bool) ([]Loss, error) {
	u, closed, err := t.byBroker(tx, session)
	if err != nil || closed {
		return nil, err
	}
	chore := work.Chore{Kind: failChore, Session: session, Name: agent}
	if stopped {
		u.endWaits(agent, fault.AgentStopped(agent))
		chore.Text = hasStopped
	} else {
		u.endWaits(agent, errNoLonger(agent, "its lease has ended"))
	}
	chore.Bound = tx.NextRevision()
	losses, err := store.Collect(tx.Query(selectLosses, session, agent, chore.Bound, mostLost), func(r *store.Rows) (l Loss, err error) {
		return l, r.Scan(&l.ID, &l.Fence)
	})
	if err != nil || len(losses) == 0 {
		return nil, err
	}
	_, err = t.backlog.Do(tx, chore)
	return losses, err
}

// AgentGone ends the claims of an agent that has deregistered, and takes it from the tasks that are
// assigned to it. If these are more than a page, the backlog does the rest: until then no agent can
// claim them, and AgentRegistered refuses the agent. It is a hook of the end of a registration.
func (t *Tasks) AgentGone(tx *store.Tx, session int64, agent string) error {
	u, closed, err := t.byBroker(tx, session)
	if err != nil || closed {
		return err
	}
	u.endWaits(agent, errNoLonger(agent, "it has deregistered"))
	_, err = t.backlog.Do(tx, work.Chore{Kind: leaveChore, Session: session, Name: agent, Bound: tx.NextRevision()})
	return err
}

// endWaits ends the claims of an agent that wait.
func (u *taskTx) endWaits(agent string, why error) {
	u.end(verdict{err: why}, func(w *waiter) bool { return w.agent.Name == agent })
}

func errNoLonger(agent, why string) error {
	return fault.New(fault.Precondition, "AGENT_NOT_REGISTERED", "agent %q no longer waits for a task: %s", agent, why)
}

// AgentRegistered gives the waits of an agent its present role and capabilities. It refuses an agent
// that the backlog has yet to take from tasks of an earlier registration: see AwaitDeparture. It is a
// hook of a registration. The tasks that the agent holds stay.
func (t *Tasks) AgentRegistered(tx *store.Tx, session int64, agent directory.Agent) error {
	u, closed, err := t.byBroker(tx, session)
	if err != nil || closed {
		return err
	}
	if _, departing, err := t.backlog.Pending(tx, leaveChore, session, agent.Name); err != nil || departing {
		if err == nil {
			err = errDeparting(agent.Name)
		}
		return err
	}
	all := slices.Clone(u.waiters.Get(session))
	for i, w := range all {
		if w.agent.Name == agent.Name {
			now := *w
			now.agent = agent
			all[i] = &now
			t.searches.Delete(tx, w.number)
		}
	}
	u.setWaiters(all)
	return u.serveWaits(agent.Name)
}

// AgentResumed serves the waits of an agent that is no longer halted. It is a hook of a resume.
func (t *Tasks) AgentResumed(tx *store.Tx, session int64, agent string) error {
	u, closed, err := t.byBroker(tx, session)
	if err != nil || closed {
		return err
	}
	return u.serveWaits(agent)
}

// DrainEnded serves the waits of all sessions. It is a hook of the end of a drain.
func (t *Tasks) DrainEnded(tx *store.Tx) error {
	var sessions []int64
	for session := range t.waiters.All() {
		sessions = append(sessions, session)
	}
	slices.Sort(sessions)
	for i, session := range sessions {
		u, closed, err := t.byBroker(tx, session)
		if err != nil {
			return err
		}
		if closed {
			continue
		}
		if i >= mostServed {
			t.backlog.Add(tx, u.serveAll(""))
		} else if err := u.serveWaits(""); err != nil {
			return err
		}
	}
	return nil
}

// serveWaits serves the waits of an agent, or of all for an empty name: a page of them at once, and
// the backlog the rest.
func (u *taskTx) serveWaits(agent string) error {
	if len(u.waiters.Get(u.Session.ID)) == 0 {
		return nil
	}
	_, err := u.backlog.Do(u.Tx.Tx, u.serveAll(agent))
	return err
}

func (u *taskTx) serveAll(agent string) work.Chore {
	return work.Chore{Kind: serveChore, Session: u.Session.ID, Name: agent, Bound: u.numbers}
}

// Held counts the tasks that an agent of a session has claimed.
type Held struct {
	Session int64
	Agent   string
	Claims  int64
	Since   time.Time // the time of the oldest claim
}

// Held returns the CLAIMED tasks of all sessions.
func (t *Tasks) Held(q store.Querier) (all []Held, err error) {
	rows := q.Query(selectClaimsHeld)
	defer rows.Close()
	for rows.Next() {
		var h Held
		if err := rows.Scan(&h.Session, &h.Agent, &h.Claims, &h.Since); err != nil {
			return nil, err
		}
		all = append(all, h)
	}
	return all, rows.Err()
}

// AgentCompleted wakes the calls that wait for an agent to report completed. It is a hook of a
// heartbeat.
func (t *Tasks) AgentCompleted(tx *store.Tx, session int64, agent string) {
	tx.OnCommit(func() { t.hub.Wake(key{session: session, agent: agent}) })
}

// SessionClosed ends the waits of a session that is closed for good, and releases its tasks. If these
// are more than a page, the backlog releases the rest. It is a hook of the closing.
func (t *Tasks) SessionClosed(tx *store.Tx, session int64) error {
	u, _, err := t.byBroker(tx, session)
	if err != nil {
		return err
	}
	u.end(verdict{err: fault.SessionClosed(u.Session.Name)},
		func(*waiter) bool { return true })
	_, err = t.backlog.Do(tx, work.Chore{Kind: closeChore, Session: session})
	return err
}

// Holds reports whether an agent holds a task by a fence.
func (t *Tasks) Holds(q store.Querier, session int64, agent string, fence int64) (bool, error) {
	rows := q.Query(existsClaim, session, agent, fence)
	held := rows.Next()
	if err := rows.Close(); err != nil || !held {
		return false, err
	}
	return t.isCurrent(q, session, agent, fence)
}

// isCurrent reports whether the end of the agent has not ended a claim.
func (t *Tasks) isCurrent(q store.Querier, session int64, agent string, fence int64) (bool, error) {
	ended, _, err := t.backlog.Pending(q, failChore, session, agent)
	return fence > ended, err
}

// Block makes a task BLOCKED, for a blocker that names it, if the agent holds it, or if another agent
// does and an operator calls. It reports whether the task is BLOCKED then. A task that it does not
// block, and an id without a task, are no error.
func (t *Tasks) Block(tx *store.Tx, session int64, id string, by directory.Agent, reason string) (bool, error) {
	u, task, err := t.heldTask(tx, session, id, by)
	if err != nil || task == nil || !by.System() && task.Holder != by.Name {
		return false, err
	}
	return true, u.block(task, shorten(reason), map[string]any{})
}

// Unblock makes a BLOCKED task CLAIMED again. A feature with several reasons to block a task calls it
// for the last of them.
func (t *Tasks) Unblock(tx *store.Tx, session int64, id string, by directory.Agent, reason string) error {
	u, task, err := t.heldTask(tx, session, id, by)
	if err != nil || task == nil || task.State != Blocked {
		return err
	}
	return u.unblock(task, map[string]any{"reason": reason})
}

// Done reports whether a task is DONE.
func (t *Tasks) Done(q store.Querier, session int64, id string) (bool, error) {
	task, err := lookup(q, session, id)
	return task != nil && task.State == Done, err
}

// heldTask finds a task that an agent holds, nil if there is none.
func (t *Tasks) heldTask(tx *store.Tx, session int64, id string, by directory.Agent) (*taskTx, *Task, error) {
	u, _, err := t.byBroker(tx, session)
	if err != nil {
		return nil, nil, err
	}
	task, err := lookup(tx, session, id)
	if err != nil || task == nil || !task.State.held() {
		return u, nil, err
	}
	if current, err := t.isCurrent(tx, session, task.Holder, task.Fence); err != nil || !current {
		return u, nil, err
	}
	return u.as(by), task, nil
}

// Fence returns the fence by which an agent holds a task; 0 if it does not hold it.
func (t *Tasks) Fence(q store.Querier, session int64, id, agent string) (int64, error) {
	task, err := lookup(q, session, id)
	if err != nil || task == nil || !task.State.held() || task.Holder != agent {
		return 0, err
	}
	if current, err := t.isCurrent(q, session, agent, task.Fence); err != nil || !current {
		return 0, err
	}
	return task.Fence, nil
}

// Transfer moves the claim of a task to another agent, and returns the new fence. If the task is
// assigned to its holder, it is then assigned to the other agent. Errors: fault.NotFound;
// fault.Precondition (TASK_LOST) if from does not hold the task; fault.Exhausted (TOO_MANY_QUEUES).
func (t *Tasks) Transfer(tx *store.Tx, session int64, id, from, to string) (int64, error) {
	u, _, err := t.byBroker(tx, session)
	if err != nil {
		return 0, err
	}
	task, err := find(tx, session, id)
	if err != nil {
		return 0, err
	}
	if err := u.as(directory.Agent{Name: from}).holds(task, 0); err != nil {
		return 0, err
	}
	if task.Assignee == from {
		former := queueOf(task)
		task.Assignee = to
		if err := u.withinQueues(func() error { return u.moveQueue(task, former) }); err != nil {
			return 0, err
		}
	}
	revision, err := u.append(task, "task.transferred", 0, fmt.Sprintf("passed from %s to %s", from, to),
		map[string]any{"agent": to, "former": from, "former_fence": task.Fence})
	if err != nil {
		return 0, err
	}
	task.Holder, task.Fence, task.Revision, task.ClaimedAt, task.UpdatedAt = to, revision, revision, tx.Now(), tx.Now()
	if task.State == Claimed {
		u.startStale(task)
	}
	u.wake(task)
	task.save(tx)
	return revision, nil
}

// errDeparting is the error for an agent that registers again before the broker has taken it from all
// tasks of its earlier registration.
func errDeparting(agent string) error {
	e := fault.New(fault.Unavailable, "AGENT_DEPARTING",
		"the broker is still taking agent %q from the tasks that it left when it deregistered; register again in a moment", agent)
	e.RetryAfter = time.Second
	return e
}

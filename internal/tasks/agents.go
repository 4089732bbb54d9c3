package tasks

import (
	"fmt"
	"maps"
	"time"

	"brokerd/internal/caller"
	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// heldAtOnce is how many tasks one query of a hook reads.
const heldAtOnce = 500

// A Loss is a task that an agent held.
type Loss struct {
	ID    string
	Fence int64
}

// AgentFailed ends the attempts of an agent whose lease has ended, and returns what it lost. It is a
// hook of the end of a lease.
func (t *Tasks) AgentFailed(tx *store.Tx, session int64, agent string) ([]Loss, error) {
	return t.agentEnded(tx, session, agent, "its lease has ended", "the lease of its holder "+agent+" has ended")
}

// AgentGone ends the attempts of an agent that has deregistered, and takes it from the tasks that
// are assigned to it. It is a hook of the end of a registration.
func (t *Tasks) AgentGone(tx *store.Tx, session int64, agent string) error {
	const why = "it has deregistered"
	u, closed, err := t.byBroker(tx, session)
	if err != nil || closed {
		return err
	}
	for {
		assigned, err := scanAll(tx.Query(selectAssigned, session, agent, heldAtOnce))
		if err != nil {
			return err
		}
		for _, task := range assigned {
			if err := u.unassign(task, "taken from "+agent, why); err != nil {
				return err
			}
		}
		if len(assigned) < heldAtOnce {
			break
		}
	}
	_, err = t.agentEnded(tx, session, agent, why, "its holder "+agent+" has deregistered")
	return err
}

// agentEnded ends the waits of an agent for a reason, and its attempts with an error.
func (t *Tasks) agentEnded(tx *store.Tx, session int64, agent, why, lost string) ([]Loss, error) {
	u, closed, err := t.byBroker(tx, session)
	if err != nil || closed {
		return nil, err
	}
	u.end(verdict{err: fault.New(fault.Precondition, "AGENT_NOT_REGISTERED", "agent %q no longer waits for a task: %s", agent, why)},
		func(w *waiter) bool { return w.agent.Name == agent })
	var losses []Loss
	for {
		held, err := scanAll(tx.Query(selectHeld, session, agent, heldAtOnce))
		if err != nil || len(held) == 0 {
			return losses, err
		}
		for _, task := range held {
			losses = append(losses, Loss{task.ID, task.Fence})
			u.count("lost", 1)
			if err := u.endAttempt(task, lost, false, 0); err != nil {
				return nil, err
			}
		}
	}
}

// AgentRegistered gives the waits of an agent its present role and capabilities. It is a hook of a
// registration. The tasks that the agent holds stay.
func (t *Tasks) AgentRegistered(tx *store.Tx, session int64, agent work.Agent) error {
	u, closed, err := t.byBroker(tx, session)
	if err != nil || closed {
		return err
	}
	for _, w := range u.waiters[session] {
		if w.agent.Name != agent.Name {
			continue
		}
		before := w.agent
		w.agent = agent
		tx.OnUndo(func() { w.agent = before })
		if err := u.serve(w); err != nil {
			return err
		}
	}
	return nil
}

// AgentResumed serves the waits of an agent that is no longer halted. It is a hook of a resume.
func (t *Tasks) AgentResumed(tx *store.Tx, session int64, agent string) error {
	u, closed, err := t.byBroker(tx, session)
	if err != nil || closed {
		return err
	}
	for _, w := range u.waiters[session] {
		if w.agent.Name == agent {
			if err := u.serve(w); err != nil {
				return err
			}
		}
	}
	return nil
}

// DrainEnded serves the waits of all sessions. It is a hook of the end of a drain.
func (t *Tasks) DrainEnded(tx *store.Tx) error {
	for session := range maps.Clone(t.waiters) {
		u, closed, err := t.byBroker(tx, session)
		if err != nil {
			return err
		}
		if closed {
			continue
		}
		for _, w := range u.waiters[session] {
			if err := u.serve(w); err != nil {
				return err
			}
		}
	}
	return nil
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
	for rows.Next() {
		var h Held
		if err := rows.Scan(&h.Session, &h.Agent, &h.Claims, &h.Since); err != nil {
			return nil, err
		}
		all = append(all, h)
	}
	return all, rows.Err()
}

// serve gives a waiter a READY task if one matches now.
func (u *taskTx) serve(w *waiter) error {
	if gated, err := u.gated(w.agent); err != nil || gated != Something {
		return err
	}
	if w.given != 0 {
		task, err := scan(u.tx.QueryRow(selectTask, w.given))
		if err != nil || task.State != Ready || !task.DueAt.IsZero() || !w.wants(task) {
			return err
		}
		return u.grant(w, task)
	}
	queues, err := u.sessionQueues()
	if err != nil {
		return err
	}
	found, err := first(u.tx, queues, w.agent, w.wish.Labels, 1)
	if err != nil || len(found) == 0 {
		return err
	}
	return u.grant(w, found[0])
}

// AgentCompleted wakes the calls that wait for an agent to report completed. It is a hook of a
// heartbeat.
func (t *Tasks) AgentCompleted(tx *store.Tx, session int64, agent string) {
	tx.OnCommit(func() { t.hub.Wake(key{session: session, agent: agent}) })
}

// SessionClosed ends the waits of a session that is closed for good, and releases its tasks. It is a
// hook of the closing.
func (t *Tasks) SessionClosed(tx *store.Tx, session int64) error {
	s, _, err := t.dir.ByID(tx, session)
	if err != nil {
		return err
	}
	u := &taskTx{Tasks: t, tx: tx, session: s, actor: work.Agent{Name: caller.System}}
	u.end(verdict{err: fault.New(fault.Precondition, "SESSION_CLOSED", "the session %q is closed: nothing in it changes any more", s.Name)},
		func(*waiter) bool { return true })
	after := int64(0)
	for {
		held, err := scanAll(tx.Query(selectAllHeld, session, after, heldAtOnce))
		if err != nil || len(held) == 0 {
			return err
		}
		for _, task := range held {
			after = task.Created
			details := map[string]any{"agent": task.Holder, "reason": "the session is closed"}
			u.unhold(task)
			task.ReadyAt = tx.Now()
			if err := u.enter(task, Ready, "task.released", 0, "released: the session is closed", details); err != nil {
				return err
			}
		}
	}
}

// Holds reports whether an agent holds a task by a fence.
func (t *Tasks) Holds(q store.Querier, session int64, agent string, fence int64) (bool, error) {
	rows := q.Query(existsClaim, session, agent, fence)
	held := rows.Next()
	return held, rows.Close()
}

// Block makes a task BLOCKED, for a blocker that names it, if the agent holds it, or if another agent
// does and an operator calls. It reports whether the task is BLOCKED then. A task that it does not
// block, and an id without a task, are no error.
func (t *Tasks) Block(tx *store.Tx, session int64, id string, by work.Agent, reason string) (bool, error) {
	u, task, err := t.heldTask(tx, session, id, by)
	if err != nil || task == nil || !by.System() && task.Holder != by.Name {
		return false, err
	}
	return true, u.block(task, shorten(reason), map[string]any{})
}

// Unblock makes a BLOCKED task CLAIMED again. A feature with several reasons to block a task calls it
// for the last of them.
func (t *Tasks) Unblock(tx *store.Tx, session int64, id string, by work.Agent, reason string) error {
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
func (t *Tasks) heldTask(tx *store.Tx, session int64, id string, by work.Agent) (*taskTx, *Task, error) {
	u, _, err := t.byBroker(tx, session)
	if err != nil {
		return nil, nil, err
	}
	task, err := lookup(tx, session, id)
	if err != nil || task == nil || !task.State.held() {
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
	return task.Fence, nil
}

// Transfer moves the claim of a task to another agent, and returns the new fence. If the task is
// assigned to its holder, it is then assigned to the other agent. Errors: fault.NotFound;
// fault.Precondition (TASK_LOST) if from does not hold the task.
func (t *Tasks) Transfer(tx *store.Tx, session int64, id, from, to string) (int64, error) {
	u, _, err := t.byBroker(tx, session)
	if err != nil {
		return 0, err
	}
	task, err := find(tx, session, id)
	if err != nil {
		return 0, err
	}
	if err := u.as(work.Agent{Name: from}).holds(task, 0); err != nil {
		return 0, err
	}
	if task.Assignee == from {
		task.Assignee = to
		if task.queue, err = u.queueFor(task); err != nil {
			return 0, err
		}
		if _, err := tx.Exec(updateAssignee, to, task.queue, task.Created); err != nil {
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
	return revision, task.save(tx)
}

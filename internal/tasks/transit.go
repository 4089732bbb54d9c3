package tasks

import (
	"fmt"
	"strconv"
	"time"

	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/finding"
	"brokerd/internal/identity"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// A taskTx is one function of the writer that changes tasks of a session.
type taskTx struct {
	*work.Tx
	*Tasks
	known map[string]Empty // why agents get no task; see gated
}

// within returns the changes of a function of the writer.
func (t *Tasks) within(tx *work.Tx) *taskTx { return &taskTx{tx, t, map[string]Empty{}} }

// byBroker returns the changes that the broker itself makes in a session. closed sessions have none.
func (t *Tasks) byBroker(tx *store.Tx, session int64) (u *taskTx, closed bool, err error) {
	b, err := t.BeginBroker(tx, session)
	return t.within(b), b.Session.Closed(), err
}

// append adds the event of a change and returns its revision.
func (u *taskTx) append(task *Task, kind string, severity events.Severity, summary string, details map[string]any) (int64, error) {
	return u.AppendEvent(u.Tx, work.Subject{Noun: Kind, ID: task.ID, Task: task.ID}, work.Event{
		Type: kind, Severity: severity, Summary: "task " + task.ID + " " + summary, Details: details,
	})
}

// enter stores a change of state with its event, and wakes the calls that wait for the task. If the
// claim of a BLOCKED task has ended, the task is no longer BLOCKED for its blockers.
func (u *taskTx) enter(task *Task, state State, kind string, severity events.Severity, summary string, details map[string]any) error {
	details["previous"] = task.State.String()
	details["state"] = state.String()
	revision, err := u.append(task, kind, severity, summary, details)
	if err != nil {
		return err
	}
	if task.State == Blocked && !state.held() && u.stops != nil {
		if err := u.stops.Freed(u.Tx.Tx, u.Session.ID, task.ID); err != nil {
			return err
		}
	}
	was := task.State
	task.State, task.Revision, task.Entered = state, revision, revision
	u.wake(task)
	if !state.finished() {
		if was.finished() {
			u.addUnfinished(1)
		}
		task.save(u.Tx.Tx)
		return nil
	}
	task.FinishedAt = u.Now()
	u.dismissClaims(task)
	u.CountOutcome(u.Tx, Kind, state.String())
	task.save(u.Tx.Tx)
	if was.finished() {
		return nil
	}
	u.addUnfinished(-1)
	return u.leaveQueue(task.queue, queueOf(task))
}

// addUnfinished counts the unfinished tasks of the session.
func (u *taskTx) addUnfinished(n int) {
	u.unfinished.Set(u.Tx.Tx, u.Session.ID, u.unfinished.Get(u.Session.ID)+n)
}

// wake wakes the calls that wait for a task, once the transaction is committed.
func (u *taskTx) wake(task *Task) {
	k := key{session: u.Session.ID, task: task.Created}
	u.OnCommit(func() { u.hub.Wake(k) })
}

// claim gives a READY task to an agent.
func (u *taskTx) claim(task *Task, agent directory.Agent) error {
	by := u.as(agent)
	task.Holder, task.ClaimedAt, task.UpdatedAt, task.Unblocked = agent.Name, u.Now(), u.Now(), false
	u.startStale(task)
	attempt := task.Attempts + 1
	revision, err := by.append(task, "task.claimed", events.Debug, "claimed by "+agent.Name, map[string]any{
		"agent": agent.Name, "attempt": attempt, "previous": Ready.String(), "state": Claimed.String(),
	})
	if err != nil {
		return err
	}
	task.State, task.Revision, task.Entered, task.Fence = Claimed, revision, revision, revision
	u.CountOutcome(u.Tx, Kind, "claimed")
	u.wake(task)
	task.save(u.Tx.Tx)
	if task.Assignee == "" {
		return nil
	}
	return u.Post.Withdraw(u.Tx.Tx, u.Session.ID, work.Moot{About: task.Created, Type: assignment})
}

// as returns the changes that another agent causes.
func (u *taskTx) as(agent directory.Agent) *taskTx {
	tx := *u.Tx
	tx.Actor = agent
	return &taskTx{&tx, u.Tasks, u.known}
}

// startStale starts the time in which the holder must update the task.
func (u *taskTx) startStale(task *Task) {
	task.DueAt = time.Time{}
	if task.StaleAfter > 0 {
		task.DueAt = u.Now().Add(task.StaleAfter)
		u.calendar.Expect(u.Tx.Tx, task.DueAt)
	}
}

// reopen returns a task to READY, and offers it unless it has to wait until due.
func (u *taskTx) reopen(task *Task, due time.Time, kind string, severity events.Severity, summary string, details map[string]any) error {
	u.unhold(task)
	task.ReadyAt, task.DueAt = u.Now(), due
	if !due.IsZero() {
		details["due_at"] = due.UTC().Format(time.RFC3339Nano)
		u.calendar.Expect(u.Tx.Tx, due)
	}
	if err := u.enter(task, Ready, kind, severity, summary, details); err != nil {
		return err
	}
	return u.offer(task)
}

// unhold ends the claim of a task.
func (u *taskTx) unhold(task *Task) {
	task.Holder, task.Fence, task.DueAt, task.Unblocked = "", 0, time.Time{}, false
	task.Reason, task.BlockedAt = "", time.Time{}
}

// endAttempt counts the attempt of a task's holder as failed. The task returns to READY, or becomes
// FAILED after its last attempt or if the failure is fatal. The task keeps its newest mostListed
// attempts.
func (u *taskTx) endAttempt(task *Task, why string, fatal bool, wait time.Duration) error {
	holder, claimedAt := task.Holder, task.ClaimedAt
	task.Attempts++
	number := task.Attempts
	task.Error = shorten(why)
	details := map[string]any{"agent": holder, "attempt": number, "max_attempts": task.MaxAttempts, "error": task.Error}
	u.Exec(insertAttempt, u.NextRevision(), task.Created, number, holder, claimedAt, u.Now(), why)
	u.Exec(deleteOldAttempt, task.Created, mostListed)
	if fatal || task.Attempts >= task.MaxAttempts {
		u.unhold(task)
		err := u.enter(task, Failed, "task.failed", events.Error, "failed: "+finding.Clip(why), details)
		if err == nil {
			err = u.tell(task, task.Creator, "task_failed", "task "+task.ID+" failed: "+finding.Clip(why), map[string]any{
				"task_id": task.ID, "title": task.Title, "error": task.Error, "attempts": task.Attempts, "agent": holder,
			})
		}
		return err
	}
	var due time.Time
	if wait > 0 {
		due = u.Now().Add(wait)
	}
	u.CountOutcome(u.Tx, Kind, "retried")
	return u.reopen(task, due, "task.attempt_failed", events.Warning,
		fmt.Sprintf("attempt %d of %d failed: %s", number, task.MaxAttempts, finding.Clip(why)), details)
}

// holds checks that the acting agent holds a task by a fence: FAILED_PRECONDITION (TASK_LOST).
func (u *taskTx) holds(task *Task, fence int64) error {
	holds, err := u.isHolder(task)
	if err != nil || holds && (fence == 0 || fence == task.Fence) {
		return err
	}
	return lost(task, u.Actor.Name, fence)
}

// lost is the error for a caller that does not hold a task.
func lost(task *Task, agent string, fence int64) error {
	says := "it is " + task.State.String()
	switch {
	case task.State.held() && task.Holder == agent && (fence == 0 || fence == task.Fence):
		says = "its lease has ended, and the broker releases the task in a moment"
	case task.State.held() && task.Holder == agent:
		says = fmt.Sprintf("it holds it by the fence %d", task.Fence)
	case task.State.held():
		says += " by " + task.Holder
	case task.State == Done && task.Holder != "":
		says += ", completed by " + task.Holder
	}
	by := ""
	if fence != 0 {
		by = " by the fence " + strconv.FormatInt(fence, 10)
	}
	do := "stop working on it"
	if agent == identity.System {
		do = "only its holder settles a task"
	}
	return fault.New(fault.Precondition, "TASK_LOST", "%s does not hold task %q%s: %s; %s", agent, task.ID, by, says, do).
		With("state", task.State.String()).With("holder", task.Holder)
}

// directs checks that the acting agent may change a task as its creator does: fault.Denied.
func (u *taskTx) directs(task *Task, verb string) error {
	if u.Actor.Name == task.Creator || u.Actor.Directs(u.Session) {
		return nil
	}
	return fault.New(fault.Denied, "NOT_CREATOR", "only its creator %s, an agent that may send directives, or an operator may %s task %q",
		task.Creator, verb, task.ID)
}

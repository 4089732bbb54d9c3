package tasks

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/finding"
	"brokerd/internal/identity"
	"brokerd/internal/store"
	"brokerd/internal/validate"
	"brokerd/internal/work"
)

// A taskTx is one function of the writer that changes tasks of a session.
type taskTx struct {
	*work.Tx
	*Service
	known map[string]pb.TaskEmptyReason // why agents get no task; see gated
}

// as returns the changes that another agent causes.
func (u *taskTx) as(agent directory.Agent) *taskTx {
	if agent.Name == u.Actor.Name {
		return u
	}
	tx := *u.Tx
	tx.Actor = agent
	return &taskTx{&tx, u.Service, u.known}
}

// append adds the event of a change and returns its revision.
func (u *taskTx) append(
	t *task, kind string, severity events.Severity, summary string, details map[string]any,
) (int64, error) {
	return u.AppendEvent(u.Tx, work.Subject{Noun: noun, ID: t.Id, Task: t.Id}, work.Event{
		Type: kind, Severity: severity, Summary: "task " + t.Id + " " + summary, Details: details,
	})
}

// count counts an outcome once the transaction is committed.
func (u *taskTx) count(outcome string) { u.CountOutcome(u.Tx, noun, outcome) }

// wake wakes the calls that wait for a task, once the transaction is committed.
func (u *taskTx) wake(t *task) {
	k := key{session: u.Session.ID, task: t.CreatedRevision}
	u.OnCommit(func() { u.hub.Wake(k) })
}

// enter stores a change of state with its event, and wakes the calls that wait for the task. If the
// claim of a BLOCKED task has ended, the task is no longer BLOCKED for its blockers.
func (u *taskTx) enter(
	t *task, state pb.TaskState, kind string, severity events.Severity, summary string, details map[string]any,
) error {
	details["previous"], details["state"] = word(t.State), word(state)
	revision, err := u.append(t, kind, severity, summary, details)
	if err != nil {
		return err
	}
	if t.State == blocked && !held(state) && u.stops != nil {
		if err := u.stops.Freed(u.Tx.Tx, u.Session.ID, t.Id); err != nil {
			return err
		}
	}
	was := t.State
	t.State, t.Revision, t.entered = state, revision, revision
	u.wake(t)
	if !finished(state) {
		if finished(was) {
			u.queues.count(u.Tx, 1)
		}
		t.save(u.Tx.Tx)
		return nil
	}
	t.finishedAt = u.Now()
	u.waiters.end(u.Tx, verdict{err: unavailable(t, "")}, func(w *waiter) bool { return w.given == t.CreatedRevision })
	u.count(word(state))
	t.save(u.Tx.Tx)
	if finished(was) {
		return nil
	}
	u.queues.count(u.Tx, -1)
	return u.queues.leave(u.Tx, t.queue, queueOf(t))
}

// claim gives a READY task to an agent, and returns the answer to it.
func (u *taskTx) claim(t *task, agent directory.Agent) (*pb.ClaimTaskResponse, error) {
	now := u.Now()
	t.Holder, t.claimedAt, t.updatedAt, t.unblocked = agent.Name, now, now, false
	u.startStale(t)
	attempt := int(t.Attempts) + 1
	revision, err := u.as(agent).append(t, "task.claimed", events.Debug, "claimed by "+agent.Name, map[string]any{
		"agent": agent.Name, "attempt": attempt, "previous": word(ready), "state": word(claimed),
	})
	if err != nil {
		return nil, err
	}
	t.State, t.Revision, t.entered, t.Fence = claimed, revision, revision, revision
	u.count("claimed")
	u.wake(t)
	t.save(u.Tx.Tx)
	if t.Assignee != "" {
		if err := u.withdraw(t); err != nil {
			return nil, err
		}
	}
	return claimOf(u, t, attempt, false)
}

// reopen returns a task to READY, and offers it unless it has to wait until due.
func (u *taskTx) reopen(
	t *task, due time.Time, kind string, severity events.Severity, summary string, details map[string]any,
) error {
	t.unhold()
	t.readyAt, t.due = u.Now(), due
	if !due.IsZero() {
		details["due_at"] = due.UTC().Format(time.RFC3339Nano)
		u.calendar.Expect(u.Tx.Tx, due)
	}
	if err := u.enter(t, ready, kind, severity, summary, details); err != nil {
		return err
	}
	return u.offer(t)
}

// unhold ends the claim of a task.
func (t *task) unhold() {
	t.Holder, t.Fence, t.due, t.unblocked = "", 0, time.Time{}, false
	t.BlockReason, t.blockedAt = "", time.Time{}
}

// startStale starts the time in which the holder must update the task.
func (u *taskTx) startStale(t *task) {
	t.due = time.Time{}
	if t.staleAfter > 0 {
		t.due = u.Now().Add(t.staleAfter)
		u.calendar.Expect(u.Tx.Tx, t.due)
	}
}

// endAttempt counts the attempt of a task's holder as failed. The task returns to READY, or becomes
// FAILED after its last attempt or if the failure is fatal. The task keeps its newest mostListed
// attempts.
func (u *taskTx) endAttempt(t *task, why string, fatal bool, wait time.Duration) error {
	holder := t.Holder
	t.Attempts++
	t.Error = shorten(why)
	details := map[string]any{"agent": holder, "attempt": t.Attempts, "max_attempts": t.MaxAttempts, "error": t.Error}
	u.Exec(insertAttempt, u.NextRevision(), t.CreatedRevision, t.Attempts, holder, t.claimedAt, u.Now(), why)
	u.Exec(deleteOldAttempt, t.CreatedRevision, mostListed)
	if fatal || t.Attempts >= t.MaxAttempts {
		t.unhold()
		err := u.enter(t, failed, "task.failed", events.Error, "failed: "+finding.Clip(why), details)
		if err == nil {
			err = u.inform(t, t.Creator, "task_failed", "task "+t.Id+" failed: "+finding.Clip(why), map[string]any{
				"task_id": t.Id, "title": t.Title, "error": t.Error, "attempts": t.Attempts, "agent": holder,
			})
		}
		return err
	}
	var due time.Time
	if wait > 0 {
		due = u.Now().Add(wait)
	}
	u.count("retried")
	return u.reopen(t, due, "task.attempt_failed", events.Warning,
		fmt.Sprintf("attempt %d of %d failed: %s", t.Attempts, t.MaxAttempts, finding.Clip(why)), details)
}

// isHolder reports whether the acting agent holds a task.
func (u *taskTx) isHolder(t *task) (bool, error) {
	if !held(t.State) || t.Holder != u.Actor.Name {
		return false, nil
	}
	return u.isCurrent(u, u.Session.ID, t.Holder, t.Fence)
}

// holds checks that the acting agent holds a task by a fence: FAILED_PRECONDITION (TASK_LOST).
func (u *taskTx) holds(t *task, fence int64) error {
	holds, err := u.isHolder(t)
	if err != nil || holds && (fence == 0 || fence == t.Fence) {
		return err
	}
	return lost(t, u.Actor.Name, fence)
}

// lost is the error for a caller that does not hold a task.
func lost(t *task, agent string, fence int64) error {
	says := "it is " + word(t.State)
	switch {
	case held(t.State) && t.Holder == agent && (fence == 0 || fence == t.Fence):
		says = "its lease has ended, and the broker releases the task in a moment"
	case held(t.State) && t.Holder == agent:
		says = fmt.Sprintf("it holds it by the fence %d", t.Fence)
	case held(t.State):
		says += " by " + t.Holder
	case t.State == done && t.Holder != "":
		says += ", completed by " + t.Holder
	}
	by := ""
	if fence != 0 {
		by = " by the fence " + strconv.FormatInt(fence, 10)
	}
	do := "stop working on it"
	if agent == identity.System {
		do = "only its holder settles a task"
	}
	return fault.New(fault.Precondition, "TASK_LOST", "%s does not hold task %q%s: %s; %s", agent, t.Id, by, says, do).
		With("state", word(t.State)).With("holder", t.Holder)
}

// directs checks that the acting agent may change a task as its creator does, and that the state permits the call:
// fault.Denied, fault.Precondition.
func (u *taskTx) directs(t *task, call string) error {
	if u.Actor.Name == t.Creator || u.Actor.Directs(u.Session) {
		return allows(t, call)
	}
	return fault.New(fault.Denied, "NOT_CREATOR",
		"only its creator %s, an agent that may send directives, or an operator may %s task %q", t.Creator, call, t.Id)
}

// entries returns the tasks with the earliest times at which something is due.
func entries(q store.Querier, limit int) ([]work.Entry[int64], error) {
	return store.Collect(q.Query(selectDue, limit), func(r *store.Rows) (e work.Entry[int64], err error) {
		return e, r.Scan(&e.Key, &e.At)
	})
}

// due makes the change of a task that is due: it offers a task whose backoff has passed, and ends the
// attempt of a holder that has not updated its task.
func (s *Service) due(tx *store.Tx, key int64) error {
	t, err := byKey(tx, key)
	if err != nil || t == nil || t.due.IsZero() || t.due.After(tx.Now()) {
		return err
	}
	u, closed, err := s.byBroker(tx, t.session)
	switch {
	case err != nil:
		return err
	case closed || t.State != ready && t.State != claimed:
		t.due = time.Time{}
		t.save(tx)
		return nil
	case t.State == ready:
		return u.ripen(t)
	default:
		return u.stale(t)
	}
}

// ripen ends the backoff of a READY task.
func (u *taskTx) ripen(t *task) error {
	t.due = time.Time{}
	t.save(u.Tx.Tx)
	u.wake(t)
	return u.offer(t)
}

// stale ends the attempt of a holder that has not updated its task.
func (u *taskTx) stale(t *task) error {
	why := "its holder " + t.Holder + " sent no update for " + validate.Short(t.staleAfter)
	if err := u.tellLost(t, t.Holder, why); err != nil {
		return err
	}
	u.count("stale")
	return u.endAttempt(t, why, false, 0)
}

// assignment is the type of the letter to the assignee of a READY task.
const assignment = "task_assignment"

// assign sends the assignee of a READY task its letter.
func (u *taskTx) assign(t *task) error {
	if t.Assignee == "" || t.Assignee == t.Creator {
		return nil
	}
	if err := t.fill(u); err != nil {
		return err
	}
	details := map[string]any{"task_id": t.Id, "title": t.Title, "description": t.Description}
	if len(t.DependsOn) > 0 {
		details["depends_on"] = t.DependsOn
	}
	if t.Parent != "" {
		details["parent"] = t.Parent
	}
	payload, err := json.Marshal(details)
	if err != nil {
		return err
	}
	// A creator that has deregistered cannot send.
	from, _, err := u.Directory.Find(u, u.Session.ID, t.Creator)
	if err != nil {
		return err
	}
	_, err = u.Post.Post(u.Tx.Tx, u.Session.ID, work.Letter{
		From: from, To: []string{t.Assignee}, Type: assignment, Subject: t.Title, Body: t.Description,
		Payload: string(payload), Task: t.Id, Priority: int(t.Priority), Artifacts: t.Artifacts, About: t.CreatedRevision,
	})
	return err
}

// withdraw withdraws the letter to the assignee.
func (u *taskTx) withdraw(t *task) error {
	return u.Post.Withdraw(u.Tx.Tx, u.Session.ID, work.Moot{About: t.CreatedRevision, Type: assignment})
}

// inform notifies an agent about a task, unless the agent itself has caused it.
func (u *taskTx) inform(t *task, agent, kind, subject string, details map[string]any) error {
	if agent == "" || agent == identity.System || agent == u.Actor.Name {
		return nil
	}
	payload, err := json.Marshal(details)
	if err != nil {
		return err
	}
	return u.Post.Notify(u.Tx.Tx, u.Session.ID, work.Notice{
		Agent: agent, Type: kind, Subject: subject, Payload: string(payload), Task: t.Id, About: t.CreatedRevision,
	})
}

// tellLost notifies an agent that it no longer holds a task.
func (u *taskTx) tellLost(t *task, holder, why string) error {
	return u.inform(t, holder, "task_lost", "you no longer hold task "+t.Id+": "+finding.Clip(why),
		map[string]any{"task_id": t.Id, "title": t.Title, "fence": t.Fence, "reason": why})
}

// because adds a reason to a sentence.
func because(says, reason string) string {
	if strings.TrimSpace(reason) == "" {
		return says
	}
	return says + ": " + finding.Clip(reason)
}

// shorten cuts a text to at most maxShown bytes.
func shorten(s string) string {
	if len(s) <= maxShown {
		return s
	}
	return work.Clip(s, maxShown-len("…"))
}

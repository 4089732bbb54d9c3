package tasks

import (
	"fmt"
	"maps"
	"strings"
	"time"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/finding"
	"brokerd/internal/store"
	"brokerd/internal/validate"
	"brokerd/internal/work"
)

// describes reports whether a change is one of the creator's.
func describes(in *pb.UpdateTaskRequest) bool {
	return in.Title != nil || in.Description != nil || in.Priority != nil ||
		len(in.GetSetLabels())+len(in.GetRemoveLabels()) > 0
}

// update changes a task as its creator and as its holder do. A change without any field is one of the holder.
// Errors: fault.Precondition (TASK_LOST, TASK_NOT_BLOCKED, TASK_BLOCKED, TASK_FINISHED); fault.Denied (NOT_CREATOR).
func (u *taskTx) update(t *task, in *pb.UpdateTaskRequest, out *pb.UpdateTaskResponse) error {
	described := describes(in)
	_, block := in.GetBlockChange().(*pb.UpdateTaskRequest_Block)
	if described {
		if err := u.directs(t, "describe"); err != nil {
			return err
		}
	}
	if in.Progress != nil || in.Note != nil || block || in.GetUnblock() || !described {
		if err := u.holds(t, in.GetFence()); err != nil {
			return err
		}
		if err := u.report(t, in); err != nil {
			return err
		}
	}
	if described {
		if err := u.describe(t, in); err != nil {
			return err
		}
	}
	out.Task = t.brief()
	if t.State == claimed {
		out.StaleAt = work.Stamp(t.due)
	}
	return nil
}

// report stores what the holder reports.
func (u *taskTx) report(t *task, in *pb.UpdateTaskRequest) error {
	if in.GetUnblock() {
		if err := u.unblocks(t); err != nil {
			return err
		}
	}
	details := map[string]any{}
	if in.Progress != nil && in.GetProgress() != t.Progress {
		t.Progress = in.GetProgress()
		details["progress"] = t.Progress
	}
	if in.Note != nil && in.GetNote() != t.Note {
		t.Note = in.GetNote()
		details["note"] = t.Note
	}
	t.updatedAt = u.Now()
	if c, ok := in.GetBlockChange().(*pb.UpdateTaskRequest_Block); ok {
		return u.block(t, c.Block, details)
	}
	if in.GetUnblock() {
		return u.unblock(t, details)
	}
	if t.State == claimed {
		u.startStale(t)
	}
	if len(details) == 0 {
		u.Exec(updateLiveness, u.Now(), t.due, t.CreatedRevision)
		return nil
	}
	summary := fmt.Sprintf("is at %d %%", int(t.Progress*100))
	if in.Note != nil {
		summary += ": " + finding.Clip(t.Note)
	}
	var err error
	if t.Revision, err = u.append(t, "task.progress", events.Debug, summary, details); err != nil {
		return err
	}
	t.save(u.Tx.Tx)
	return nil
}

// block makes a task BLOCKED, or changes the reason. It cannot become stale.
func (u *taskTx) block(t *task, reason string, details map[string]any) error {
	details["agent"], details["reason"] = t.Holder, reason
	if t.State == claimed {
		t.blockedAt = u.Now()
	}
	t.BlockReason, t.due, t.unblocked = reason, time.Time{}, false
	return u.enter(t, blocked, "task.blocked", events.Warning, "is blocked: "+finding.Clip(reason), details)
}

// unblocks checks that the holder may unblock a task.
func (u *taskTx) unblocks(t *task) error {
	if err := allows(t, "unblock"); err != nil || u.stops == nil {
		return err
	}
	ids, err := u.stops.Stopping(u, u.Session.ID, t.Id, mostNamed)
	if err != nil || len(ids) == 0 {
		return err
	}
	what := "blocker " + ids[0] + " is"
	if len(ids) > 1 {
		what = "blockers " + strings.Join(ids, ", ") + " are"
	}
	return fault.New(fault.Precondition, "TASK_BLOCKED", "task %q stays blocked until the %s resolved", t.Id, what).
		With("blockers", strings.Join(ids, ","))
}

// unblock makes a BLOCKED task CLAIMED again.
func (u *taskTx) unblock(t *task, details map[string]any) error {
	details["agent"], details["blocked_seconds"] = t.Holder, u.Now().Sub(t.blockedAt).Seconds()
	t.BlockReason, t.blockedAt, t.unblocked = "", time.Time{}, true
	t.updatedAt = u.Now()
	u.startStale(t)
	return u.enter(t, claimed, "task.unblocked", 0, "is no longer blocked", details)
}

// describe stores what the creator changes.
func (u *taskTx) describe(t *task, in *pb.UpdateTaskRequest) error {
	details := map[string]any{}
	if in.Title != nil {
		t.Title = in.GetTitle()
		details["title"] = t.Title
	}
	if in.Priority != nil {
		t.Priority = in.GetPriority()
		details["priority"] = t.Priority
	}
	if len(in.GetSetLabels())+len(in.GetRemoveLabels()) > 0 {
		labels := map[string]string{}
		maps.Copy(labels, t.Labels)
		maps.Copy(labels, in.GetSetLabels())
		for _, k := range in.GetRemoveLabels() {
			delete(labels, k)
		}
		if len(labels) > validate.MaxLabels {
			return fault.Field("set_labels", "the task would have %d labels; at most %d are allowed", len(labels),
				validate.MaxLabels)
		}
		t.Labels = labels
		details["labels"] = labels
	}
	if in.Description != nil {
		details["description_bytes"] = len(in.GetDescription())
	}
	var err error
	if t.Revision, err = u.append(t, "task.changed", 0, "was changed: "+t.Title, details); err != nil {
		return err
	}
	u.Exec(updateDescription, t.Title, toJSON(len(t.Labels), t.Labels), t.rank(), t.Revision, t.CreatedRevision)
	if in.Description != nil {
		t.putText(u.Tx.Tx, putDescription, in.GetDescription())
	}
	t.relabel(u.Tx.Tx)
	if len(in.GetSetLabels()) > 0 && t.State == ready {
		return u.offer(t) // a waiter may want it now
	}
	return nil
}

// complete finishes a task of the caller, and makes READY the tasks that waited for it alone. Errors:
// fault.Precondition (TASK_LOST).
func (u *taskTx) complete(t *task, in *pb.CompleteTaskRequest, out *pb.CompleteTaskResponse) error {
	if t.State == done && t.Holder == u.Actor.Name && (in.GetFence() == 0 || in.GetFence() == t.Fence) {
		out.Task, out.Unchanged = t.brief(), true
		return nil
	}
	if err := u.holds(t, in.GetFence()); err != nil {
		return err
	}
	details := map[string]any{
		"agent": t.Holder, "attempt": t.Attempts + 1, "seconds": u.Now().Sub(t.claimedAt).Seconds(),
	}
	t.Progress, t.BlockReason, t.blockedAt, t.due, t.unblocked = 1, "", time.Time{}, time.Time{}, false
	if err := u.enter(t, done, "task.completed", 0, "completed by "+t.Holder, details); err != nil {
		return err
	}
	result, artifacts := in.GetResult(), in.GetArtifacts()
	if result != "" || len(artifacts) > 0 {
		t.putText(u.Tx.Tx, putResult, orNull(result), toJSON(len(artifacts), artifacts))
	}
	payload := map[string]any{"task_id": t.Id, "title": t.Title, "agent": t.Holder, "result": result}
	if len(artifacts) > 0 {
		payload["artifacts"] = artifacts
	}
	err := u.inform(t, t.Creator, "task_complete", "task "+t.Id+" is done: "+t.Title, payload)
	if err != nil {
		return err
	}
	out.Task = t.brief()
	if out.Ready, err = u.supply(t); err != nil {
		return err
	}
	for _, hook := range u.done {
		if err := hook(u.Tx.Tx, u.Session.ID, t.Id); err != nil {
			return err
		}
	}
	return nil
}

// fail ends the attempt of the caller as failed; the task returns to READY after a backoff, or becomes FAILED.
// Errors: fault.Precondition (TASK_LOST).
func (u *taskTx) fail(t *task, in *pb.FailTaskRequest, out *pb.FailTaskResponse) error {
	if err := u.holds(t, in.GetFence()); err != nil {
		return err
	}
	if err := u.endAttempt(t, in.GetError(), in.GetFatal(), backoff(t.Attempts+1)); err != nil {
		return err
	}
	out.Task, out.Attempts = t.brief(), t.Attempts
	if t.State == ready {
		out.DueAt = work.Stamp(t.due)
	}
	return nil
}

// releaseBy returns a task of the caller to READY; no attempt counts. With decline, the assignee of an
// unfinished task refuses it. Errors: fault.Precondition (TASK_LOST, TASK_FINISHED); fault.Denied (NOT_ASSIGNEE);
// fault.Exhausted (TOO_MANY_QUEUES) for a decline.
func (u *taskTx) releaseBy(t *task, in *pb.ReleaseTaskRequest) error {
	switch {
	case in.GetDecline():
		return u.decline(t, in.GetFence(), in.GetReason())
	case u.Actor.System() && held(t.State):
		if err := u.tellLost(t, t.Holder, because("released by "+u.Actor.Name, in.GetReason())); err != nil {
			return err
		}
		return u.release(t, in.GetReason())
	}
	if err := u.holds(t, in.GetFence()); err != nil {
		return err
	}
	return u.release(t, in.GetReason())
}

// release returns a held task to READY.
func (u *taskTx) release(t *task, reason string) error {
	u.count("released")
	return u.reopen(t, time.Time{}, "task.released", 0, because("released by "+t.Holder, reason),
		map[string]any{"agent": t.Holder, "reason": reason})
}

// decline takes the assignee from a task, as the assignee wants it.
func (u *taskTx) decline(t *task, fence int64, reason string) error {
	if err := allows(t, "decline"); err != nil {
		return err
	}
	if t.Assignee != u.Actor.Name {
		says := "it has no assignee"
		if t.Assignee != "" {
			says = "it is assigned to " + t.Assignee
		}
		return fault.New(fault.Denied, "NOT_ASSIGNEE", "%s cannot decline task %q: %s", u.Actor.Name, t.Id, says)
	}
	if held(t.State) {
		if err := u.holds(t, fence); err != nil {
			return err
		}
	}
	err := u.queues.within(u.Tx, func() error { return u.unassign(t, "declined by "+u.Actor.Name, reason) })
	if err != nil || !held(t.State) || t.Holder != u.Actor.Name {
		return err
	}
	return u.release(t, reason)
}

// unassign takes the assignee from an unfinished task, and notifies the creator.
func (u *taskTx) unassign(t *task, verb, reason string) error {
	former, left := t.Assignee, queueOf(t)
	t.Assignee = ""
	err := u.queues.move(u.Tx, t, left)
	if err != nil {
		return err
	}
	if err = u.withdraw(t); err != nil {
		return err
	}
	u.count("declined")
	err = u.inform(t, t.Creator, "task_rejected", because("task "+t.Id+" was "+verb, reason), map[string]any{
		"task_id": t.Id, "title": t.Title, "agent": former, "reason": reason,
	})
	if err != nil {
		return err
	}
	t.Revision, err = u.append(t, "task.declined", 0, because(verb, reason),
		map[string]any{"agent": former, "reason": reason})
	if err != nil {
		return err
	}
	t.save(u.Tx.Tx)
	if t.State != ready {
		return nil
	}
	return u.offer(t)
}

// Block makes a task BLOCKED, for a blocker that names it, if the agent holds it, or if another agent
// does and an operator calls. It reports whether the task is BLOCKED then. A task that it does not
// block, and an id without a task, are no error.
func (s *Service) Block(tx *store.Tx, session int64, id string, by directory.Agent, reason string) (bool, error) {
	u, t, err := s.heldTask(tx, session, id, by)
	if err != nil || t == nil || !by.System() && t.Holder != by.Name {
		return false, err
	}
	return true, u.block(t, shorten(reason), map[string]any{})
}

// Unblock makes a BLOCKED task CLAIMED again. A feature with several reasons to block a task calls it
// for the last of them.
func (s *Service) Unblock(tx *store.Tx, session int64, id string, by directory.Agent, reason string) error {
	u, t, err := s.heldTask(tx, session, id, by)
	if err != nil || t == nil || t.State != blocked {
		return err
	}
	return u.unblock(t, map[string]any{"reason": reason})
}

// heldTask finds a task that an agent holds, nil if there is none.
func (s *Service) heldTask(tx *store.Tx, session int64, id string, by directory.Agent) (*taskTx, *task, error) {
	u, _, err := s.byBroker(tx, session)
	if err != nil {
		return nil, nil, err
	}
	t, err := lookup(tx, session, id)
	if err != nil || t == nil || !held(t.State) {
		return u, nil, err
	}
	if current, err := s.isCurrent(tx, session, t.Holder, t.Fence); err != nil || !current {
		return u, nil, err
	}
	return u.as(by), t, nil
}

// Transfer moves the claim of a task to another agent, and returns the new fence. If the task is
// assigned to its holder, it is then assigned to the other agent. Errors: fault.NotFound;
// fault.Precondition (TASK_LOST) if from does not hold the task; fault.Exhausted (TOO_MANY_QUEUES).
func (s *Service) Transfer(tx *store.Tx, session int64, id, from, to string) (int64, error) {
	u, _, err := s.byBroker(tx, session)
	if err != nil {
		return 0, err
	}
	t, err := find(tx, session, id)
	if err != nil {
		return 0, err
	}
	if err := u.as(directory.Agent{Name: from}).holds(t, 0); err != nil {
		return 0, err
	}
	if t.Assignee == from {
		former := queueOf(t)
		t.Assignee = to
		if err := u.queues.within(u.Tx, func() error { return u.queues.move(u.Tx, t, former) }); err != nil {
			return 0, err
		}
	}
	revision, err := u.append(t, "task.transferred", 0, fmt.Sprintf("passed from %s to %s", from, to),
		map[string]any{"agent": to, "former": from, "former_fence": t.Fence})
	if err != nil {
		return 0, err
	}
	now := tx.Now()
	t.Holder, t.Fence, t.Revision, t.claimedAt, t.updatedAt = to, revision, revision, now, now
	if t.State == claimed {
		u.startStale(t)
	}
	u.wake(t)
	t.save(tx)
	return revision, nil
}

// Holds reports whether an agent holds a task by a fence.
func (t *table) Holds(q store.Querier, session int64, agent string, fence int64) (bool, error) {
	rows := q.Query(existsClaim, session, agent, fence)
	held := rows.Next()
	if err := rows.Close(); err != nil || !held {
		return false, err
	}
	return t.isCurrent(q, session, agent, fence)
}

// isCurrent reports whether the end of the agent has not ended a claim. If it has, the backlog has yet to release
// the task.
func (t *table) isCurrent(q store.Querier, session int64, agent string, fence int64) (bool, error) {
	ended, _, err := t.Backlog.Pending(q, failChore, session, agent)
	return fence > ended, err
}

// Fence returns the fence by which an agent holds a task; 0 if it does not hold it.
func (t *table) Fence(q store.Querier, session int64, id, agent string) (int64, error) {
	task, err := lookup(q, session, id)
	if err != nil || task == nil || !held(task.State) || task.Holder != agent {
		return 0, err
	}
	if current, err := t.isCurrent(q, session, agent, task.Fence); err != nil || !current {
		return 0, err
	}
	return task.Fence, nil
}

// Done reports whether a task is DONE.
func (t *table) Done(q store.Querier, session int64, id string) (bool, error) {
	task, err := lookup(q, session, id)
	return task != nil && task.State == done, err
}

// Held returns the CLAIMED tasks of all sessions.
func (t *table) Held(q store.Querier) ([]work.Held, error) {
	return store.Collect(q.Query(selectClaimsHeld), func(r *store.Rows) (h work.Held, err error) {
		return h, r.Scan(&h.Session, &h.Agent, &h.Claims, &h.Since)
	})
}

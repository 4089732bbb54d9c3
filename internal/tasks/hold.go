package tasks

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/finding"
	"brokerd/internal/validate"
	"brokerd/internal/work"
)

// A Change is what UpdateTask changes; nil stays as it is.
type Change struct {
	Fence    int64 // 0 = of any claim
	Progress *float64
	Note     *string
	Block    *string // the reason
	Unblock  bool

	// By the creator.
	Title        *string
	Description  *string
	Priority     *int
	SetLabels    map[string]string
	RemoveLabels []string
}

// describes reports whether a change is one of the creator's.
func (c *Change) describes() bool {
	return c.Title != nil || c.Description != nil || c.Priority != nil || len(c.SetLabels)+len(c.RemoveLabels) > 0
}

// reports reports whether a change is one of the holder's. One without any field is.
func (c *Change) reports() bool {
	return c.Progress != nil || c.Note != nil || c.Block != nil || c.Unblock || !c.describes()
}

// Updated is the answer to Update.
type Updated struct {
	Task    Brief
	StaleAt time.Time // zero = never
}

// Update changes a task. Errors: fault.NotFound; fault.Precondition (TASK_LOST, TASK_NOT_BLOCKED,
// TASK_BLOCKED, TASK_FINISHED); fault.Denied (NOT_CREATOR).
func (t *Tasks) Update(ctx context.Context, in work.Request, id string, ch Change) (Updated, error) {
	var out Updated
	err := t.change(ctx, in, &out, id, func(u *taskTx, task *Task) error {
		if ch.describes() {
			if err := u.directs(task, "describe"); err != nil {
				return err
			}
			if task.State.finished() {
				return fault.New(fault.Precondition, "TASK_FINISHED", "task %q is %s; its description no longer changes", task.ID, task.State)
			}
		}
		if ch.reports() {
			if err := u.holds(task, ch.Fence); err != nil {
				return err
			}
			if ch.Unblock {
				if err := u.unblocks(task); err != nil {
					return err
				}
			}
			if err := u.report(task, &ch); err != nil {
				return err
			}
		}
		if ch.describes() {
			if err := u.describe(task, &ch); err != nil {
				return err
			}
		}
		out.Task = task.brief()
		if task.State == Claimed {
			out.StaleAt = task.DueAt
		}
		return nil
	})
	return out, err
}

// change makes one change of a task and keeps its answer.
func (t *Tasks) change(ctx context.Context, in work.Request, answer any, id string, fn func(u *taskTx, task *Task) error) error {
	_, err := t.Once(ctx, t.Store.Drain, in, answer, func(tx *work.Tx) error {
		task, err := find(tx, tx.Session.ID, id)
		if err != nil {
			return err
		}
		return fn(t.within(tx), task)
	})
	if err != nil {
		return fmt.Errorf("change task: %w", err)
	}
	return nil
}

// report stores what the holder reports.
func (u *taskTx) report(task *Task, ch *Change) error {
	details := map[string]any{}
	if ch.Progress != nil && *ch.Progress != task.Progress {
		task.Progress = *ch.Progress
		details["progress"] = task.Progress
	}
	if ch.Note != nil && *ch.Note != task.Note {
		task.Note = *ch.Note
		details["note"] = task.Note
	}
	task.UpdatedAt = u.Now()
	switch {
	case ch.Block != nil:
		return u.block(task, *ch.Block, details)
	case ch.Unblock:
		return u.unblock(task, details)
	}
	if task.State == Claimed {
		u.startStale(task)
	}
	if len(details) == 0 {
		u.Exec(updateLiveness, task.UpdatedAt, task.DueAt, task.Created)
		return nil
	}
	summary := fmt.Sprintf("is at %d %%", int(task.Progress*100))
	if ch.Note != nil {
		summary += ": " + finding.Clip(task.Note)
	}
	var err error
	if task.Revision, err = u.append(task, "task.progress", events.Debug, summary, details); err != nil {
		return err
	}
	task.save(u.Tx.Tx)
	return nil
}

// block makes a task BLOCKED, or changes the reason. It cannot become stale.
func (u *taskTx) block(task *Task, reason string, details map[string]any) error {
	details["agent"], details["reason"] = task.Holder, reason
	if task.State == Claimed {
		task.BlockedAt = u.Now()
	}
	task.Reason, task.DueAt, task.Unblocked = reason, time.Time{}, false
	return u.enter(task, Blocked, "task.blocked", events.Warning, "is blocked: "+finding.Clip(reason), details)
}

// unblocks checks that the holder may unblock a task.
func (u *taskTx) unblocks(task *Task) error {
	if task.State != Blocked {
		return fault.New(fault.Precondition, "TASK_NOT_BLOCKED", "task %q is %s, not blocked", task.ID, task.State)
	}
	if u.stops == nil {
		return nil
	}
	ids, err := u.stops.Stopping(u.Tx, u.Session.ID, task.ID, mostNamed)
	if err != nil || len(ids) == 0 {
		return err
	}
	what := "blocker " + ids[0] + " is"
	if len(ids) > 1 {
		what = "blockers " + strings.Join(ids, ", ") + " are"
	}
	return fault.New(fault.Precondition, "TASK_BLOCKED", "task %q stays blocked until the %s resolved",
		task.ID, what).With("blockers", strings.Join(ids, ","))
}

// unblock makes a BLOCKED task CLAIMED again.
func (u *taskTx) unblock(task *Task, details map[string]any) error {
	details["agent"], details["blocked_seconds"] = task.Holder, u.Now().Sub(task.BlockedAt).Seconds()
	task.Reason, task.BlockedAt, task.Unblocked = "", time.Time{}, true
	task.UpdatedAt = u.Now()
	u.startStale(task)
	return u.enter(task, Claimed, "task.unblocked", 0, "is no longer blocked", details)
}

// describe stores what the creator changes.
func (u *taskTx) describe(task *Task, ch *Change) error {
	details := map[string]any{}
	if ch.Title != nil {
		task.Title = *ch.Title
		details["title"] = task.Title
	}
	if ch.Priority != nil {
		task.Priority = *ch.Priority
		details["priority"] = task.Priority
	}
	if len(ch.SetLabels)+len(ch.RemoveLabels) > 0 {
		labels := map[string]string{}
		maps.Copy(labels, task.Labels)
		maps.Copy(labels, ch.SetLabels)
		for _, k := range ch.RemoveLabels {
			delete(labels, k)
		}
		if len(labels) > validate.MaxLabels {
			return fault.Field("set_labels", "the task would have %d labels; at most %d are allowed", len(labels), validate.MaxLabels)
		}
		task.Labels = labels
		details["labels"] = labels
	}
	if ch.Description != nil {
		details["description_bytes"] = len(*ch.Description)
	}
	var err error
	if task.Revision, err = u.append(task, "task.changed", 0, "was changed: "+task.Title, details); err != nil {
		return err
	}
	u.Exec(updateDescription, task.Title, toJSON(len(task.Labels), task.Labels), 10-task.Priority, task.Revision, task.Created)
	if ch.Description != nil {
		task.putText(u.Tx.Tx, putDescription, *ch.Description)
	}
	task.relabel(u.Tx.Tx)
	if len(ch.SetLabels) > 0 && task.State == Ready {
		return u.offer(task) // a waiter may want it now
	}
	return nil
}

// Completed is the answer to Complete.
type Completed struct {
	Task      Brief
	Ready     []Brief // tasks that became READY, at most mostListed
	Unchanged bool    // it was DONE before
}

// Complete finishes a task of the caller, and makes READY the tasks that waited for it alone.
// Errors: fault.NotFound; fault.Precondition (TASK_LOST).
func (t *Tasks) Complete(ctx context.Context, in work.Request, id string, fence int64, result string, artifacts []string) (Completed, error) {
	var out Completed
	err := t.change(ctx, in, &out, id, func(u *taskTx, task *Task) error {
		if task.State == Done && task.Holder == u.Actor.Name && (fence == 0 || fence == task.Fence) {
			out.Task, out.Unchanged = task.brief(), true
			return nil
		}
		if err := u.holds(task, fence); err != nil {
			return err
		}
		details := map[string]any{"agent": task.Holder, "attempt": task.Attempts + 1, "seconds": u.Now().Sub(task.ClaimedAt).Seconds()}
		task.Progress, task.Reason, task.BlockedAt, task.DueAt, task.Unblocked = 1, "", time.Time{}, time.Time{}, false
		if err := u.enter(task, Done, "task.completed", 0, "completed by "+task.Holder, details); err != nil {
			return err
		}
		if result != "" || len(artifacts) > 0 {
			task.putText(u.Tx.Tx, putResult, orNull(result), toJSON(len(artifacts), artifacts))
		}
		payload := map[string]any{"task_id": task.ID, "title": task.Title, "agent": task.Holder, "result": result}
		if len(artifacts) > 0 {
			payload["artifacts"] = artifacts
		}
		err := u.tell(task, task.Creator, "task_complete", "task "+task.ID+" is done: "+task.Title, payload)
		if err != nil {
			return err
		}
		out.Task = task.brief()
		if out.Ready, err = u.supply(task); err != nil {
			return err
		}
		for _, hook := range u.done {
			if err := hook(u.Tx.Tx, u.Session.ID, task.ID); err != nil {
				return err
			}
		}
		return nil
	})
	return out, err
}

// Ended is the answer to Fail.
type Ended struct {
	Task     Brief
	Attempts int
	DueAt    time.Time // zero = at once, or never
}

// Fail ends the attempt of the caller as failed; the task returns to READY after a backoff, or
// becomes FAILED. Errors: fault.NotFound; fault.Precondition (TASK_LOST).
func (t *Tasks) Fail(ctx context.Context, in work.Request, id string, fence int64, why string, fatal bool) (Ended, error) {
	var out Ended
	err := t.change(ctx, in, &out, id, func(u *taskTx, task *Task) error {
		if err := u.holds(task, fence); err != nil {
			return err
		}
		if err := u.endAttempt(task, why, fatal, backoff(task.Attempts+1)); err != nil {
			return err
		}
		out = Ended{task.brief(), task.Attempts, time.Time{}}
		if task.State == Ready {
			out.DueAt = task.DueAt
		}
		return nil
	})
	return out, err
}

// Release returns a task of the caller to READY; no attempt counts. With decline, the assignee of an
// unfinished task refuses it. Errors: fault.NotFound; fault.Precondition (TASK_LOST, TASK_FINISHED);
// fault.Denied (NOT_ASSIGNEE); fault.Exhausted (TOO_MANY_QUEUES) for a decline.
func (t *Tasks) Release(ctx context.Context, in work.Request, id string, fence int64, decline bool, reason string) (Brief, error) {
	var out Brief
	err := t.change(ctx, in, &out, id, func(u *taskTx, task *Task) error {
		var err error
		switch {
		case decline:
			err = u.decline(task, fence, reason)
		case u.Actor.System() && task.State.held():
			err = u.revoke(task, reason)
		default:
			if err = u.holds(task, fence); err == nil {
				err = u.release(task, reason)
			}
		}
		out = task.brief()
		return err
	})
	return out, err
}

// release returns a held task to READY.
func (u *taskTx) release(task *Task, reason string) error {
	u.CountOutcome(u.Tx, Kind, "released")
	return u.reopen(task, time.Time{}, "task.released", 0, because("released by "+task.Holder, reason),
		map[string]any{"agent": task.Holder, "reason": reason})
}

// revoke releases a task in place of its holder, which gets a notice.
func (u *taskTx) revoke(task *Task, reason string) error {
	holder := task.Holder
	if err := u.tellLost(task, holder, because("released by "+u.Actor.Name, reason)); err != nil {
		return err
	}
	return u.release(task, reason)
}

// tellLost notifies an agent that it no longer holds a task.
func (u *taskTx) tellLost(task *Task, holder, why string) error {
	return u.tell(task, holder, "task_lost", "you no longer hold task "+task.ID+": "+finding.Clip(why),
		map[string]any{"task_id": task.ID, "title": task.Title, "fence": task.Fence, "reason": why})
}

// decline takes the assignee from a task, as the assignee wants it.
func (u *taskTx) decline(task *Task, fence int64, reason string) error {
	if task.State.finished() {
		return fault.New(fault.Precondition, "TASK_FINISHED", "task %q is %s; it can no longer be declined", task.ID, task.State)
	}
	if task.Assignee != u.Actor.Name {
		says := "it has no assignee"
		if task.Assignee != "" {
			says = "it is assigned to " + task.Assignee
		}
		return fault.New(fault.Denied, "NOT_ASSIGNEE", "%s cannot decline task %q: %s", u.Actor.Name, task.ID, says)
	}
	if task.State.held() {
		if err := u.holds(task, fence); err != nil {
			return err
		}
	}
	err := u.withinQueues(func() error { return u.unassign(task, "declined by "+u.Actor.Name, reason) })
	if err != nil || !task.State.held() || task.Holder != u.Actor.Name {
		return err
	}
	return u.release(task, reason)
}

// unassign takes the assignee from an unfinished task, and notifies the creator.
func (u *taskTx) unassign(task *Task, verb, reason string) error {
	former, queue := task.Assignee, queueOf(task)
	task.Assignee = ""
	err := u.moveQueue(task, queue)
	if err != nil {
		return err
	}
	if err = u.Post.Withdraw(u.Tx.Tx, u.Session.ID, work.Moot{About: task.Created, Type: assignment}); err != nil {
		return err
	}
	u.CountOutcome(u.Tx, Kind, "declined")
	err = u.tell(task, task.Creator, "task_rejected", because("task "+task.ID+" was "+verb, reason), map[string]any{
		"task_id": task.ID, "title": task.Title, "agent": former, "reason": reason,
	})
	if err != nil {
		return err
	}
	task.Revision, err = u.append(task, "task.declined", 0, because(verb, reason), map[string]any{"agent": former, "reason": reason})
	if err != nil {
		return err
	}
	task.save(u.Tx.Tx)
	if task.State != Ready {
		return nil
	}
	return u.offer(task)
}

// because adds a reason to a sentence.
func because(says, reason string) string {
	if strings.TrimSpace(reason) == "" {
		return says
	}
	return says + ": " + finding.Clip(reason)
}

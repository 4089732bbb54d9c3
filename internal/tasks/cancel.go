package tasks

import (
	"context"
	"errors"
	"slices"
	"time"

	"brokerd/internal/caller"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/once"
	"brokerd/internal/store"
	"brokerd/internal/valid"
	"brokerd/internal/work"
)

// A Cancellation is the answer to Cancel.
type Cancellation struct {
	Tasks     []Brief // at most mostCancelled, the named task first
	Cancelled int
	Revision  int64
}

// Cancel cancels an unfinished task and, with cascade, its unfinished dependents and subtasks.
// Errors: fault.NotFound; fault.Precondition (TASK_FINISHED, TOO_MANY_TASKS); fault.Denied
// (NOT_CREATOR).
func (t *Tasks) Cancel(ctx context.Context, c caller.Caller, req once.Request, id string, cascade bool, reason string) (Cancellation, error) {
	var out Cancellation
	err := t.change(ctx, c, req, &out, id, func(u *taskTx, task *Task) error {
		if err := u.directs(task, "cancel"); err != nil {
			return err
		}
		if task.State == Done || task.State == Failed {
			return fault.New(fault.Precondition, "TASK_FINISHED", "task %q is %s; only an unfinished task can be cancelled", task.ID, task.State)
		}
		concerned := []*Task{task}
		if cascade {
			var err error
			if concerned, err = u.affected(task); err != nil {
				return err
			}
		}
		for _, each := range concerned {
			if each.State != Cancelled {
				if err := u.cancel(each, reason); err != nil {
					return err
				}
				out.Cancelled++
			}
			out.Revision = max(out.Revision, each.Revision)
			if len(out.Tasks) < mostCancelled {
				out.Tasks = append(out.Tasks, each.brief())
			}
		}
		return nil
	})
	return out, err
}

// affected returns a task, and its unfinished dependents and subtasks, direct or not.
func (u *taskTx) affected(task *Task) ([]*Task, error) {
	all, seen := []*Task{task}, map[int64]bool{task.Created: true}
	for i := 0; i < len(all); i++ {
		var more []int64
		rows := u.tx.Query(selectAffected, all[i].Created, all[i].Created)
		for rows.Next() {
			var k int64
			if err := rows.Scan(&k); err != nil {
				return nil, err
			}
			if !seen[k] {
				seen[k] = true
				more = append(more, k)
			}
		}
		if err := rows.Close(); err != nil {
			return nil, err
		}
		slices.Sort(more)
		for _, k := range more {
			next, err := scan(u.tx.QueryRow(selectTask, k))
			if err != nil {
				return nil, err
			}
			if all = append(all, next); len(all) > mostCascade {
				return nil, fault.New(fault.Precondition, "TOO_MANY_TASKS", "more than %d tasks depend on task %q or are part of it; "+
					"cancel some of them first", mostCascade, task.ID)
			}
		}
	}
	return all, nil
}

// cancel cancels an unfinished task.
func (u *taskTx) cancel(task *Task, reason string) error {
	why := because("cancelled by "+u.actor.Name, reason)
	if task.State.held() {
		if err := u.tellLost(task, task.Holder, why); err != nil {
			return err
		}
	}
	details := map[string]any{"agent": task.Holder, "reason": reason}
	u.unhold(task)
	task.Error = shorten(reason)
	if err := u.enter(task, Cancelled, "task.cancelled", events.Warning, why, details); err != nil || task.Assignee == "" {
		return err
	}
	return u.post.Withdraw(u.tx, u.session.ID, work.Moot{About: task.Created, Type: assignment})
}

// Retry makes a FAILED task READY again, with all its attempts. Errors: fault.NotFound;
// fault.Precondition (TASK_NOT_FAILED); fault.Exhausted (TOO_MANY_TASKS); fault.Denied
// (NOT_CREATOR).
func (t *Tasks) Retry(ctx context.Context, c caller.Caller, req once.Request, id string) (Brief, error) {
	var out Brief
	err := t.change(ctx, c, req, &out, id, func(u *taskTx, task *Task) error {
		if err := u.directs(task, "retry"); err != nil {
			return err
		}
		if task.State != Failed {
			return fault.New(fault.Precondition, "TASK_NOT_FAILED", "task %q is %s; only a failed task can be retried", task.ID, task.State)
		}
		if err := u.capacity(1); err != nil {
			return err
		}
		task.Attempts, task.Error, task.FinishedAt = 0, "", time.Time{}
		err := u.reopen(task, time.Time{}, "task.retried", 0, "is tried again", map[string]any{})
		out = task.brief()
		return err
	})
	return out, err
}

// due makes the changes that are due: it offers tasks whose backoff has passed, and ends the
// attempts of holders that have not updated their tasks.
func (t *Tasks) due(tx *store.Tx) (time.Time, error) {
	now := tx.Now()
	all, err := scanAll(tx.Query(selectDue, now, dueAtOnce))
	if err != nil {
		return time.Time{}, err
	}
	for _, task := range all {
		u, closed, err := t.byBroker(tx, task.Session)
		if err != nil {
			return time.Time{}, err
		}
		switch {
		case closed || task.State != Ready && task.State != Claimed:
			task.DueAt = time.Time{}
			err = task.save(tx)
		case task.State == Ready:
			err = u.ripen(task)
		default:
			err = u.stale(task)
		}
		if err != nil {
			return time.Time{}, err
		}
	}
	if len(all) == dueAtOnce {
		return now, nil
	}
	var next time.Time
	err = tx.QueryRow(nextDue).Scan(&next)
	if errors.Is(err, store.ErrNoRows) {
		return time.Time{}, nil
	}
	return next, err
}

// ripen ends the backoff of a READY task.
func (u *taskTx) ripen(task *Task) error {
	task.DueAt = time.Time{}
	if err := task.save(u.tx); err != nil {
		return err
	}
	u.wake(task)
	return u.offer(task)
}

// stale ends the attempt of a holder that has not updated its task.
func (u *taskTx) stale(task *Task) error {
	why := "its holder " + task.Holder + " sent no update for " + valid.Short(task.StaleAfter)
	if err := u.tellLost(task, task.Holder, why); err != nil {
		return err
	}
	u.count("stale", 1)
	return u.endAttempt(task, why, false, 0)
}

package tasks

import (
	"context"
	"errors"
	"time"

	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/store"
	"brokerd/internal/validate"
	"brokerd/internal/work"
)

// A Cancellation is the answer to Cancel.
type Cancellation struct {
	Tasks     []Brief // the named task first
	Cancelled int     // before the answer
	More      bool    // the backlog cancels others, if any are unfinished
	Revision  int64
}

// Cancel cancels an unfinished task and, with cascade, its unfinished dependents and subtasks. It
// cancels about mostCancelled tasks in its transaction; the backlog cancels the rest. Errors:
// fault.NotFound; fault.Precondition (TASK_FINISHED); fault.Denied (NOT_CREATOR).
func (t *Tasks) Cancel(ctx context.Context, in work.Request, id string, cascade bool, reason string) (Cancellation, error) {
	var out Cancellation
	err := t.change(ctx, in, &out, id, func(u *taskTx, task *Task) error {
		if err := u.directs(task, "cancel"); err != nil {
			return err
		}
		if task.State == Done || task.State == Failed {
			return fault.New(fault.Precondition, "TASK_FINISHED", "task %q is %s; only an unfinished task can be cancelled", task.ID, task.State)
		}
		if task.State != Cancelled {
			if err := u.cancel(task, reason); err != nil {
				return err
			}
			out.Cancelled++
		}
		out.Tasks, out.Revision = []Brief{task.brief()}, task.Revision
		if !cascade {
			return nil
		}
		k := cascadeRun{taskTx: u, reason: reason, bound: u.NextRevision(), count: mostCancelled - 1, rows: mostRows,
			todo: []front{{task.Created, 0}}, cancelled: func(each *Task) {
				out.Cancelled++
				out.Revision = max(out.Revision, each.Revision)
				out.Tasks = append(out.Tasks, each.brief())
			}}
		err := k.run()
		if err == nil {
			out.More, err = k.leave()
		}
		return err
	})
	return out, err
}

// A cascadeRun is one function's part of a cascade: it cancels the unfinished dependents and parts of
// cancelled tasks, direct or not, level by level.
type cascadeRun struct {
	*taskTx
	reason    string
	bound     int64 // tasks that were created later stay
	count     int   // tasks that it may still cancel
	rows      int   // that it may still read or change, about
	todo      []front
	cancelled func(*Task)
}

// A front is a cancelled task of which dependents and parts up to a key have been cancelled.
type front struct{ task, after int64 }

// run cancels tasks as long as it may.
func (k *cascadeRun) run() error {
	for len(k.todo) > 0 {
		f := &k.todo[0]
		keys, err := k.affected(f, pageEdges)
		if err != nil {
			return err
		}
		for _, key := range keys {
			if k.count <= 0 || k.rows <= 0 || k.Changed() >= mostCascaded {
				return nil
			}
			f.after = key
			k.rows--
			task, err := scan(k.QueryRow(selectTask, key))
			if err != nil && !errors.Is(err, store.ErrNoRows) && !k.skip(Kind, key, err) {
				return err
			}
			if err != nil || task.State.finished() {
				continue
			}
			k.rows -= k.weight(task)
			k.count--
			if err := k.cancel(task, k.reason); err != nil {
				return err
			}
			k.cancelled(task)
			k.todo = append(k.todo, front{task.Created, 0})
			f = &k.todo[0] // the list may have moved
		}
		if len(keys) < pageEdges {
			k.todo = k.todo[1:]
		}
	}
	return nil
}

// affected reads keys of dependents and parts of a front.
func (k *cascadeRun) affected(f *front, limit int) ([]int64, error) {
	k.rows--
	return scanKeys(k.Query(selectAffected, f.task, f.after, k.bound, limit, f.task, f.after, k.bound, limit, limit))
}

// leave leaves the rest to the backlog, and reports whether there may be one.
func (k *cascadeRun) leave() (more bool, err error) {
	for _, f := range k.todo {
		keys, err := k.affected(&f, 1)
		if err != nil {
			return false, err
		}
		if len(keys) == 0 {
			continue
		}
		k.backlog.Add(k.Tx.Tx, work.Chore{Kind: cascadeChore, Session: k.Session.ID, Name: k.Actor.Name,
			Item: f.task, Bound: k.bound, After: f.after, Text: k.reason})
		more = true
	}
	return more, nil
}

// cascadeOn does the next page of a cascade: the chore Item is a cancelled task, Name is the agent
// that cancels, and Text its reason. Tasks that the page cancels become chores themselves if their
// dependents do not fit into it.
func (u *taskTx) cascadeOn(c *work.Chore) (more bool, err error) {
	if c.Name != identity.System {
		agent, registered, err := u.Directory.Find(u.Tx, u.Session.ID, c.Name)
		if err != nil {
			return false, err
		}
		if !registered {
			agent = directory.Agent{Name: c.Name}
		}
		u = u.as(agent)
	}
	k := cascadeRun{taskTx: u, reason: c.Text, bound: c.Bound, count: pageTasks, rows: work.PageRows,
		todo: []front{{c.Item, c.After}}, cancelled: func(*Task) {}}
	if err := k.run(); err != nil {
		return false, err
	}
	if len(k.todo) > 0 && k.todo[0].task == c.Item {
		c.After, more = k.todo[0].after, true
		k.todo = k.todo[1:]
	}
	_, err = k.leave()
	return more, err
}

// cancel cancels an unfinished task.
func (u *taskTx) cancel(task *Task, reason string) error {
	why := because("cancelled by "+u.Actor.Name, reason)
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
	return u.Post.Withdraw(u.Tx.Tx, u.Session.ID, work.Moot{About: task.Created, Type: assignment})
}

// Retry makes a FAILED task READY again, with all its attempts. Errors: fault.NotFound;
// fault.Precondition (TASK_NOT_FAILED); fault.Exhausted (TOO_MANY_TASKS, TOO_MANY_QUEUES);
// fault.Denied (NOT_CREATOR).
func (t *Tasks) Retry(ctx context.Context, in work.Request, id string) (Brief, error) {
	var out Brief
	err := t.change(ctx, in, &out, id, func(u *taskTx, task *Task) error {
		if err := u.directs(task, "retry"); err != nil {
			return err
		}
		if task.State != Failed {
			return fault.New(fault.Precondition, "TASK_NOT_FAILED", "task %q is %s; only a failed task can be retried", task.ID, task.State)
		}
		if err := u.capacity(1); err != nil {
			return err
		}
		err := u.withinQueues(func() error { return u.moveQueue(task, queueOf(task)) }) // its former queue may be gone
		if err != nil {
			return err
		}
		task.Attempts, task.Error, task.FinishedAt = 0, "", time.Time{}
		err = u.reopen(task, time.Time{}, "task.retried", 0, "is tried again", map[string]any{})
		out = task.brief()
		return err
	})
	return out, err
}

// entries returns the tasks with the earliest times at which something is due.
func entries(q store.Querier, limit int) ([]work.Entry[int64], error) {
	return store.Collect(q.Query(selectDue, limit), func(r *store.Rows) (e work.Entry[int64], err error) {
		return e, r.Scan(&e.Key, &e.At)
	})
}

// due makes the change of a task that is due: it offers a task whose backoff has passed, and ends the
// attempt of a holder that has not updated its task.
func (t *Tasks) due(tx *store.Tx, key int64) error {
	task, err := scan(tx.QueryRow(selectTask, key))
	if errors.Is(err, store.ErrNoRows) {
		return nil
	}
	if err != nil || task.DueAt.IsZero() || task.DueAt.After(tx.Now()) {
		return err
	}
	u, closed, err := t.byBroker(tx, task.Session)
	switch {
	case err != nil:
		return err
	case closed || task.State != Ready && task.State != Claimed:
		task.DueAt = time.Time{}
		task.save(tx)
		return nil
	case task.State == Ready:
		return u.ripen(task)
	default:
		return u.stale(task)
	}
}

// ripen ends the backoff of a READY task.
func (u *taskTx) ripen(task *Task) error {
	task.DueAt = time.Time{}
	task.save(u.Tx.Tx)
	u.wake(task)
	return u.offer(task)
}

// stale ends the attempt of a holder that has not updated its task.
func (u *taskTx) stale(task *Task) error {
	why := "its holder " + task.Holder + " sent no update for " + validate.Short(task.StaleAfter)
	if err := u.tellLost(task, task.Holder, why); err != nil {
		return err
	}
	u.CountOutcome(u.Tx, Kind, "stale")
	return u.endAttempt(task, why, false, 0)
}

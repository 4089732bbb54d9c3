package tasks

import (
	"fmt"
	"time"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/identity"
	"brokerd/internal/work"
)

const (
	pageTasks = 100 // that one query of a page reads
	pageEdges = 500 // dependencies that one query of a page reads

	firstSupply = 3 * work.PageRows // rows, so that an answer lists up to mostListed tasks
)

// weight is about how many rows a change of the state of a task changes: the task, its event, its
// queue, its labels, a notice to its holder and a letter to its assignee. Waiters count too, because
// an offer compares the task with each, and dependencies, because letters and answers name them.
func (u *taskTx) weight(t *task) int {
	n := 3 + len(t.Labels) + t.needs/20 + len(u.waiters.of(u.Tx))/100
	if held(t.State) {
		n += noticeRows
	}
	if t.Assignee != "" {
		n += letterRows
	}
	return n
}

// supply makes the dependents of a task that has just become DONE READY for which it was the last
// dependency. It returns the first of them, at most mostListed. If they are more than a page, the
// backlog continues.
func (u *taskTx) supply(t *task) ([]*pb.TaskBrief, error) {
	c := choreTx{u, &work.Chore{Kind: supplyChore, Session: u.Session.ID, Item: t.CreatedRevision, Bound: t.entered}}
	list, more, err := c.supply(false, firstSupply)
	if err == nil && more {
		u.Backlog.Add(u.Tx.Tx, *c.Chore)
	}
	return list, err
}

// supply does the next page of a supply, with a budget of rows. A task that was created after Bound counts the
// dependency as DONE already.
func (c choreTx) supply(closed bool, budget int) (list []*pb.TaskBrief, more bool, err error) {
	keys, err := scanKeys(c.Query(selectDependentKeys, c.Item, c.After, c.Bound, pageEdges))
	if err != nil {
		return nil, false, fmt.Errorf("read dependents of task %d: %w", c.Item, err)
	}
	for _, k := range keys {
		if budget <= 0 {
			return list, true, nil
		}
		budget--
		c.After = k
		d, err := byKey(c, k)
		if d == nil && err == nil || c.skip(noun, k, err) {
			continue
		}
		if err != nil {
			return nil, false, err
		}
		if d.State != waiting {
			continue
		}
		if d.missing--; d.missing > 0 {
			d.save(c.Tx.Tx)
			continue
		}
		budget -= c.weight(d)
		d.readyAt = c.Now()
		if err := c.enter(d, ready, "task.ready", events.Debug, "is ready", map[string]any{}); err != nil {
			return nil, false, err
		}
		if len(list) < mostListed {
			list = append(list, d.brief())
		}
		if closed {
			continue
		}
		if err := c.offer(d); err != nil {
			return nil, false, err
		}
	}
	return list, len(keys) == pageEdges, nil
}

// cancelBy cancels an unfinished task and, with cascade, its unfinished dependents and subtasks. It
// cancels about mostCancelled tasks in its transaction; the backlog cancels the rest. Errors:
// fault.Precondition (TASK_FINISHED); fault.Denied (NOT_CREATOR).
func (u *taskTx) cancelBy(t *task, in *pb.CancelTaskRequest, out *pb.CancelTaskResponse) error {
	if err := u.directs(t, "cancel"); err != nil {
		return err
	}
	if t.State != cancelled {
		if err := u.cancel(t, in.GetReason()); err != nil {
			return err
		}
		out.Cancelled++
	}
	out.Tasks, out.Revision = []*pb.TaskBrief{t.brief()}, t.Revision
	if !in.GetCascade() {
		return nil
	}
	k := cascadeRun{taskTx: u, reason: in.GetReason(), bound: u.NextRevision(), count: mostCancelled - 1, rows: mostRows,
		todo: []front{{t.CreatedRevision, 0}}, cancelled: func(each *task) {
			out.Cancelled++
			out.Revision = max(out.Revision, each.Revision)
			out.Tasks = append(out.Tasks, each.brief())
		}}
	err := k.run()
	if err == nil {
		out.MoreFollow, err = k.leave()
	}
	return err
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
	cancelled func(*task)
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
			t, err := byKey(k, key)
			switch {
			case k.skip(noun, key, err) || err == nil && (t == nil || finished(t.State)):
				continue
			case err != nil:
				return err
			}
			k.rows -= k.weight(t)
			k.count--
			if err := k.cancel(t, k.reason); err != nil {
				return err
			}
			k.cancelled(t)
			k.todo = append(k.todo, front{t.CreatedRevision, 0})
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
		k.Backlog.Add(k.Tx.Tx, work.Chore{Kind: cascadeChore, Session: k.Session.ID, Name: k.Actor.Name,
			Item: f.task, Bound: k.bound, After: f.after, Text: k.reason})
		more = true
	}
	return more, nil
}

// cascade does the next page of a cascade: the chore Item is a cancelled task, Name is the agent
// that cancels, and Text its reason. Tasks that the page cancels become chores themselves if their
// dependents do not fit into it.
func (c choreTx) cascade() (more bool, err error) {
	agent := directory.Agent{Name: c.Name}
	if c.Name != identity.System {
		found, registered, err := c.Directory.Find(c, c.taskTx.Session.ID, c.Name)
		if err != nil {
			return false, err
		}
		if registered {
			agent = found
		}
	}
	k := cascadeRun{taskTx: c.as(agent), reason: c.Text, bound: c.Bound, count: pageTasks, rows: work.PageRows,
		todo: []front{{c.Item, c.After}}, cancelled: func(*task) {}}
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
func (u *taskTx) cancel(t *task, reason string) error {
	why := because("cancelled by "+u.Actor.Name, reason)
	if held(t.State) {
		if err := u.tellLost(t, t.Holder, why); err != nil {
			return err
		}
	}
	details := map[string]any{"agent": t.Holder, "reason": reason}
	t.unhold()
	t.Error = shorten(reason)
	if err := u.enter(t, cancelled, "task.cancelled", events.Warning, why, details); err != nil || t.Assignee == "" {
		return err
	}
	return u.withdraw(t)
}

// retry makes a FAILED task READY again, with all its attempts. Errors: fault.Precondition (TASK_NOT_FAILED);
// fault.Exhausted (TOO_MANY_TASKS, TOO_MANY_QUEUES); fault.Denied (NOT_CREATOR).
func (u *taskTx) retry(t *task) error {
	if err := u.directs(t, "retry"); err != nil {
		return err
	}
	if err := u.queues.capacity(u.Tx, 1); err != nil {
		return err
	}
	// Its former queue may be gone.
	err := u.queues.within(u.Tx, func() error { return u.queues.move(u.Tx, t, queueOf(t)) })
	if err != nil {
		return err
	}
	t.Attempts, t.Error, t.finishedAt = 0, "", time.Time{}
	return u.reopen(t, time.Time{}, "task.retried", 0, "is tried again", map[string]any{})
}

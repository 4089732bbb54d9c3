package tasks

import (
	"cmp"
	"errors"
	"slices"

	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// A waiter is a ClaimTask call that waits. It does not change: if its agent does, a copy takes its place
// on the list.
type waiter struct {
	number  int64 // in order of arrival; a copy has the same
	session int64
	agent   directory.Agent
	wish    Wish
	given   int64 // key of the given task; 0 = any that matches
	req     idempotency.Request
	told    chan verdict // has capacity for the one verdict
}

// A verdict ends the wait of a claim.
type verdict struct {
	claim *Claim
	err   error
}

// wants reports whether a waiter can have a task.
func (w *waiter) wants(task *Task) bool {
	if w.given != 0 {
		return w.given == task.Created && serves(task, w.agent)
	}
	return serves(task, w.agent) && labelled(task, w.wish.Labels)
}

// offer gives a task that has become READY to the first waiter that it matches. If there is none,
// the assignee gets a letter.
func (u *taskTx) offer(task *Task) error {
	if !task.DueAt.IsZero() {
		return nil
	}
	for _, w := range u.waiters.Get(u.Session.ID) {
		if !w.wants(task) {
			continue
		}
		if gated, err := u.gated(w.agent); err != nil {
			return err
		} else if gated != Something {
			continue
		}
		return u.grant(w, task)
	}
	return u.assign(task)
}

// grant gives a READY task to a waiter, and ends its wait once the transaction is committed.
func (u *taskTx) grant(w *waiter, task *Task) error {
	if err := u.claim(task, w.agent); err != nil {
		return err
	}
	c, err := u.claimOf(task, false)
	if err != nil {
		return err
	}
	if err := w.keep(u, c); err != nil {
		return err
	}
	u.end(verdict{claim: c}, func(o *waiter) bool { return o.number == w.number })
	return nil
}

// keep keeps the answer to the request of a waiter.
func (w *waiter) keep(u *taskTx, c *Claim) error {
	var kept keptClaim
	_, err := w.req.Do(u.Tx.Tx, &kept, func() error {
		kept = c.kept()
		return nil
	})
	if fault.KindOf(err) == fault.Exists { // another request has used the id since
		return nil
	}
	return err
}

// end takes waiters of the session off the list, and ends their waits once the transaction is
// committed.
func (u *taskTx) end(v verdict, which func(*waiter) bool) {
	ended := u.unlist(which)
	if len(ended) == 0 {
		return
	}
	u.OnCommit(func() {
		for _, w := range ended {
			w.told <- v
		}
	})
}

// unlist takes waiters of the session off the list, with their searches, and returns them.
func (u *taskTx) unlist(which func(*waiter) bool) []*waiter {
	var gone, rest []*waiter
	for _, w := range u.waiters.Get(u.Session.ID) {
		if which(w) {
			gone = append(gone, w)
			u.searches.Delete(u.Tx.Tx, w.number)
		} else {
			rest = append(rest, w)
		}
	}
	if len(gone) > 0 {
		u.setWaiters(rest)
	}
	return gone
}

// enlist puts a call on the list.
func (u *taskTx) enlist(w *waiter) {
	u.setWaiters(append(slices.Clip(u.waiters.Get(u.Session.ID)), w))
}

// setWaiters replaces the list of the session.
func (u *taskTx) setWaiters(now []*waiter) {
	if len(now) == 0 {
		u.waiters.Delete(u.Tx.Tx, u.Session.ID)
	} else {
		u.waiters.Set(u.Tx.Tx, u.Session.ID, now)
	}
}

// waiting returns the waiter with a number; nil if it is no longer on the list.
func (u *taskTx) waiting(number int64) *waiter {
	all := u.waiters.Get(u.Session.ID)
	i, found := slices.BinarySearchFunc(all, number, func(w *waiter, n int64) int { return cmp.Compare(w.number, n) })
	if !found {
		return nil
	}
	return all[i]
}

// dismissClaims ends the waits of claims for a task that has finished.
func (u *taskTx) dismissClaims(task *Task) {
	u.end(verdict{err: unavailable(task, "")}, func(w *waiter) bool { return w.given == task.Created })
}

// gated returns why an agent gets no task, Halted or Draining; Something if it may get one. It asks
// once per agent and function.
func (u *taskTx) gated(a directory.Agent) (Empty, error) {
	if u.gates == nil {
		return Something, nil
	}
	if known, ok := u.known[a.Name]; ok {
		return known, nil
	}
	why := Something
	if halted, err := u.gates.Halted(u.Tx.Tx, u.Session.ID, a.Name); err != nil {
		return why, err
	} else if halted {
		why = Halted
	}
	if why == Something {
		draining, err := u.gates.Draining(u.Tx.Tx)
		if err != nil {
			return why, err
		}
		if draining {
			why = Draining
		}
	}
	u.known[a.Name] = why
	return why, nil
}

// serve gives the waiter with a number a READY task if one matches now. It takes the rows that it reads
// from the budget, and reports whether it has to continue in another function.
func (u *taskTx) serve(number int64, budget *int) (more bool, err error) {
	*budget--
	w := u.waiting(number)
	if w == nil {
		return false, nil
	}
	if gated, err := u.gated(w.agent); err != nil || gated != Something {
		return false, err
	}
	if w.given != 0 {
		task, err := scan(u.QueryRow(selectTask, w.given))
		if errors.Is(err, store.ErrNoRows) { // retention has removed it; the call learns so when its wait ends
			return false, nil
		}
		if err != nil || task.State != Ready || !task.DueAt.IsZero() || !w.wants(task) {
			return false, err
		}
		return false, u.grant(w, task)
	}
	s, begun := u.searches.Find(number)
	if !begun {
		if s, err = u.search(w.agent, w.wish.Labels); err != nil {
			return false, err
		}
	}
	task, rest, err := u.resume(s, w.wish.Labels, budget)
	switch {
	case err != nil:
		return false, err
	case rest != nil:
		u.searches.Set(u.Tx.Tx, number, rest)
		return true, nil
	}
	u.searches.Delete(u.Tx.Tx, number)
	if task == nil {
		return false, nil
	}
	return false, u.grant(w, task)
}

// serveSome serves the next waiters of a chore: those of one agent, or all, that have come until it
// began.
func (u *taskTx) serveSome(c *work.Chore) (more bool, err error) {
	budget := searchRows
	granted := work.PageRows
	for _, w := range u.waiters.Get(u.Session.ID) {
		if w.number <= c.After || w.number > c.Bound || c.Name != "" && w.agent.Name != c.Name {
			continue
		}
		if budget <= 0 || granted <= 0 {
			return true, nil
		}
		if more, err := u.serve(w.number, &budget); err != nil || more {
			return more, err
		}
		c.After = w.number
		granted -= 10 + len(w.wish.Labels) // about what the claim of its task changes
	}
	return false, nil
}

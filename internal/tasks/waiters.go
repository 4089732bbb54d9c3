package tasks

import (
	"cmp"
	"slices"

	pb "brokerd/gen/brokerd/v1"
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
	in      *pb.ClaimTaskRequest
	given   int64 // key of the given task; 0 = any that matches
	req     idempotency.Request
	told    chan verdict // has capacity for the one verdict
}

// A verdict ends the wait of a claim.
type verdict struct {
	claim *pb.ClaimTaskResponse
	err   error
}

// wants reports whether a waiter can have a task.
func (w *waiter) wants(t *task) bool {
	if w.given != 0 {
		return w.given == t.CreatedRevision && serves(t, w.agent)
	}
	return serves(t, w.agent) && labelled(&t.Task, w.in.GetLabels())
}

// keep keeps the answer to the request of a waiter.
func (w *waiter) keep(tx *store.Tx, c *pb.ClaimTaskResponse) error {
	var kept keptClaim
	_, err := w.req.Do(tx, &kept, func() error {
		kept = keepClaim(c)
		return nil
	})
	if fault.KindOf(err) == fault.Exists { // another request has used the id since
		return nil
	}
	return err
}

// waiters are the claims of all sessions that wait. The writer alone uses them.
type waiters struct {
	bySession store.Memory[int64, []*waiter] // in order of arrival; no list is empty
	searches  store.Memory[int64, *search]   // for READY tasks that have not ended, by the number of the waiter
	numbers   int64                          // of the last waiter
}

// of returns the waiters of the session.
func (l *waiters) of(tx *work.Tx) []*waiter { return l.bySession.Get(tx.Session.ID) }

// find returns the waiter with a number; nil if it is no longer on the list.
func (l *waiters) find(tx *work.Tx, number int64) *waiter {
	all := l.of(tx)
	i, found := slices.BinarySearchFunc(all, number, func(w *waiter, n int64) int { return cmp.Compare(w.number, n) })
	if !found {
		return nil
	}
	return all[i]
}

// set replaces the list of the session.
func (l *waiters) set(tx *work.Tx, now []*waiter) {
	if len(now) == 0 {
		l.bySession.Delete(tx.Tx, tx.Session.ID)
	} else {
		l.bySession.Set(tx.Tx, tx.Session.ID, now)
	}
}

// add puts a call on the list, and gives it its number.
func (l *waiters) add(tx *work.Tx, w *waiter) {
	l.numbers++
	w.number = l.numbers
	l.set(tx, append(slices.Clip(l.of(tx)), w))
}

// renew gives the waiters of an agent its present role and capabilities.
func (l *waiters) renew(tx *work.Tx, agent directory.Agent) {
	all := slices.Clone(l.of(tx))
	for i, w := range all {
		if w.agent.Name == agent.Name {
			now := *w
			now.agent = agent
			all[i] = &now
			l.searches.Delete(tx.Tx, w.number)
		}
	}
	l.set(tx, all)
}

// remove takes waiters of the session off the list, with their searches, and returns them.
func (l *waiters) remove(tx *work.Tx, which func(*waiter) bool) []*waiter {
	var gone, rest []*waiter
	for _, w := range l.of(tx) {
		if which(w) {
			gone = append(gone, w)
			l.searches.Delete(tx.Tx, w.number)
		} else {
			rest = append(rest, w)
		}
	}
	if len(gone) > 0 {
		l.set(tx, rest)
	}
	return gone
}

// end takes waiters of the session off the list, and ends their waits once the transaction is committed.
func (l *waiters) end(tx *work.Tx, v verdict, which func(*waiter) bool) {
	ended := l.remove(tx, which)
	if len(ended) == 0 {
		return
	}
	tx.OnCommit(func() {
		for _, w := range ended {
			w.told <- v
		}
	})
}

// endOf ends the waits of an agent with an error.
func (l *waiters) endOf(tx *work.Tx, agent string, why error) {
	l.end(tx, verdict{err: why}, func(w *waiter) bool { return w.agent.Name == agent })
}

// chore returns the chore that serves the waiters of an agent, or all for an empty name.
func (l *waiters) chore(tx *work.Tx, agent string) work.Chore {
	return work.Chore{Kind: serveChore, Session: tx.Session.ID, Name: agent, Bound: l.numbers}
}

// offer gives a task that has become READY to the first waiter that it matches. If there is none,
// the assignee gets a letter.
func (u *taskTx) offer(t *task) error {
	if !t.due.IsZero() {
		return nil
	}
	for _, w := range u.waiters.of(u.Tx) {
		if !w.wants(t) {
			continue
		}
		if gated, err := u.gated(w.agent); err != nil {
			return err
		} else if gated != open {
			continue
		}
		return u.grant(w, t)
	}
	return u.assign(t)
}

// grant gives a READY task to a waiter, and ends its wait once the transaction is committed.
func (u *taskTx) grant(w *waiter, t *task) error {
	c, err := u.claim(t, w.agent)
	if err != nil {
		return err
	}
	if err := w.keep(u.Tx.Tx, c); err != nil {
		return err
	}
	u.waiters.end(u.Tx, verdict{claim: c}, func(o *waiter) bool { return o.number == w.number })
	return nil
}

// gated returns why an agent gets no task, halted or draining; open if it may get one. It asks once per agent and
// function.
func (u *taskTx) gated(a directory.Agent) (pb.TaskEmptyReason, error) {
	if u.gates == nil {
		return open, nil
	}
	if known, ok := u.known[a.Name]; ok {
		return known, nil
	}
	why := open
	is, err := u.gates.Halted(u.Tx.Tx, u.Session.ID, a.Name)
	if is {
		why = halted
	} else if err == nil {
		if is, err = u.gates.Draining(u.Tx.Tx); is {
			why = draining
		}
	}
	if err != nil {
		return open, err
	}
	u.known[a.Name] = why
	return why, nil
}

// serve gives the waiter with a number a READY task if one matches now. It takes the rows that it reads
// from the budget, and reports whether it has to continue in another function.
func (u *taskTx) serve(number int64, budget *int) (more bool, err error) {
	*budget--
	w := u.waiters.find(u.Tx, number)
	if w == nil {
		return false, nil
	}
	if gated, err := u.gated(w.agent); err != nil || gated != open {
		return false, err
	}
	if w.given != 0 {
		t, err := byKey(u, w.given)
		if err != nil || t == nil || !t.claimable() || !w.wants(t) { // the call learns so when its wait ends
			return false, err
		}
		return false, u.grant(w, t)
	}
	s, begun := u.waiters.searches.Find(number)
	if !begun {
		if s, err = u.queues.search(u.Tx, w.agent, w.in.GetLabels()); err != nil {
			return false, err
		}
	}
	t, rest, err := u.queues.resume(u.Tx, s, w.in.GetLabels(), budget)
	switch {
	case err != nil:
		return false, err
	case rest != nil:
		u.waiters.searches.Set(u.Tx.Tx, number, rest)
		return true, nil
	}
	u.waiters.searches.Delete(u.Tx.Tx, number)
	if t == nil {
		return false, nil
	}
	return false, u.grant(w, t)
}

// serveWaits serves the waits of an agent, or of all for an empty name: a page of them at once, and
// the backlog the rest.
func (u *taskTx) serveWaits(agent string) error {
	if len(u.waiters.of(u.Tx)) == 0 {
		return nil
	}
	_, err := u.Backlog.Do(u.Tx.Tx, u.waiters.chore(u.Tx, agent))
	return err
}

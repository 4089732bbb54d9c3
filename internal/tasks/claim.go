package tasks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// A Wish selects the task of a claim.
type Wish struct {
	ID     string            // the given task; empty = the first that matches
	Labels map[string]string // that the task must have
	Wait   time.Duration
	Resume bool // return a claim that the caller already holds
}

// Empty says why there was no task to claim. The numbers are those of the API.
type Empty int

// Why there was no task to claim.
const (
	Something Empty = iota
	Nothing
	NoMatch
	Delayed
	Halted
	Draining
)

// A Claim is the answer to a claim. Task is nil if there was none.
type Claim struct {
	Task    *Task
	Attempt int
	Resumed bool
	Empty   Empty
	NextDue time.Time
	History []Attempt
}

// keptClaim is what the broker keeps of an answer under its request id.
type keptClaim struct {
	Task    int64
	Fence   int64
	Attempt int
	Resumed bool
}

func (c *Claim) kept() keptClaim {
	return keptClaim{c.Task.Created, c.Task.Fence, c.Attempt, c.Resumed}
}

// errOpen says that the answer to a request is not final, so it is not kept.
var errOpen = errors.New("the answer may change")

// Claim claims a task for the caller, or waits for one. Errors: fault.NotFound and
// fault.Precondition for a given task, fault.Precondition (AGENT_REQUIRED) for an operator without
// an agent's name. If ctx ends while the call waits, no claim remains.
func (t *Tasks) Claim(ctx context.Context, c identity.Caller, req idempotency.Request, w Wish) (Claim, error) {
	var answer Claim
	var waiting *waiter
	var fresh bool   // the answer has a new claim
	var rest *search // that has to continue
	var err error
	for first := true; err == nil && (first || rest != nil && waiting == nil); first = false {
		from := rest
		err = t.Store.Drain(ctx, func(tx *store.Tx) error {
			answer, waiting, fresh, rest = Claim{}, nil, false, nil
			var kept keptClaim
			var u *taskTx
			seen, err := req.Do(tx, &kept, func() (err error) {
				b, err := t.Begin(tx, c)
				if err != nil {
					return err
				}
				u = t.within(b)
				if u.Actor.System() {
					return fault.AgentRequired()
				}
				if waiting, rest, err = u.decide(&answer, w, req, from); err != nil {
					return err
				}
				if answer.Task == nil {
					return errOpen
				}
				kept, fresh = answer.kept(), !answer.Resumed
				return nil
			})
			if errors.Is(err, errOpen) {
				return nil
			}
			if seen && err == nil {
				answer, err = recall(tx, kept)
			}
			return err
		})
	}
	if err == nil && waiting != nil {
		return t.await(ctx, waiting, rest != nil)
	}
	if err != nil {
		return Claim{}, fmt.Errorf("claim task: %w", err)
	}
	if fresh && ctx.Err() != nil {
		t.giveBack(req, answer.Task)
		return Claim{}, ctx.Err()
	}
	return answer, nil
}

// recall returns the answer that a request received before.
func recall(q store.Querier, kept keptClaim) (Claim, error) {
	task, err := scan(q.QueryRow(selectTask, kept.Task))
	if errors.Is(err, store.ErrNoRows) { // retention has removed it
		return Claim{}, work.Missing(Kind, strconv.FormatInt(kept.Task, 10))
	}
	if err != nil {
		return Claim{}, err
	}
	task.Fence = kept.Fence
	c := Claim{Task: task, Attempt: kept.Attempt, Resumed: kept.Resumed}
	return c, c.complete(q)
}

// complete reads what an answer has beside the task's row.
func (c *Claim) complete(q store.Querier) (err error) {
	if err := c.Task.fill(q); err != nil {
		return err
	}
	if c.Task.Attempts > 0 || c.Attempt > 1 {
		c.History, err = readAttempts(q, c.Task.Created)
	}
	return err
}

// claimOf returns the answer with a claimed task.
func (u *taskTx) claimOf(task *Task, resumed bool) (*Claim, error) {
	c := &Claim{Task: task, Attempt: task.Attempts + 1, Resumed: resumed}
	return c, c.complete(u.Tx)
}

// decide claims a task, or returns a waiter if the call is to wait. from is the search of an earlier
// function of the same call, nil if there is none. rest is the one that has to continue; nil if none has to.
func (u *taskTx) decide(
	answer *Claim, w Wish, req idempotency.Request, from *search,
) (waiting *waiter, rest *search, err error) {
	if w.ID != "" {
		waiting, err = u.claimGiven(answer, w, req)
		return waiting, nil, err
	}
	if w.Resume && from == nil {
		held, err := u.held(w.Labels)
		if err != nil {
			return nil, nil, err
		}
		if held != nil {
			return nil, nil, u.answer(answer, held, true)
		}
	}
	gated, err := u.gated(u.Actor)
	if err != nil {
		return nil, nil, err
	}
	if gated == Something {
		if from == nil {
			if from, err = u.search(u.Actor, w.Labels); err != nil {
				return nil, nil, err
			}
		}
		var task *Task
		budget := searchRows
		if task, rest, err = u.resume(from, w.Labels, &budget); err != nil {
			return nil, nil, err
		}
		if task != nil {
			return nil, nil, u.take(answer, task)
		}
	}
	switch {
	case w.Wait > 0:
		if waiting, err = u.join(w, 0, req); err == nil && rest != nil {
			u.searches.Set(u.Tx.Tx, waiting.number, rest)
		}
		return waiting, rest, err
	case rest != nil:
		return nil, rest, nil
	}
	return nil, nil, u.explainEmpty(answer, u.Actor, w)
}

// held returns the CLAIMED task with the given labels that the acting agent has claimed first, of its
// first mostResumed ones; nil if there is none.
func (u *taskTx) held(labels map[string]string) (*Task, error) {
	after, err := u.ended(u.Actor.Name)
	if err != nil {
		return nil, err
	}
	held, _, err := u.scanSound(u.Query(selectHeldBetween, u.Session.ID, u.Actor.Name, after, int64(1<<62), mostResumed))
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(held, func(t *Task) bool { return t.State == Claimed && labelled(t, labels) })
	if i < 0 {
		return nil, nil
	}
	return held[i], nil
}

// take claims a READY task for the caller.
func (u *taskTx) take(answer *Claim, task *Task) error {
	if err := u.claim(task, u.Actor); err != nil {
		return err
	}
	return u.answer(answer, task, false)
}

func (u *taskTx) answer(answer *Claim, task *Task, resumed bool) error {
	c, err := u.claimOf(task, resumed)
	if err == nil {
		*answer = *c
	}
	return err
}

// claimGiven claims the given task, or waits for it.
func (u *taskTx) claimGiven(answer *Claim, w Wish, req idempotency.Request) (*waiter, error) {
	task, err := find(u.Tx, u.Session.ID, w.ID)
	if err != nil {
		return nil, err
	}
	if holds, err := u.isHolder(task); err != nil {
		return nil, err
	} else if holds {
		return nil, u.answer(answer, task, true)
	}
	gated, err := u.gated(u.Actor)
	if err != nil {
		return nil, err
	}
	switch {
	case task.State.finished() || !serves(task, u.Actor):
	case task.State == Ready && task.DueAt.IsZero() && gated == Something:
		return nil, u.take(answer, task)
	case w.Wait > 0:
		return u.join(w, task.Created, req)
	}
	return nil, u.refuse(task)
}

// join makes the call wait.
func (u *taskTx) join(w Wish, given int64, req idempotency.Request) (*waiter, error) {
	if n := len(u.waiters.Get(u.Session.ID)); n >= mostWaiters {
		e := fault.New(fault.Exhausted, "TOO_MANY_WAITS", "%d claims wait in this session, and no more may: try again later", n)
		e.RetryAfter = time.Second
		return nil, e
	}
	u.numbers++
	k := &waiter{number: u.numbers, session: u.Session.ID, agent: u.Actor, wish: w, given: given, req: req, told: make(chan verdict, 1)}
	u.enlist(k)
	u.Patient() // the call is answered when it receives a task
	return k, nil
}

// await waits for a task. After the wait it returns why there was none. searching says that the search
// for a READY task has not ended.
func (t *Tasks) await(ctx context.Context, w *waiter, searching bool) (Claim, error) {
	timer := t.Clock.NewTimer(w.wish.Wait)
	defer timer.Stop()
	var err error
	if searching {
		err = t.lookOn(ctx, w)
	}
	if err == nil {
		select {
		case v := <-w.told:
			return t.verdict(ctx, w, v)
		case <-timer.Chan():
		case <-t.stopping:
			err = errStopping()
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	var empty Claim
	var why error
	drained := t.Store.Drain(context.WithoutCancel(ctx), func(tx *store.Tx) error {
		empty, why = Claim{}, nil
		u, _, err := t.byBroker(tx, w.session)
		if err != nil {
			return err
		}
		for _, gone := range u.unlist(func(o *waiter) bool { return o.number == w.number }) {
			empty, why = u.unserved(gone)
		}
		return nil // an error would put the waiter back on the list
	})
	// A grant before that function has told the call by now. No later one can.
	select {
	case v := <-w.told:
		return t.verdict(ctx, w, v)
	default:
	}
	if err = cmp.Or(err, drained, why); err != nil {
		return Claim{}, fmt.Errorf("wait for a task: %w", err)
	}
	return empty, nil
}

// unserved says why a waiter got no task.
func (u *taskTx) unserved(w *waiter) (empty Claim, err error) {
	u.Actor = w.agent
	if w.given == 0 {
		err = u.explainEmpty(&empty, w.agent, w.wish)
		return empty, err
	}
	task, err := scan(u.QueryRow(selectTask, w.given))
	if errors.Is(err, store.ErrNoRows) { // retention has removed it
		return empty, work.Missing(Kind, w.wish.ID)
	}
	if err != nil {
		return empty, err
	}
	return empty, u.refuse(task)
}

// lookOn continues the search of a claim that waits.
func (t *Tasks) lookOn(ctx context.Context, w *waiter) error {
	for more := true; more && ctx.Err() == nil; {
		err := t.Store.Drain(context.WithoutCancel(ctx), func(tx *store.Tx) error {
			more = false
			if _, searching := t.searches.Find(w.number); !searching {
				return nil
			}
			u, closed, err := t.byBroker(tx, w.session)
			if err != nil || closed {
				return err
			}
			budget := searchRows
			more, err = u.serve(w.number, &budget)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// verdict returns the outcome of a wait. If the call has been cancelled, it releases the task.
func (t *Tasks) verdict(ctx context.Context, w *waiter, v verdict) (Claim, error) {
	if v.err != nil {
		return Claim{}, v.err
	}
	if ctx.Err() == nil {
		return *v.claim, nil
	}
	t.giveBack(w.req, v.claim.Task)
	return Claim{}, ctx.Err()
}

// giveBack returns a task to READY that a cancelled call received. No attempt counts.
func (t *Tasks) giveBack(req idempotency.Request, granted *Task) {
	err := t.Store.Drain(context.Background(), func(tx *store.Tx) error {
		u, closed, err := t.byBroker(tx, granted.Session)
		if err != nil || closed {
			return err
		}
		task, err := scan(tx.QueryRow(selectTask, granted.Created))
		if errors.Is(err, store.ErrNoRows) { // it has finished, and retention has removed it
			return nil
		}
		if err != nil {
			return err
		}
		if !task.State.held() || task.Fence != granted.Fence {
			return nil
		}
		if err := req.Forget(tx); err != nil {
			return err
		}
		return u.release(task, "the call that claimed it was cancelled")
	})
	if err != nil {
		t.Log.Warn("a cancelled call could not release its task", zap.String("task", granted.ID), zap.Error(err))
	}
}

// explainEmpty says why an agent got no task.
func (u *taskTx) explainEmpty(answer *Claim, a directory.Agent, w Wish) error {
	var err error
	if answer.Empty, err = u.gated(a); err != nil || answer.Empty != Something {
		return err
	}
	queues, err := u.knownQueues()
	if err != nil {
		return err
	}
	answer.Empty = Nothing
	ids := serving(queues.All(), a)
	if len(w.Labels) > 0 {
		ids = nil
	}
	for _, id := range ids[:min(len(ids), searchRows)] {
		var due time.Time
		err := u.QueryRow(nextDelayed, id).Scan(&due)
		if err != nil && !errors.Is(err, store.ErrNoRows) {
			return err
		}
		if !due.IsZero() && (answer.NextDue.IsZero() || due.Before(answer.NextDue)) {
			answer.Empty, answer.NextDue = Delayed, due
		}
	}
	if answer.Empty == Delayed {
		return nil
	}
	err = u.QueryRow(anyReady, u.Session.ID).Scan(new(int))
	switch {
	case err == nil:
		answer.Empty = NoMatch
	case errors.Is(err, store.ErrNoRows):
		err = nil
	}
	return err
}

// refuse is the error for a given task that the agent cannot claim now.
func (u *taskTx) refuse(task *Task) error {
	switch {
	case task.State.finished():
		return unavailable(task, "")
	case !serves(task, u.Actor):
		return notYours(task, u.Actor)
	case task.State == Waiting:
		needs, err := task.relate(u.Tx)
		if err != nil {
			return err
		}
		stops := ""
		if o := obstacle(needs); o != nil {
			stops = fmt.Sprintf("for the task %s, which is %s", o.ID, o.State)
		} else {
			stops = "until the broker makes it ready in a moment: its dependencies are done"
		}
		return unavailable(task, stops)
	}
	gated, err := u.gated(u.Actor)
	switch {
	case err != nil:
		return err
	case gated == Halted:
		return errHalted(u.Actor.Name)
	case gated == Draining:
		return fault.New(fault.Precondition, "DRAINING", "an operator drains the broker, which gives out no tasks")
	}
	return unavailable(task, "")
}

func unavailable(task *Task, stops string) error {
	reason, says := "TASK_FINISHED", "is "+task.State.String()
	switch {
	case task.State == Waiting:
		reason, says = "TASK_WAITING", "waits "+stops
	case task.State.held():
		reason, says = "TASK_CLAIMED", "is "+task.State.String()+" by "+task.Holder
	case task.State == Ready:
		reason, says = "TASK_DELAYED", "cannot be claimed before "+task.DueAt.UTC().Format(time.RFC3339)+", after its last attempt failed"
	}
	return fault.New(fault.Precondition, reason, "task %q %s", task.ID, says).
		With("state", task.State.String()).With("holder", task.Holder)
}

func notYours(task *Task, a directory.Agent) error {
	says := "needs the capabilities " + strings.Join(task.Capabilities, ", ")
	switch {
	case task.Assignee != "" && task.Assignee != a.Name:
		says = "is assigned to " + task.Assignee
	case task.Role != "" && task.Role != a.Role:
		says = "is for agents of the role " + task.Role
	}
	return fault.New(fault.Precondition, "TASK_NOT_YOURS", "%s cannot claim task %q: it %s", a.Name, task.ID, says)
}

func errHalted(agent string) error {
	return fault.New(fault.Precondition, "HALTED", "agent %q is halted: the broker gives it no work until a resume", agent)
}

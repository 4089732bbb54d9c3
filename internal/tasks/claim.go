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

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Why an agent gets no task.
const (
	open     = pb.TaskEmptyReason_TASK_EMPTY_REASON_UNSPECIFIED // it may get one
	empty    = pb.TaskEmptyReason_TASK_EMPTY_REASON_EMPTY
	noMatch  = pb.TaskEmptyReason_TASK_EMPTY_REASON_NO_MATCH
	delayed  = pb.TaskEmptyReason_TASK_EMPTY_REASON_DELAYED
	halted   = pb.TaskEmptyReason_TASK_EMPTY_REASON_HALTED
	draining = pb.TaskEmptyReason_TASK_EMPTY_REASON_DRAINING
)

// keptClaim is what the broker keeps of an answer under its request id.
type keptClaim struct {
	Task    int64
	Fence   int64
	Attempt int
	Resumed bool
}

func keepClaim(c *pb.ClaimTaskResponse) keptClaim {
	return keptClaim{c.Task.CreatedRevision, c.Task.Fence, int(c.Attempt), c.Resumed}
}

// recall returns the answer that a request received before.
func (k *keptClaim) recall(q store.Querier) (*pb.ClaimTaskResponse, error) {
	t, err := byKey(q, k.Task)
	if err == nil && t == nil { // retention has removed it
		err = work.Missing(noun, strconv.FormatInt(k.Task, 10))
	}
	if err != nil {
		return nil, err
	}
	if held(t.State) {
		t.Fence = k.Fence
	}
	return claimOf(q, t, k.Attempt, k.Resumed)
}

// claimOf returns the answer with a claimed task.
func claimOf(q store.Querier, t *task, attempt int, resumed bool) (c *pb.ClaimTaskResponse, err error) {
	c = &pb.ClaimTaskResponse{Attempt: int32(attempt), Resumed: resumed}
	if err = t.fill(q); err == nil && (t.Attempts > 0 || attempt > 1) {
		c.History, err = readAttempts(q, t.CreatedRevision)
	}
	c.Task = t.answer()
	return c, err
}

// errOpen says that the answer to a request is not final, so it is not kept.
var errOpen = errors.New("the answer may change")

// A claimCall is one call of ClaimTask.
type claimCall struct {
	*Service
	who identity.Caller
	req idempotency.Request
	in  *pb.ClaimTaskRequest

	// What the last function of the writer has found.
	answer *pb.ClaimTaskResponse
	fresh  bool    // the answer has a new claim
	waiter *waiter // the call waits
	from   *search // that the function before it has begun
	rest   *search // that has to continue; nil = none has to
}

// claim claims a task for the caller, or waits for one. Errors: fault.NotFound and fault.Precondition for a given
// task, fault.Precondition (AGENT_REQUIRED) for an operator without an agent's name. If ctx ends while the call waits,
// no claim remains.
func (c *claimCall) claim(ctx context.Context) (*pb.ClaimTaskResponse, error) {
	for {
		c.from = c.rest
		if err := c.Store.Drain(ctx, c.decide); err != nil {
			return nil, fmt.Errorf("claim task: %w", err)
		}
		if c.waiter != nil {
			return c.await(ctx)
		}
		if c.rest == nil {
			break
		}
	}
	if c.fresh && ctx.Err() != nil {
		c.giveBack(c.answer.Task)
		return nil, ctx.Err()
	}
	return c.answer, nil
}

// decide is a function of the writer that claims a task, makes the call wait, or continues its search.
func (c *claimCall) decide(tx *store.Tx) error {
	c.answer, c.fresh, c.waiter, c.rest = &pb.ClaimTaskResponse{}, false, nil, nil
	var kept keptClaim
	seen, err := c.req.Do(tx, &kept, func() error {
		t, err := c.Begin(tx, c.who)
		switch {
		case err != nil:
			return err
		case t.Actor.System():
			return fault.AgentRequired()
		}
		u := claimTx{c.within(t), c}
		if c.in.GetId() != "" {
			err = u.given()
		} else {
			err = u.first()
		}
		switch {
		case err != nil:
			return err
		case c.answer.Task == nil:
			return errOpen
		}
		kept, c.fresh = keepClaim(c.answer), !c.answer.Resumed
		return nil
	})
	if seen && err == nil {
		c.answer, err = kept.recall(tx)
	}
	if errors.Is(err, errOpen) {
		return nil
	}
	return err
}

// await waits for a task. After the wait it returns why there was none.
func (c *claimCall) await(ctx context.Context) (*pb.ClaimTaskResponse, error) {
	w := c.waiter
	timer := c.Clock.NewTimer(c.in.GetWait().AsDuration())
	defer timer.Stop()
	var err error
	if c.rest != nil {
		err = c.lookOn(ctx)
	}
	if err == nil {
		select {
		case v := <-w.told:
			return c.verdict(ctx, v)
		case <-timer.Chan():
		case <-c.stopping:
			err = errStopping()
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	var why error
	drained := c.Store.Drain(context.WithoutCancel(ctx), func(tx *store.Tx) error {
		c.answer, why = &pb.ClaimTaskResponse{}, nil
		u, _, err := c.byBroker(tx, w.session)
		if err != nil {
			return err
		}
		for _, gone := range u.waiters.remove(u.Tx, func(o *waiter) bool { return o.number == w.number }) {
			why = claimTx{u.as(gone.agent), c}.unserved(gone)
		}
		return nil // an error would put the waiter back on the list
	})
	// A grant before that function has told the call by now. No later one can.
	select {
	case v := <-w.told:
		return c.verdict(ctx, v)
	default:
	}
	if err = cmp.Or(err, drained, why); err != nil {
		return nil, fmt.Errorf("wait for a task: %w", err)
	}
	return c.answer, nil
}

// lookOn continues the search of a call that waits.
func (c *claimCall) lookOn(ctx context.Context) error {
	for more := true; more && ctx.Err() == nil; {
		err := c.Store.Drain(context.WithoutCancel(ctx), func(tx *store.Tx) error {
			more = false
			if _, searching := c.waiters.searches.Find(c.waiter.number); !searching {
				return nil
			}
			u, closed, err := c.byBroker(tx, c.waiter.session)
			if err != nil || closed {
				return err
			}
			budget := searchRows
			more, err = u.serve(c.waiter.number, &budget)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// verdict returns the outcome of a wait. If the call has been cancelled, it releases the task.
func (c *claimCall) verdict(ctx context.Context, v verdict) (*pb.ClaimTaskResponse, error) {
	if v.err == nil && ctx.Err() != nil {
		c.giveBack(v.claim.Task)
		return nil, ctx.Err()
	}
	return v.claim, v.err
}

// giveBack returns a task to READY that a cancelled call received. No attempt counts.
func (c *claimCall) giveBack(granted *pb.Task) {
	err := c.Store.Drain(context.Background(), func(tx *store.Tx) error {
		t, err := byKey(tx, granted.CreatedRevision)
		if err != nil || t == nil || !held(t.State) || t.Fence != granted.Fence {
			return err
		}
		u, closed, err := c.byBroker(tx, t.session)
		if err != nil || closed {
			return err
		}
		if err := c.req.Forget(tx); err != nil {
			return err
		}
		return u.release(t, "the call that claimed it was cancelled")
	})
	if err != nil {
		c.Log.Warn("a cancelled call could not release its task", zap.String("task", granted.Id), zap.Error(err))
	}
}

// A claimTx is one function of the writer of a ClaimTask call.
type claimTx struct {
	*taskTx
	call *claimCall
}

// first claims the first task that matches, makes the call wait, or leaves a search that has to continue.
func (u claimTx) first() error {
	in := u.call.in
	if in.GetResume() && u.call.from == nil {
		if mine, err := u.resumable(in.GetLabels()); err != nil {
			return err
		} else if mine != nil {
			return u.resumed(mine)
		}
	}
	gated, err := u.gated(u.Actor)
	if err != nil {
		return err
	}
	var rest *search
	if gated == open {
		from := u.call.from
		if from == nil {
			if from, err = u.queues.search(u.Tx, u.Actor, in.GetLabels()); err != nil {
				return err
			}
		}
		var t *task
		budget := searchRows
		if t, rest, err = u.queues.resume(u.Tx, from, in.GetLabels(), &budget); err != nil {
			return err
		}
		if t != nil {
			return u.take(t)
		}
	}
	u.call.rest = rest
	switch {
	case in.GetWait().AsDuration() > 0:
		if err := u.join(0); err != nil {
			return err
		}
		if rest != nil {
			u.waiters.searches.Set(u.Tx.Tx, u.call.waiter.number, rest)
		}
		return nil
	case rest != nil:
		return nil
	}
	return u.explainEmpty()
}

// resumable returns the CLAIMED task with the given labels that the acting agent has claimed first, of its
// first mostResumed ones; nil if there is none.
func (u claimTx) resumable(labels map[string]string) (*task, error) {
	after, _, err := u.Backlog.Pending(u, failChore, u.Session.ID, u.Actor.Name)
	if err != nil {
		return nil, err
	}
	rows := u.Query(selectHeldBetween, u.Session.ID, u.Actor.Name, after, int64(1<<62), mostResumed)
	all, _, err := u.scanSound(rows)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(all, func(t *task) bool { return t.State == claimed && labelled(&t.Task, labels) })
	if i < 0 {
		return nil, nil
	}
	return all[i], nil
}

// resumed answers with a task that the caller holds.
func (u claimTx) resumed(t *task) (err error) {
	u.call.answer, err = claimOf(u, t, int(t.Attempts)+1, true)
	return err
}

// take claims a READY task for the caller.
func (u claimTx) take(t *task) (err error) {
	u.call.answer, err = u.claim(t, u.Actor)
	return err
}

// given claims the given task, or waits for it.
func (u claimTx) given() error {
	t, err := find(u, u.Session.ID, u.call.in.GetId())
	if err != nil {
		return err
	}
	if holds, err := u.isHolder(t); err != nil {
		return err
	} else if holds {
		return u.resumed(t)
	}
	gated, err := u.gated(u.Actor)
	if err != nil {
		return err
	}
	switch {
	case finished(t.State) || !serves(t, u.Actor):
	case t.claimable() && gated == open:
		return u.take(t)
	case u.call.in.GetWait().AsDuration() > 0:
		return u.join(t.CreatedRevision)
	}
	return u.refuse(t)
}

// join makes the call wait.
func (u claimTx) join(given int64) error {
	if n := len(u.waiters.of(u.Tx)); n >= mostWaiters {
		e := fault.New(fault.Exhausted, "TOO_MANY_WAITS",
			"%d claims wait in this session, and no more may: try again later", n)
		e.RetryAfter = time.Second
		return e
	}
	w := &waiter{
		session: u.Session.ID, agent: u.Actor, in: u.call.in, given: given, req: u.call.req, told: make(chan verdict, 1),
	}
	u.waiters.add(u.Tx, w)
	u.call.waiter = w
	u.Patient() // the call is answered when it receives a task
	return nil
}

// unserved says why a waiter got no task.
func (u claimTx) unserved(w *waiter) error {
	if w.given == 0 {
		return u.explainEmpty()
	}
	t, err := byKey(u, w.given)
	if err == nil && t == nil { // retention has removed it
		err = work.Missing(noun, w.in.GetId())
	}
	if err != nil {
		return err
	}
	return u.refuse(t)
}

// explainEmpty says why the acting agent got no task.
func (u claimTx) explainEmpty() (err error) {
	out := u.call.answer
	if out.EmptyReason, err = u.gated(u.Actor); err != nil || out.EmptyReason != open {
		return err
	}
	queues, err := u.queues.known(u.Tx)
	if err != nil {
		return err
	}
	var ids []int64
	if len(u.call.in.GetLabels()) == 0 {
		ids = serving(queues.All(), u.Actor)
	}
	var next time.Time
	for _, id := range ids[:min(len(ids), searchRows)] {
		var due time.Time
		err := u.QueryRow(nextDelayed, id).Scan(&due)
		if err != nil && !errors.Is(err, store.ErrNoRows) {
			return err
		}
		if !due.IsZero() && (next.IsZero() || due.Before(next)) {
			next = due
		}
	}
	if !next.IsZero() {
		out.EmptyReason, out.NextDue = delayed, work.Stamp(next)
		return nil
	}
	err = u.QueryRow(anyReady, u.Session.ID).Scan(new(int))
	switch {
	case err == nil:
		out.EmptyReason = noMatch
	case errors.Is(err, store.ErrNoRows):
		out.EmptyReason, err = empty, nil
	}
	return err
}

// refuse is the error for a given task that the acting agent cannot claim now.
func (u claimTx) refuse(t *task) error {
	switch {
	case finished(t.State):
		return unavailable(t, "")
	case !serves(t, u.Actor):
		return notYours(t, u.Actor)
	case t.State == waiting:
		needs, err := t.relate(u)
		if err != nil {
			return err
		}
		stops := "until the broker makes it ready in a moment: its dependencies are done"
		if o := obstacle(needs); o != nil {
			stops = fmt.Sprintf("for the task %s, which is %s", o.Id, word(o.State))
		}
		return unavailable(t, stops)
	}
	gated, err := u.gated(u.Actor)
	switch {
	case err != nil:
		return err
	case gated == halted:
		return errHalted(u.Actor.Name)
	case gated == draining:
		return fault.New(fault.Precondition, "DRAINING", "an operator drains the broker, which gives out no tasks")
	}
	return unavailable(t, "")
}

// unavailable is the error for a claim that the state of a task does not permit.
func unavailable(t *task, stops string) error {
	reason, says := "TASK_FINISHED", "is "+word(t.State)
	switch {
	case t.State == waiting:
		reason, says = "TASK_WAITING", "waits "+stops
	case held(t.State):
		reason, says = "TASK_CLAIMED", "is "+word(t.State)+" by "+t.Holder
	case t.State == ready:
		reason = "TASK_DELAYED"
		says = "cannot be claimed before " + t.due.UTC().Format(time.RFC3339) + ", after its last attempt failed"
	}
	return fault.New(fault.Precondition, reason, "task %q %s", t.Id, says).
		With("state", word(t.State)).With("holder", t.Holder)
}

func notYours(t *task, a directory.Agent) error {
	says := "needs the capabilities " + strings.Join(t.Capabilities, ", ")
	switch {
	case t.Assignee != "" && t.Assignee != a.Name:
		says = "is assigned to " + t.Assignee
	case t.Role != "" && t.Role != a.Role:
		says = "is for agents of the role " + t.Role
	}
	return fault.New(fault.Precondition, "TASK_NOT_YOURS", "%s cannot claim task %q: it %s", a.Name, t.Id, says)
}

func errHalted(agent string) error {
	return fault.New(fault.Precondition, "HALTED", "agent %q is halted: the broker gives it no work until a resume", agent)
}

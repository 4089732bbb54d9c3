package locks

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"brokerd/internal/deadline"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/store"
)

// A call that waits for a ticket stands in a list that belongs to the writer. The function that grants the ticket finds it there, notes the
// grant as collected and takes the call off the list. A call whose wait is over takes itself off the list in the writer and looks once
// more. So the writer's order decides whether a grant was collected. A call that has broken off cannot return what it was told: then the grant is
// uncollected again, and passes on.

// A call waits for a ticket.
type call struct {
	ticket *ticket
	req    idempotency.Request
	told   chan verdict  // capacity 1
	over   atomic.Bool   // it waits no longer: whoever sets it says what becomes of the call
	hear   func(verdict) // is told by the writer instead of told, so it must not block; nil if told is read
	heard  chan struct{} // closed when hear was told
}

// callers is the memory of the writer about callers: the calls that wait for tickets, and the answers that name a grant.
type callers struct {
	calls   store.Memory[int64, []*call]      // by ticket
	answers store.Memory[int64, grantAnswers] // by fence
}

// A verdict ends a wait.
type verdict struct {
	answer Answer
	err    error
}

// sentAnswers are the answers that name one grant to its owner, as the goroutines that send them count them.
type sentAnswers struct {
	ended   atomic.Int32 // answers that have reached the owner or are lost
	reached atomic.Bool  // one of them has reached the owner
}

// grantAnswers is what the writer remembers of the answers that name one grant to its owner.
type grantAnswers struct {
	*sentAnswers
	answers int32  // all of them, including those whose commit is still to come
	made    *grant // as it was granted, for its release; nil if its owner or its paths may have changed since
}

// answersOf returns what the writer remembers of a grant. known says what to assume of a grant about which nothing is
// noted: it is older than the daemon's last start.
func (l *callers) answersOf(fence int64, known bool) grantAnswers {
	of, noted := l.answers.Find(fence)
	if !noted {
		of.sentAnswers = &sentAnswers{}
		of.reached.Store(known)
	}
	return of
}

// promise notes one more answer that names a grant to its owner.
func (l *callers) promise(tx *store.Tx, fence int64, known bool) *sentAnswers {
	of := l.answersOf(fence, known)
	of.answers++
	l.answers.Set(tx, fence, of)
	return of.sentAnswers
}

// promiseFirst is promise for a grant that the function makes, and for several answers.
func (l *callers) promiseFirst(tx *store.Tx, g *grant, answers int32) *sentAnswers {
	of := l.answersOf(g.fence, false)
	of.answers += answers
	of.made = g
	l.answers.Set(tx, g.fence, of)
	return of.sentAnswers
}

// changed says that a grant is not what it was when it was made.
func (l *callers) changed(tx *store.Tx, g *grant) {
	if of := l.answers.Get(g.fence); of.made != nil {
		of.made = nil
		l.answers.Set(tx, g.fence, of)
	}
}

// Told says whether an answer has reached the caller that asked. A grant of which no answer has reached its owner
// passes to the next request unless the owner asks for it soon.
func (t *Table) Told(a *Answer, reached bool) {
	of := a.sent
	if of == nil {
		return
	}
	if reached {
		of.reached.Store(true)
	}
	of.ended.Add(1)
	if !of.reached.Load() {
		t.uncollect(a.Fence, of)
	}
}

// join puts a call on the list of those that wait for a ticket.
func (l *callers) join(tx *store.Tx, t *ticket, req idempotency.Request, hear func(verdict)) *call {
	c := &call{ticket: t, req: req, told: make(chan verdict, 1), hear: hear, heard: make(chan struct{})}
	l.calls.Set(tx, t.number, append(slices.Clip(l.calls.Get(t.number)), c))
	return c
}

// waiting returns the calls that wait for a ticket.
func (l *callers) waiting(number int64) []*call {
	return slices.DeleteFunc(slices.Clone(l.calls.Get(number)), func(c *call) bool { return c.over.Load() })
}

// awaited reports whether a call waits for a ticket.
func (l *callers) awaited(number int64) bool { return len(l.waiting(number)) > 0 }

// leave takes the calls that have stopped waiting for a ticket off the list.
func (l *callers) leave(tx *store.Tx, number int64) {
	switch left := l.waiting(number); len(left) {
	case len(l.calls.Get(number)):
	case 0:
		l.calls.Delete(tx, number)
	default:
		l.calls.Set(tx, number, left)
	}
}

// remove takes all calls for a ticket off the list, and returns those that still wait.
func (l *callers) remove(tx *store.Tx, number int64) []*call {
	waiting := l.waiting(number)
	l.calls.Delete(tx, number)
	return waiting
}

// answer tells the calls that waited for a ticket of the grant, and keeps the answers to their requests.
func (u *lockTx) answer(calls []*call, g *grant) error {
	if len(calls) == 0 {
		return nil
	}
	v := verdict{answer: Answer{
		Outcome: Granted, Fence: g.fence, HeldUntil: g.heldUntil, PassedBy: g.passedBy, Note: g.note,
		sent: u.callers.promiseFirst(u.tx, g, int32(len(calls))),
	}}
	for _, c := range calls {
		if err := c.keep(u.tx, v.answer); err != nil {
			return err
		}
	}
	tell(u.tx, calls, v)
	return nil
}

// keep keeps the answer to a call's request.
func (c *call) keep(tx *store.Tx, a Answer) error {
	var kept Answer
	_, err := c.req.Do(tx, &kept, func() error {
		kept = a
		return nil
	})
	if fault.KindOf(err) == fault.Exists {
		return nil
	}
	return err
}

// tell ends the waiting of calls once the transaction is committed.
func tell(tx *store.Tx, calls []*call, v verdict) {
	if len(calls) == 0 {
		return
	}
	tx.OnCommit(func() {
		for _, c := range calls {
			if c.hear != nil && c.over.CompareAndSwap(false, true) {
				close(c.heard)
				c.hear(v)
			} else {
				c.told <- v
			}
		}
	})
}

// errHeard says that a call's hear was told.
var errHeard = errors.New("heard")

// await waits until the call's ticket is granted, for as long as the caller wants to. An answer beside an error comes to nobody.
func (a *acquireCall) await(ctx context.Context) (Answer, error) {
	t, c := a.table, a.call
	timer := t.clock.NewTimer(a.wish.Wait)
	defer timer.Stop()
	var err error
	select {
	case v := <-c.told:
		return v.answer, cmp.Or(ctx.Err(), v.err)
	case <-timer.Chan():
	case <-t.stopping:
		err = errStopping()
	case <-ctx.Done():
	case <-c.heard:
		return Answer{}, errHeard
	}
	if !c.over.CompareAndSwap(false, true) {
		return Answer{}, errHeard
	}
	standing, drained := a.giveUp(context.WithoutCancel(ctx), ctx.Err() == nil)
	// What was granted before has told by now, what is granted from now on finds nobody waiting.
	select {
	case v := <-c.told:
		return v.answer, cmp.Or(ctx.Err(), v.err)
	default:
		return standing, cmp.Or(ctx.Err(), err, drained)
	}
}

// giveUp takes the call off the list and returns how its ticket stands. What was granted since the wait was over is collected, if somebody gets the
// answer. If it fails, the call stays on the list until the alarm of the ticket takes it off.
func (a *acquireCall) giveUp(ctx context.Context, answers bool) (answer Answer, err error) {
	t, c := a.table, a.call
	err = t.store.Drain(ctx, func(tx *store.Tx) error {
		answer = Answer{Outcome: Busy}
		t.callers.leave(tx, c.ticket.number)
		v, err := t.view(tx, c.ticket.session)
		if err != nil {
			return err
		}
		stands := v.queue.find(c.ticket.number)
		if stands == nil {
			g, err := findGrant(tx, selectGranted, c.ticket.session, c.ticket.owner.Agent, c.ticket.number)
			if g == nil || err != nil || !answers {
				return err
			}
			answer = Answer{Outcome: Granted, Fence: g.fence, HeldUntil: g.until(t.alarms), sent: t.callers.promise(tx, g.fence, g.collected)}
			_, err = recollect(tx, t.alarms, g.fence)
			return errors.Join(c.keep(tx, answer), err)
		}
		tx.OnCommit(func() { t.lapseLater(stands) })
		answer.Outcome, answer.Ticket = Queued, stands.number
		answer.Obstacles, answer.Position, err = v.obstacles(&stands.claim, stands.owner, stands.place)
		return err
	})
	if err != nil {
		t.alarms.Set(alarm{lapseAlarm, c.ticket.number}, t.clock.Now().Add(lapseAfter))
		return Answer{Outcome: Busy}, err
	}
	return answer, nil
}

// lapseLater lets a ticket lapse unless somebody waits for it soon. It runs in the writer.
func (t *Table) lapseLater(k *ticket) {
	if !k.kept && !t.callers.awaited(k.number) {
		t.alarms.Set(alarm{lapseAlarm, k.number}, t.clock.Now().Add(lapseAfter))
	}
}

// uncollect notes that nobody knows of a grant, unless it is being told again by now.
func (t *Table) uncollect(fence int64, of *sentAnswers) {
	err := t.store.Drain(context.Background(), func(tx *store.Tx) error {
		if now := t.callers.answers.Get(fence); now.sentAnswers != of || now.answers > of.ended.Load() || of.reached.Load() {
			return nil
		}
		var kept bool
		err := tx.QueryRow(updateUncollected, fence).Scan(&kept)
		switch {
		case errors.Is(err, store.ErrNoRows): // it is over
			return nil
		case err != nil:
			return err
		}
		tx.OnCommit(func() { t.alarms.Set(alarm{collectAlarm, fence}, tx.Now().Add(collectWithin(kept))) })
		return nil
	})
	if err != nil {
		t.zap.Warn("a grant that nobody was told of does not pass on before its hold ends", zap.Int64("fence", fence), zap.Error(err))
	}
}

// recollect notes that the owner of a grant is told of it, and reports whether it was not before.
func recollect(tx *store.Tx, alarms *deadline.Queue[alarm], fence int64) (bool, error) {
	changed, err := tx.ExecCount(updateCollected, fence)
	if changed > 0 {
		tx.OnCommit(func() { alarms.Remove(alarm{collectAlarm, fence}) })
	}
	return changed > 0, err
}

// collect is recollect for a grant that waited for its owner, with an event.
func (u *lockTx) collect(g *grant) error {
	_, err := u.append(eventTypes{"lock.collected", "token.collected"}, events.Debug, g.owner, g.role, &g.claim, g.owner.String()+" has its grant of "+g.claim.title(), details{{"fence", g.fence}})
	if err != nil {
		return err
	}
	if _, err = recollect(u.tx, u.alarms, g.fence); err != nil || !g.kept {
		return err
	}
	return u.withdraw(g.fence, "") // it has no others so early
}

func errStopping() error {
	e := fault.New(fault.Unavailable, "SHUTTING_DOWN", "the broker stops; ask again in a moment, your place in the queue is kept for 10 s after it has started")
	e.RetryAfter = time.Second
	return e
}

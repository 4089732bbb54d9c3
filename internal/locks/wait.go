package locks

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/once"
	"brokerd/internal/store"
)

// A call that waits for a ticket stands in a list that belongs to the writer. The function that grants the ticket finds it there, notes the
// grant as collected and takes the call off the list. A call whose wait is over takes itself off the list in the writer and looks once
// more. So the writer's order decides whether a grant was collected. A call that has broken off cannot return what it was told: then the grant is
// uncollected again, and passes on.

// A call waits for a ticket.
type call struct {
	ticket *ticket
	req    once.Request
	told   chan verdict // room for one
	over   atomic.Bool  // it waits no longer
}

// A verdict ends a wait.
type verdict struct {
	answer Answer
	err    error
	heirs  *heirs
}

// heirs are the calls that were told of the same grant.
type heirs struct {
	left     atomic.Int32 // that have not yet returned
	returned atomic.Bool  // one of them has returned it
}

// leave notes that a call returns, with the grant or without it, and reports whether it is the last one and nobody has returned it.
func (h *heirs) leave(withGrant bool) (lost bool) {
	if withGrant {
		h.returned.Store(true)
	}
	return h.left.Add(-1) == 0 && !h.returned.Load()
}

// join puts a call on the list of those that wait for a ticket.
func (u *turn) join(t *ticket, req once.Request) *call {
	c := &call{ticket: t, req: req, told: make(chan verdict, 1)}
	u.calls[t.number] = append(u.calls[t.number], c)
	u.tx.OnUndo(func() { u.leave(c) })
	u.tx.OnCommit(func() { u.alarms.Remove(alarm{lapseAlarm, t.number}) })
	return c
}

// leave takes a call off the list.
func (t *Table) leave(c *call) {
	number := c.ticket.number
	rest := slices.DeleteFunc(slices.Clone(t.calls[number]), func(o *call) bool { return o == c })
	if len(rest) == 0 {
		delete(t.calls, number)
		return
	}
	t.calls[number] = rest
}

// listen takes the calls that still wait for a ticket off the list.
func (u *turn) listen(number int64) []*call {
	listed, any := u.calls[number]
	if !any {
		return nil
	}
	delete(u.calls, number)
	u.tx.OnUndo(func() { u.calls[number] = listed })
	return slices.DeleteFunc(slices.Clone(listed), func(c *call) bool { return c.over.Load() })
}

// answer tells the calls that waited for a ticket of the grant, and keeps the answers to their requests.
func (u *turn) answer(calls []*call, g *grant) error {
	if len(calls) == 0 {
		return nil
	}
	v := verdict{answer: Answer{Outcome: Granted, Fence: g.fence, HeldUntil: g.heldUntil, PassedBy: g.passedBy, Note: g.note}}
	for _, c := range calls {
		if err := c.keep(u.tx, v.answer); err != nil {
			return err
		}
	}
	u.tell(calls, v)
	return nil
}

// keep keeps the answer to a call's request.
func (c *call) keep(tx *store.Tx, a Answer) error {
	_, err := c.req.Do(tx, &a, func() error { return nil })
	if fault.KindOf(err) == fault.Exists {
		return nil
	}
	return err
}

// tell ends the waiting of calls once the transaction is committed.
func (u *turn) tell(calls []*call, v verdict) {
	if len(calls) == 0 {
		return
	}
	v.heirs = &heirs{}
	v.heirs.left.Store(int32(len(calls)))
	u.tx.OnCommit(func() {
		for _, c := range calls {
			c.told <- v
		}
	})
}

// await waits for the turn of a call's ticket, or for as long as the caller wants to.
func (t *Table) await(ctx context.Context, c *call, wait time.Duration) (Answer, error) {
	timer := t.clock.NewTimer(wait)
	defer timer.Stop()
	var v verdict
	var err error
	select {
	case v = <-c.told:
	case <-timer.Chan():
	case <-t.stopping:
		err = errStopping()
	case <-ctx.Done():
	}
	if v.heirs == nil {
		c.over.Store(true)
		standing, drained := t.giveUp(context.WithoutCancel(ctx), c, ctx.Err() == nil)
		// What was granted before has told by now, what is granted from now on finds nobody waiting.
		select {
		case v = <-c.told:
		default:
			v.answer = standing
			if err == nil {
				err = drained
			}
		}
	}
	if v.heirs != nil {
		err = v.err
		if lost := v.heirs.leave(ctx.Err() == nil); lost && v.answer.Fence != 0 {
			t.Uncollect(v.answer.Fence)
		}
	}
	if broken := ctx.Err(); broken != nil {
		return Answer{}, broken
	}
	return v.answer, err
}

// giveUp takes a call off the list and returns how its ticket stands. What was granted since the wait was over is collected, if somebody gets the
// answer.
func (t *Table) giveUp(ctx context.Context, c *call, answers bool) (Answer, error) {
	a := Answer{Outcome: Busy}
	err := t.store.Drain(ctx, func(tx *store.Tx) error {
		t.leave(c)
		v, err := t.view(tx, c.ticket.session)
		if err != nil {
			return err
		}
		stands := v.queue.find(c.ticket.number)
		if stands == nil {
			g, err := findGrant(tx, selectGranted, c.ticket.number)
			if g == nil || err != nil || !answers {
				return err
			}
			a = Answer{Outcome: Granted, Fence: g.fence, HeldUntil: t.until(g)}
			return errors.Join(c.keep(tx, a), t.recollect(tx, g.fence))
		}
		tx.OnCommit(func() { t.lapseLater(stands) })
		a.Outcome, a.Ticket = Queued, stands.number
		a.Obstacles, a.Position, err = t.obstacles(&v, &stands.claim, stands.owner, stands.place)
		return err
	})
	return a, err
}

// lapseLater lets a ticket lapse unless somebody waits for it soon. It runs in the writer.
func (t *Table) lapseLater(k *ticket) {
	if !k.kept && !t.awaited(k.number) {
		t.alarms.Set(alarm{lapseAlarm, k.number}, t.clock.Now().Add(lapseAfter))
	}
}

// Uncollect notes that nobody has got to know of a grant, so that it passes on if nobody asks for it soon.
func (t *Table) Uncollect(fence int64) {
	err := t.store.Drain(context.Background(), func(tx *store.Tx) error {
		var kept bool
		err := tx.QueryRow(updateUncollected, fence).Scan(&kept)
		if errors.Is(err, store.ErrNoRows) { // it is over
			return nil
		}
		tx.OnCommit(func() { t.alarms.Set(alarm{collectAlarm, fence}, t.clock.Now().Add(collectWithin(kept))) })
		return err
	})
	if err != nil {
		t.zap.Warn("a grant that nobody was told of does not pass on before its hold ends", zap.Int64("fence", fence), zap.Error(err))
	}
}

// recollect notes that the owner of a grant knows of it, if it still stands.
func (t *Table) recollect(tx *store.Tx, fence int64) error {
	changed, err := tx.Exec(updateCollected, fence)
	if changed > 0 {
		tx.OnCommit(func() { t.alarms.Remove(alarm{collectAlarm, fence}) })
	}
	return err
}

// collect is recollect for a grant that waited for its owner, with an event.
func (u *turn) collect(g *grant) error {
	_, err := u.append(happening{"lock.collected", "token.collected"}, events.Debug, g.owner, g.role, &g.claim, g.owner.String()+" has its grant of "+g.claim.title(), details{{"fence", g.fence}})
	if err != nil {
		return err
	}
	return u.recollect(u.tx, g.fence)
}

func errStopping() error {
	e := fault.New(fault.Unavailable, "SHUTTING_DOWN", "the broker stops; ask again in a moment, your place in the queue is kept for 10 s after it has started")
	e.RetryAfter = time.Second
	return e
}

package locks

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"brokerd/internal/guard"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

// A Series is requests of one caller that are decided in the order in which they are made, without waiting for one outcome before the next request.
// Its methods are for one goroutine. What they call with the outcome is called in the writer or beside it, and must not block.
type Series struct {
	table     *Table
	caller    identity.Caller
	lane      store.Lane // of the undecided ones: only within a lane there is an order
	undecided atomic.Int64
}

// Series returns an empty series.
func (t *Table) Series(c identity.Caller) *Series { return &Series{table: t, caller: c} }

// Acquire is Table.Acquire. When ctx ends the request is broken off, as a call is. Whoever gets an answer says what becomes of it, with Table.Told.
func (s *Series) Acquire(ctx context.Context, req idempotency.Request, w Wish, done func(Answer, error)) {
	a, err := newAcquireCall(s.table, s.caller, req, w)
	if err != nil {
		done(Answer{}, err)
		return
	}
	answered := done
	done = func(answer Answer, err error) {
		a.traceWait(ctx, &answer, err)
		answered(answer, err)
	}
	finish := func(outcome func() (Answer, error)) {
		var answer Answer
		guard.Go(s.table.zap, func() (err error) {
			if answer, err = outcome(); err != nil {
				s.table.Told(&answer, false)
			}
			return err
		}, func(err error) {
			if !errors.Is(err, errHeard) {
				done(answer, err)
			}
		})
	}
	a.hear = func(v verdict) {
		if ctx.Err() == nil {
			done(v.answer, v.err)
			return
		}
		finish(func() (Answer, error) { return v.answer, ctx.Err() })
	}
	s.submit(ctx, store.LaneFill, 2*textSize(w.Paths), a.decide, func(err error) {
		if err != nil || a.call == nil {
			done(a.finish(ctx, err))
			return
		}
		finish(func() (Answer, error) { return a.finish(ctx, nil) })
	})
}

// Extend is Table.Extend.
func (s *Series) Extend(ctx context.Context, req idempotency.Request, fences []int64, maxHold time.Duration, done func([]time.Time, error)) {
	e := &extendCall{table: s.table, caller: s.caller, req: req, fences: fences, maxHold: maxHold}
	s.submit(ctx, store.LaneFill, 8*len(fences), e.decide, func(err error) { done(e.ends, err) })
}

// Release is Table.Release.
func (s *Series) Release(ctx context.Context, req idempotency.Request, g ReleaseWish, done func(Released, error)) {
	r, err := newReleaseCall(s.table, s.caller, req, g)
	if err != nil {
		done(Released{}, err)
		return
	}
	s.submit(ctx, store.LaneDrain, 2*textSize(g.Paths), r.decide, func(err error) { done(r.given, err) })
}

// submit hands a function to the writer, in its usual lane unless others have to come before it. It
// blocks while the caller has too much queued.
func (s *Series) submit(ctx context.Context, usual store.Lane, size int, decide func(*store.Tx) error, then func(error)) {
	if s.undecided.Load() == 0 {
		s.lane = usual
	}
	s.undecided.Add(1)
	s.table.store.Submit(ctx, s.lane, requestSize+size, decide, func(err error) {
		s.undecided.Add(-1)
		then(err)
	})
}

// requestSize is about how many bytes a request takes beside its paths.
const requestSize = 512

// textSize is how many bytes paths have together. Parsed, they take about as many again.
func textSize(paths []string) int {
	n := 0
	for _, p := range paths {
		n += len(p)
	}
	return n
}

package work

import (
	"context"
	"sync"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/deadline"
	"brokerd/internal/store"
)

// retryAfter is how long a Calendar waits after a failure.
const retryAfter = time.Second

// A Calendar makes the changes of a feature that are due at times of the wall clock. It sleeps until
// the earliest of them. Its methods may be called concurrently.
type Calendar struct {
	clock clockwork.Clock
	log   *zap.Logger
	run   func() (next time.Time, err error) // makes the changes that are due
	queue *deadline.Queue[struct{}]

	stop   context.CancelFunc // ends run; nil before Start
	runner sync.WaitGroup     // of run
}

// NewCalendar returns a calendar that does nothing before Start. due runs in the writer: it makes
// the changes that are due, a bounded number of them, and returns when the next one is due, zero for
// never. A time in the past makes the calendar call it again at once. due can run twice for one
// commit, as all functions of the writer.
func NewCalendar(
	s *store.Store, clock clockwork.Clock, log *zap.Logger, due func(tx *store.Tx) (time.Time, error),
) *Calendar {
	return newCalendar(clock, log, func() (next time.Time, err error) {
		err = s.Write(context.Background(), func(tx *store.Tx) (err error) {
			next, err = due(tx)
			return err
		})
		return next, err
	})
}

func newCalendar(clock clockwork.Clock, log *zap.Logger, run func() (time.Time, error)) *Calendar {
	c := &Calendar{clock: clock, log: log, run: run}
	c.queue = deadline.NewCalendar(clock, func([]struct{}) { c.tick() })
	return c
}

// Start makes the changes that became due while the broker was down, and begins to wait for others.
func (c *Calendar) Start() {
	ctx, stop := context.WithCancel(context.Background())
	c.stop = stop
	c.queue.Set(struct{}{}, c.clock.Now())
	c.runner.Go(func() { c.queue.Run(ctx) })
}

// Stop ends the calendar. It may be called more than once, and without Start.
func (c *Calendar) Stop() {
	if c.stop != nil {
		c.stop()
	}
	c.runner.Wait()
}

// Expect makes the calendar wake no later than at, once the transaction is committed. A zero time is
// never.
func (c *Calendar) Expect(tx *store.Tx, at time.Time) {
	if !at.IsZero() {
		tx.OnCommit(func() { c.wakeBy(at) })
	}
}

func (c *Calendar) wakeBy(at time.Time) {
	if planned, ok := c.queue.Deadline(struct{}{}); !ok || at.Before(planned) {
		c.queue.Set(struct{}{}, at)
	}
}

// tick makes the changes that are due and plans the next tick.
func (c *Calendar) tick() {
	next, err := c.run()
	if err != nil {
		next = c.clock.Now().Add(retryAfter)
	}
	if !next.IsZero() {
		c.wakeBy(next)
	}
	if err != nil {
		c.log.Warn("changes that are due could not be made; the broker tries again", zap.Error(err))
	}
}

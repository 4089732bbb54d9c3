package messagesrpc

import (
	"sync"

	"brokerd/internal/broker"
	"brokerd/internal/fault"
)

// A confirmer collects the outcomes of one stream's batches, for the goroutine that answers them in the order in which
// they were submitted.
type confirmer struct {
	wake  chan struct{} // with a buffer of one: take may have outcomes
	slots chan struct{} // has one element for each batch under way

	mu    sync.Mutex // guards the fields below
	queue []*answer  // oldest first
	ended bool       // the stream has no further batch
	err   error      // why it has ended
}

// An answer has the outcomes of a batch. They are nil until the writer has them.
type answer struct{ outcomes []broker.Outcome }

func newConfirmer() *confirmer {
	return &confirmer{wake: make(chan struct{}, 1), slots: make(chan struct{}, maxPipelined)}
}

// add enters a batch that the caller is about to submit. The caller has taken a slot for it.
func (c *confirmer) add() *answer {
	a := &answer{}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue = append(c.queue, a)
	return a
}

// done enters the outcomes of a batch. The writer calls it, so it does not block.
func (c *confirmer) done(a *answer, outcomes []broker.Outcome) {
	c.mu.Lock()
	a.outcomes = outcomes
	first := c.queue[0] == a
	c.mu.Unlock()
	if first {
		c.signal()
	}
}

// end enters that the stream has no further batch, and why.
func (c *confirmer) end(err error) {
	c.mu.Lock()
	c.ended, c.err = true, err
	c.mu.Unlock()
	c.signal()
}

// signal wakes the goroutine that calls take.
func (c *confirmer) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// take returns the next outcomes that the writer has, if any. It reports whether the stream has ended: no batch is
// under way, and either no further one comes or the broker stops.
func (c *confirmer) take(stopping bool) (outcomes []broker.Outcome, over bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for n < len(c.queue) && c.queue[n].outcomes != nil && len(outcomes) < broker.MaxBatch {
		if n == 0 {
			outcomes = c.queue[n].outcomes
		} else {
			outcomes = append(outcomes, c.queue[n].outcomes...)
		}
		n++
		<-c.slots
	}
	c.queue = c.queue[:copy(c.queue, c.queue[n:])]
	switch {
	case n > 0 || len(c.queue) > 0:
		return outcomes, false, nil
	case c.ended:
		return nil, true, c.err
	case stopping:
		return nil, true, fault.Stopping()
	}
	return nil, false, nil
}

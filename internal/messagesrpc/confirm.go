package messagesrpc

import (
	"sync"

	"brokerd/internal/broker"
)

// A confirmer passes the outcomes of one stream's batches on, in the order in which the batches were submitted.
type confirmer struct {
	wake  chan struct{} // room for one: there is something to take
	slots chan struct{} // one for each batch under way

	mu    sync.Mutex // guards the fields below
	queue []*answer  // oldest first
	ended bool       // no further batch comes
	err   error      // why
}

// An answer is what a batch is waiting for; nil until it is there.
type answer struct{ outcomes []broker.Outcome }

func newConfirmer() *confirmer {
	return &confirmer{wake: make(chan struct{}, 1), slots: make(chan struct{}, maxPipelined)}
}

// add enters a batch that is about to be submitted and for which a slot was taken.
func (c *confirmer) add() *answer {
	a := &answer{}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue = append(c.queue, a)
	return a
}

// done answers a batch. The writer calls it, so it does not block.
func (c *confirmer) done(a *answer, outcomes []broker.Outcome) {
	c.mu.Lock()
	a.outcomes = outcomes
	first := c.queue[0] == a
	c.mu.Unlock()
	if first {
		c.signal()
	}
}

// end says that no further batch comes, and why.
func (c *confirmer) end(err error) {
	c.mu.Lock()
	c.ended, c.err = true, err
	c.mu.Unlock()
	c.signal()
}

// signal wakes take's caller, unless it was woken already.
func (c *confirmer) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// take returns the outcomes that are next, as far as they are there. It is over when no batch is under way and none
// comes, or none is to be waited for because the broker stops.
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
		return nil, true, broker.ErrStopping()
	}
	return nil, false, nil
}

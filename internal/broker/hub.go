package broker

import (
	"slices"
	"sync"

	"brokerd/internal/store"
)

// readied has, by mailbox, the first place of the deliveries that a function made ready. justVisible stands for a
// mailbox in which a delivery became visible to Receive but cannot be claimed yet.
type readied map[int64]place

var justVisible = back

func (r *readied) add(mailbox int64, at place) {
	if *r == nil {
		*r = readied{}
	}
	if old, ok := (*r)[mailbox]; !ok || at.before(old) {
		(*r)[mailbox] = at
	}
}

func (r *readied) seen(mailbox int64) { r.add(mailbox, justVisible) }

// A hub keeps the waiting consumers and readers in memory.
type hub struct {
	// These belong to the writer.
	touched store.Memory[int64, place]        // the first place of what this batch has made ready, by mailbox
	grants  store.Memory[*consumer, granted]  // what this batch has assigned while sending
	leaving store.Memory[*consumer, struct{}] // they leave when this batch is committed

	mu        sync.Mutex
	consumers map[int64][]*consumer // by mailbox, the next consumer first
	named     map[consumerKey]*consumer
	eager     []*consumer // have capacity and have not been checked since
	scans     readied     // mailboxes whose scan continues in the next batch
	readers   map[int64]map[chan struct{}]struct{}
}

// consumerKey names a consumer of which there is only one at a time.
type consumerKey struct {
	agent int64
	name  string
}

func newHub() *hub {
	return &hub{consumers: map[int64][]*consumer{}, named: map[consumerKey]*consumer{},
		scans: readied{}, readers: map[int64]map[chan struct{}]struct{}{}}
}

// dispatchKey is the one key under which dispatch runs at the end of a batch.
type dispatchKey struct{}

// wake makes dispatch check the deliveries that a function made ready, in the same transaction.
func (b *Broker) wake(tx *store.Tx, ready readied) {
	touched := &b.hub.touched
	if len(ready) == 0 && b.hub.grants.Len() == 0 {
		return
	}
	for mailbox, at := range ready {
		if before, found := touched.Find(mailbox); !found || at.before(before) {
			touched.Set(tx, mailbox, at)
		}
	}
	tx.AtEnd(dispatchKey{}, b.dispatch)
}

// Arrived signals the readers of mailboxes in which deliveries have arrived.
func (b *Broker) Arrived(tx *store.Tx, mailboxes ...int64) {
	var ready readied
	for _, mailbox := range mailboxes {
		ready.seen(mailbox)
	}
	b.wake(tx, ready)
}

// nextConsumer returns the next consumer of a mailbox among those that may receive a claim. In each round, a consumer
// receives one claim, or a quarter of its max_in_flight if that is more. Consumers with a high limit receive fewer,
// larger frames. The others share evenly. The caller holds the mutex.
func (h *hub) nextConsumer(mailbox int64, may func(*consumer) bool) *consumer {
	q := h.consumers[mailbox]
	for n, c := range q {
		if !may(c) {
			continue
		}
		if c.turn++; c.turn >= c.max/4 {
			c.turn = 0
			copy(q[n:], q[n+1:])
			q[len(q)-1] = c
		}
		return c
	}
	return nil
}

// waitingAt returns the consumers of a mailbox.
func (h *hub) waitingAt(mailbox int64) []*consumer {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.consumers[mailbox])
}

// Asking reports whether consumers of an agent wait for work from a mailbox, and whether all of them are at their
// limits. It may be called concurrently.
func (b *Broker) Asking(agent, mailbox int64) (asks, full bool) {
	h := b.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	consumers := 0
	for _, c := range h.consumers[mailbox] {
		if c.actor.Mailbox != agent {
			continue
		}
		consumers++
		asks = asks || c.room() > 0
	}
	return asks, consumers > 0 && !asks
}

// enter adds a consumer. Dispatch checks it first.
func (b *Broker) enter(c *consumer) {
	b.hub.mu.Lock()
	b.hub.enter(c)
	b.hub.mu.Unlock()
	b.store.Kick(dispatchKey{}, b.dispatch)
}

func (h *hub) enter(c *consumer) {
	for _, box := range c.boxes {
		h.consumers[box.ID] = append(h.consumers[box.ID], c)
	}
	c.entered = true
	h.lookAt(c)
}

// lookAt makes the next dispatch check all deliveries that a consumer may take. It returns false for a consumer that
// has left.
func (h *hub) lookAt(c *consumer) bool {
	if c.entered {
		c.eager = true
		h.eager = append(h.eager, c)
	}
	return c.entered
}

// leave removes a consumer. Later batches give it no claims. A stream keeps its name until it is closed, so that the
// next stream of that name takes over from it.
func (b *Broker) leave(c *consumer) {
	b.hub.mu.Lock()
	defer b.hub.mu.Unlock()
	b.hub.leave(c)
}

func (h *hub) leave(c *consumer) {
	c.gone = true
	if !c.entered {
		return
	}
	c.entered = false
	for _, box := range c.boxes {
		rest := slices.DeleteFunc(h.consumers[box.ID], func(o *consumer) bool { return o == c })
		if len(rest) == 0 {
			delete(h.consumers, box.ID)
		} else {
			h.consumers[box.ID] = rest
		}
	}
}

// forget releases a consumer's name, if the consumer still has it.
func (b *Broker) forget(c *consumer) {
	h := b.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if k := c.key(); h.named[k] == c {
		delete(h.named, k)
	}
}

// refill returns capacity to a consumer: claims with a number of bytes have ended, and unsent bytes were
// written to its stream or need not be written any more.
func (b *Broker) refill(c *consumer, claims, bytes, unsent int) {
	h := b.hub
	h.mu.Lock()
	wasFull := c.room() == 0
	c.inFlight -= claims
	c.bytes -= bytes
	c.unsent -= unsent
	eager := wasFull && c.room() > 0 && h.lookAt(c)
	h.mu.Unlock()
	if eager {
		b.store.Kick(dispatchKey{}, b.dispatch)
	}
}

// Listen returns a channel that receives a signal after a delivery has become visible in one of the
// mailboxes, and a function that ends it.
func (b *Broker) Listen(mailboxes ...int64) (<-chan struct{}, func()) {
	h, c := b.hub, make(chan struct{}, 1)
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, mailbox := range mailboxes {
		if h.readers[mailbox] == nil {
			h.readers[mailbox] = map[chan struct{}]struct{}{}
		}
		h.readers[mailbox][c] = struct{}{}
	}
	return c, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, mailbox := range mailboxes {
			delete(h.readers[mailbox], c)
			if len(h.readers[mailbox]) == 0 {
				delete(h.readers, mailbox)
			}
		}
	}
}

// signal wakes the readers of the mailboxes.
func (h *hub) signal(mailboxes readied) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for mailbox := range mailboxes {
		for c := range h.readers[mailbox] {
			signal(c)
		}
	}
}

// signalAll wakes all readers, so that they check whether they may continue.
func (h *hub) signalAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, readers := range h.readers {
		for c := range readers {
			signal(c)
		}
	}
}

// move changes the mailboxes of a consumer, unless it has left.
func (b *Broker) move(c *consumer, a Actor, boxes []Mailbox) {
	b.hub.mu.Lock()
	stays := c.entered
	if stays {
		b.hub.leave(c)
		c.gone, c.actor, c.boxes, c.from = false, a, boxes, nil
		b.hub.enter(c)
	}
	b.hub.mu.Unlock()
	if stays {
		b.store.Kick(dispatchKey{}, b.dispatch)
	}
}

// holderOf returns the consumer that has an open stream under a name, nil if there is none.
func (h *hub) holderOf(k consumerKey) *consumer {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.named[k]
}

// dismiss ends the consumers of an agent with an error when the transaction is committed. From
// now on they receive nothing.
func (b *Broker) dismiss(tx *store.Tx, agent int64, why error) {
	b.dismissAll(tx, func(c *consumer) bool { return c.actor.Mailbox == agent }, why)
}

// dismissSession is dismiss for all consumers of a session.
func (b *Broker) dismissSession(tx *store.Tx, session int64, why error) {
	b.dismissAll(tx, func(c *consumer) bool { return c.actor.Session.ID == session }, why)
}

func (b *Broker) dismissAll(tx *store.Tx, who func(*consumer) bool, why error) {
	h := b.hub
	h.mu.Lock()
	all := h.those(who)
	h.mu.Unlock()
	b.suspend(tx, all)
	tx.OnCommit(func() {
		h.mu.Lock()
		all := h.those(who) // those that entered in this batch included
		for _, c := range all {
			h.leave(c)
		}
		h.mu.Unlock()
		for _, c := range all {
			if c.stream != nil {
				c.stream.end(why, SettledElsewhere)
			} else {
				c.dismissed(why)
			}
		}
	})
}

// suspend stops deliveries to consumers that leave when the transaction is committed.
func (b *Broker) suspend(tx *store.Tx, consumers []*consumer) {
	leaving := &b.hub.leaving
	for _, c := range consumers {
		leaving.Set(tx, c, struct{}{})
		tx.OnCommit(func() { leaving.Forget(c) })
	}
}

// those returns the consumers for which who is true. The caller holds the mutex.
func (h *hub) those(who func(*consumer) bool) []*consumer {
	var all []*consumer
	for _, waiting := range h.consumers {
		for _, c := range waiting {
			if who(c) && !slices.Contains(all, c) {
				all = append(all, c)
			}
		}
	}
	return all
}

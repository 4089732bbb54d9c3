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

// Waiters keeps in memory the consumers that wait for claims, and the readers that wait for arrivals. Its exported
// methods may be called concurrently.
type Waiters struct {
	store    *store.Store
	dispatch func(*store.Tx) error // runs at the end of a batch
	gates    Gates

	// These belong to the writer.
	touched store.Memory[int64, place]        // the first place of what this batch has made ready, by mailbox
	grants  store.Memory[*consumer, granted]  // what this batch has assigned while sending
	leaving store.Memory[*consumer, struct{}] // they leave when this batch is committed

	mu        sync.Mutex
	consumers map[int64][]*consumer // by mailbox, the next consumer first
	eager     []*consumer           // have capacity and have not been checked since
	scans     readied               // mailboxes whose scan continues in the next batch
	readers   map[int64]map[chan struct{}]struct{}
}

func newWaiters(st *store.Store, dispatch func(*store.Tx) error) *Waiters {
	return &Waiters{store: st, dispatch: dispatch, consumers: map[int64][]*consumer{},
		scans: readied{}, readers: map[int64]map[chan struct{}]struct{}{}}
}

// dispatchKey is the one key under which dispatch runs at the end of a batch.
type dispatchKey struct{}

// wake makes dispatch check the deliveries that a function made ready, in the same transaction.
func (w *Waiters) wake(tx *store.Tx, ready readied) {
	touched := &w.touched
	if len(ready) == 0 && w.grants.Len() == 0 {
		return
	}
	for mailbox, at := range ready {
		if before, found := touched.Find(mailbox); !found || at.before(before) {
			touched.Set(tx, mailbox, at)
		}
	}
	tx.AtEnd(dispatchKey{}, w.dispatch)
}

// Arrived signals the readers of mailboxes in which deliveries have arrived.
func (w *Waiters) Arrived(tx *store.Tx, mailboxes ...int64) {
	var ready readied
	for _, mailbox := range mailboxes {
		ready.seen(mailbox)
	}
	w.wake(tx, ready)
}

// reread makes dispatch read the mailboxes of deliveries from the front again: the deliveries that a filtered consumer
// has passed over are no longer in front of those that it has not.
func (w *Waiters) reread(tx *store.Tx, keys []key) {
	var ready readied
	for _, k := range keys {
		ready.add(k.mailbox, front)
	}
	w.wake(tx, ready)
}

// kick makes dispatch run, although no function has changed anything.
func (w *Waiters) kick() { w.store.Kick(dispatchKey{}, w.dispatch) }

// nextConsumer returns the next consumer of a mailbox among those that may receive a claim. In each round, a consumer
// receives one claim, or a quarter of its max_in_flight if that is more. Consumers with a high limit receive fewer,
// larger frames. The others share evenly. The caller holds the mutex.
func (w *Waiters) nextConsumer(mailbox int64, may func(*consumer) bool) *consumer {
	q := w.consumers[mailbox]
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
func (w *Waiters) waitingAt(mailbox int64) []*consumer {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.consumers[mailbox])
}

// Asking reports whether consumers of an agent wait for work from a mailbox, and whether all of them are at their
// limits. It may be called concurrently.
func (w *Waiters) Asking(agent, mailbox int64) (asks, full bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	consumers := 0
	for _, c := range w.consumers[mailbox] {
		if c.actor.Mailbox != agent {
			continue
		}
		consumers++
		asks = asks || c.capacity() > 0
	}
	return asks, consumers > 0 && !asks
}

// enter adds a consumer. Dispatch checks it first.
func (w *Waiters) enter(c *consumer) {
	w.mu.Lock()
	w.add(c)
	w.mu.Unlock()
	w.kick()
}

// add is enter for a caller that holds the mutex and makes dispatch run.
func (w *Waiters) add(c *consumer) {
	for _, box := range c.boxes {
		w.consumers[box.ID] = append(w.consumers[box.ID], c)
	}
	c.entered = true
	w.lookAt(c)
}

// lookAt makes the next dispatch check all deliveries that a consumer may take. It returns false for a consumer that
// has left.
func (w *Waiters) lookAt(c *consumer) bool {
	if c.entered {
		c.eager = true
		w.eager = append(w.eager, c)
	}
	return c.entered
}

// leave removes a consumer. Later batches give it no claims.
func (w *Waiters) leave(c *consumer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.remove(c)
}

// remove is leave for a caller that holds the mutex.
func (w *Waiters) remove(c *consumer) {
	c.gone = true
	if !c.entered {
		return
	}
	c.entered = false
	for _, box := range c.boxes {
		rest := slices.DeleteFunc(w.consumers[box.ID], func(o *consumer) bool { return o == c })
		if len(rest) == 0 {
			delete(w.consumers, box.ID)
		} else {
			w.consumers[box.ID] = rest
		}
	}
}

// hasLeft reports whether a consumer has left.
func (w *Waiters) hasLeft(c *consumer) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return c.gone
}

// refill returns capacity to a consumer: claims with a number of bytes have ended, and unsent bytes were
// written to its stream or need not be written any more.
func (w *Waiters) refill(c *consumer, claims, bytes, unsent int) {
	w.mu.Lock()
	wasFull := c.capacity() == 0
	c.inFlight -= claims
	c.bytes -= bytes
	c.unsent -= unsent
	eager := wasFull && c.capacity() > 0 && w.lookAt(c)
	w.mu.Unlock()
	if eager {
		w.kick()
	}
}

// Listen returns a channel that receives a signal after a delivery has become visible in one of the
// mailboxes, and a function that ends it.
func (w *Waiters) Listen(mailboxes ...int64) (<-chan struct{}, func()) {
	c := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, mailbox := range mailboxes {
		if w.readers[mailbox] == nil {
			w.readers[mailbox] = map[chan struct{}]struct{}{}
		}
		w.readers[mailbox][c] = struct{}{}
	}
	return c, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, mailbox := range mailboxes {
			delete(w.readers[mailbox], c)
			if len(w.readers[mailbox]) == 0 {
				delete(w.readers, mailbox)
			}
		}
	}
}

// signal wakes the readers of the mailboxes.
func (w *Waiters) signal(mailboxes readied) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for mailbox := range mailboxes {
		for c := range w.readers[mailbox] {
			signal(c)
		}
	}
}

// signalAll wakes all readers, so that they check whether they may continue.
func (w *Waiters) signalAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, readers := range w.readers {
		for c := range readers {
			signal(c)
		}
	}
}

// move changes the mailboxes of a consumer, unless it has left.
func (w *Waiters) move(c *consumer, a Actor, boxes []Mailbox) {
	w.mu.Lock()
	stays := c.entered
	if stays {
		w.remove(c)
		c.gone, c.actor, c.boxes, c.from = false, a, boxes, nil
		w.add(c)
	}
	w.mu.Unlock()
	if stays {
		w.kick()
	}
}

// dismiss ends the consumers of an agent with an error when the transaction is committed. From
// now on they receive nothing.
func (w *Waiters) dismiss(tx *store.Tx, agent int64, why error) {
	w.dismissAll(tx, func(c *consumer) bool { return c.actor.Mailbox == agent }, why)
}

// dismissSession is dismiss for all consumers of a session.
func (w *Waiters) dismissSession(tx *store.Tx, session int64, why error) {
	w.dismissAll(tx, func(c *consumer) bool { return c.actor.Session.ID == session }, why)
}

func (w *Waiters) dismissAll(tx *store.Tx, who func(*consumer) bool, why error) {
	w.mu.Lock()
	all := w.those(who)
	w.mu.Unlock()
	w.suspend(tx, all)
	tx.OnCommit(func() {
		w.mu.Lock()
		all := w.those(who) // those that entered in this batch included
		for _, c := range all {
			w.remove(c)
		}
		w.mu.Unlock()
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
func (w *Waiters) suspend(tx *store.Tx, consumers []*consumer) {
	leaving := &w.leaving
	for _, c := range consumers {
		leaving.Set(tx, c, struct{}{})
		tx.OnCommit(func() { leaving.Forget(c) })
	}
}

// those returns the consumers for which who is true. The caller holds the mutex.
func (w *Waiters) those(who func(*consumer) bool) []*consumer {
	var all []*consumer
	for _, waiting := range w.consumers {
		for _, c := range waiting {
			if who(c) && !slices.Contains(all, c) {
				all = append(all, c)
			}
		}
	}
	return all
}

// A granted is what a consumer has been given in a batcw.
type granted struct {
	claims []Claim
	bytes  int // of their contents
}

// capacityBesideGrants is the number of claims that a consumer may receive beside those that this batch has granted to it.
func (w *Waiters) capacityBesideGrants(c *consumer) int {
	if _, leaving := w.leaving.Find(c); leaving {
		return 0
	}
	return c.capacityBeside(w.grants.Get(c))
}

// grant notes that a consumer has been given a delivery by the function of tx.
func (w *Waiters) grant(tx *store.Tx, c *consumer, claim Claim) {
	g := w.grants.Get(c)
	w.grants.Set(tx, c, granted{append(g.claims, claim), g.bytes + len(claim.Content)})
}

// Most messages find a consumer that waits for them. The function that sends such a message assigns it at once: its
// delivery is created as CLAIMED. This saves inserting it as ready, finding it and changing it, a third of the writer's
// work for a message. Waiters keeps these grants for the later functions of the batch. At the end of the batch, dispatch
// delivers them to the consumers.

// waiting returns the next consumer of a mailbox, if one may have a delivery before all that is ready.
func (w *Waiters) waiting(tx *store.Tx, mailbox int64, ref MailboxRef, r *ready) (*consumer, error) {
	if at, ok := w.touched.Find(mailbox); ok && at != justVisible {
		return nil, nil // a delivery is ready and not yet assigned
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.scans[mailbox]; ok {
		return nil, nil
	}
	var failed error
	c := w.nextConsumer(mailbox, func(c *consumer) bool {
		if c.eager || !c.takes(ref.Kind, r) || w.capacityBesideGrants(c) == 0 {
			return false
		}
		p, err := w.gates.Pass(tx, c.actor.Mailbox)
		if err != nil {
			failed = err
		}
		return err == nil && (p == Everything || r.directive()) // dispatch gives a probe
	})
	return c, failed
}

// passes reports whether a consumer's agent may be given a ready delivery.
func (w *Waiters) passes(tx *store.Tx, c *consumer, r *ready) (bool, error) {
	p, err := w.gates.Pass(tx, c.actor.Mailbox)
	return err == nil && (p != OnlyDirectives || r.directive()), err
}

// Reconsider has dispatch examine all that an agent's consumers may take, at the end of this batch: its gate allows more
// than before. Nothing new is given to them before that, because it would overtake older deliveries.
func (w *Waiters) Reconsider(tx *store.Tx, agent int64) {
	w.lookAgain(tx, func(c *consumer) bool { return c.actor.Mailbox == agent })
}

// DrainEnded has dispatch examine all that consumers may take. It is a hook of the end of a drain.
func (w *Waiters) DrainEnded(tx *store.Tx) error {
	w.lookAgain(tx, func(*consumer) bool { return true })
	return nil
}

// lookAgain has dispatch examine all that some consumers may take.
func (w *Waiters) lookAgain(tx *store.Tx, who func(*consumer) bool) {
	w.mu.Lock()
	for _, c := range w.those(who) {
		if !c.eager {
			w.lookAt(c)
		}
	}
	w.mu.Unlock()
	tx.AtEnd(dispatchKey{}, w.dispatch)
}

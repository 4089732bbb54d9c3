package broker

import (
	"maps"
	"slices"
	"sync"

	"brokerd/internal/mail"
	"brokerd/internal/store"
)

// Waiters keeps in memory the consumers that wait for claims, and the readers that wait for arrivals. It has dispatch run
// when one of them may have something to receive. Its exported methods may be called concurrently.
type Waiters struct {
	changes store.Ending[change] // dispatch
	gates   Gates

	// These belong to the writer.
	retry  store.Value[[]*consumer] // freed, and taken by a dispatch that did not succeed
	unread store.Value[bool]        // a line may be unread

	mu      sync.Mutex
	lines   map[int64]*line // by mailbox; the writer alone changes them, and reads them without the mutex
	freed   []*consumer     // have gained capacity, and dispatch has not checked them since
	readers map[int64]map[chan struct{}]struct{}
}

// A line has the consumers that wait for work from one mailbox.
type line struct {
	consumers []*consumer
	next      int // the consumer whose turn it is
	holds     store.Value[holding]
}

// A holding says what is ready in a mailbox.
type holding int

const (
	offered holding = iota // dispatch has offered all to the consumers that have capacity; some may be left
	unread                 // there may be deliveries that dispatch has not offered
	empty                  // nothing
)

// A change is what dispatch needs to know of a function: a delivery has become ready, or only visible to readers, or a
// consumer was given one.
type change struct {
	mailbox int64
	at      place     // of the delivery that is ready; justVisible
	to      *consumer // who was given deliveries; then nothing else is set
}

// justVisible is the place of a delivery that has become visible to Receive and cannot be claimed.
var justVisible = back

func newWaiters(b *Broker) *Waiters {
	return &Waiters{
		changes: store.NewEnding(b.store, b.dispatch), lines: map[int64]*line{}, readers: map[int64]map[chan struct{}]struct{}{},
	}
}

// ready takes note that a delivery has become ready at a place in a mailbox. Every function that makes one PENDING calls
// it: nothing else has dispatch find the delivery.
func (w *Waiters) ready(tx *store.Tx, mailbox int64, at place) {
	if l := w.lines[mailbox]; l != nil && l.holds.Get() != unread {
		l.holds.Set(tx, unread)
		if !w.unread.Get() {
			w.unread.Set(tx, true)
		}
	}
	w.changes.Note(tx, change{mailbox: mailbox, at: at}, 0)
}

// Arrived signals the readers of mailboxes in which deliveries have arrived.
func (w *Waiters) Arrived(tx *store.Tx, mailboxes ...int64) {
	for _, mailbox := range mailboxes {
		w.changes.Note(tx, change{mailbox: mailbox, at: justVisible}, 0)
	}
}

// Reread makes dispatch read the mailboxes of deliveries from the front again: the deliveries that a filtered consumer
// has passed over are no longer in front of those that it has not.
func (w *Waiters) Reread(tx *store.Tx, keys []mail.DeliveryID) {
	mailboxes := map[int64]bool{}
	for _, k := range keys {
		mailboxes[k.Mailbox] = true
	}
	for mailbox := range mailboxes {
		w.ready(tx, mailbox, front)
	}
}

// nextTo returns the next consumer of a line among those that may receive a claim. In each turn, a consumer receives one
// claim, or a quarter of its max_in_flight if that is more. Consumers with a high limit receive fewer, larger frames. The
// others share evenly. The turn stays taken even if the function is refused.
func (l *line) nextTo(may func(*consumer) bool) *consumer {
	for i := range l.consumers {
		n := (l.next + i) % len(l.consumers)
		c := l.consumers[n]
		if !may(c) {
			continue
		}
		if c.turn++; c.turn >= c.max/4 {
			c.turn, l.next = 0, n+1
		}
		return c
	}
	return nil
}

// Asking reports whether consumers of an agent wait for work from a mailbox, and whether all of them are at their
// limits. It may be called concurrently.
func (w *Waiters) Asking(agent, mailbox int64) (asks, full bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.lines[mailbox]
	if l == nil {
		return false, false
	}
	consumers := 0
	for _, c := range l.consumers {
		if c.actor.Mailbox != agent || c.gone.Load() {
			continue
		}
		consumers++
		asks = asks || !c.full.Load()
	}
	return asks, consumers > 0 && !asks
}

// enter adds a consumer. Dispatch checks it first. It is for functions of OnCommit.
func (w *Waiters) enter(c *consumer) {
	w.mu.Lock()
	for _, box := range c.boxes {
		l := w.lines[box.ID]
		if l == nil {
			l = &line{}
			w.lines[box.ID] = l
		}
		l.consumers = append(l.consumers, c)
	}
	w.mu.Unlock()
	c.entered = true
	c.from.Put(nil) // what has become ready before it waited was not compared with its places
	w.free(c)
}

// free has dispatch check all deliveries that a consumer may take: it has gained capacity. Until then it is given no new
// ones, which would overtake those. It may be called concurrently.
func (w *Waiters) free(c *consumer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.freeLocked(c)
}

// freeLocked is free for a caller that holds the mutex. Dispatch is asked for under the mutex too, so that a check for
// sleeping mailboxes sees no capacity before that.
func (w *Waiters) freeLocked(c *consumer) {
	if !c.freed {
		c.freed = true
		w.freed = append(w.freed, c)
	}
	w.changes.Kick()
}

// takeFreed returns the consumers that dispatch is to check. They come back if it fails.
func (w *Waiters) takeFreed(tx *store.Tx) []*consumer {
	w.mu.Lock()
	freed := append(w.retry.Get(), w.freed...)
	w.freed = nil
	for _, c := range freed {
		c.freed = false // it may gain more from here on
	}
	w.mu.Unlock()
	if len(freed) > 0 {
		w.retry.Put(freed)
		w.retry.Set(tx, nil)
	}
	return freed
}

// release takes the load of claims from a consumer that have ended. Without a Tx it is for functions of OnCommit.
func (w *Waiters) release(tx *store.Tx, c *consumer, claims, bytes int) {
	l := c.load.Get()
	l.claims -= claims
	l.bytes -= bytes
	if tx != nil {
		c.load.Set(tx, l)
	} else {
		c.load.Put(l)
	}
	if w.mayHave(c) {
		w.free(c)
	}
}

// capacity is how many claims a consumer may be given in front of what dispatch has not checked for it: none if it was
// freed. It gains capacity under the mutex.
func (w *Waiters) capacity(c *consumer) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.freed {
		return 0
	}
	return c.capacity()
}

// mayHave reports whether anything may be ready for a consumer that waits.
func (w *Waiters) mayHave(c *consumer) bool {
	if !c.entered {
		return false
	}
	return slices.ContainsFunc(c.boxes, func(box mail.Mailbox) bool { return !w.isEmpty(box.ID) })
}

// isEmpty reports whether nothing is ready in a mailbox, as far as that is known.
func (w *Waiters) isEmpty(mailbox int64) bool {
	l := w.lines[mailbox]
	return mailbox == 0 || l != nil && l.holds.Get() == empty
}

// wrote takes note that bytes of claims were written to the stream of a consumer, or need not be written any more. It may
// be called concurrently.
func (w *Waiters) wrote(c *consumer, bytes int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c.written.Add(int64(bytes))
	if c.behind.Swap(false) {
		w.freeLocked(c)
	}
}

// remove removes a consumer, which receives nothing more. It is for functions of OnCommit.
func (w *Waiters) remove(c *consumer) {
	c.gone.Store(true)
	w.unlist(c)
}

// unlist takes a consumer out of its lines.
func (w *Waiters) unlist(c *consumer) {
	if !c.entered {
		return
	}
	c.entered = false
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, box := range c.boxes {
		l := w.lines[box.ID]
		l.consumers = slices.DeleteFunc(l.consumers, func(o *consumer) bool { return o == c })
		if len(l.consumers) == 0 {
			delete(w.lines, box.ID)
		}
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
func (w *Waiters) signal(mailboxes map[int64]place) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.readers) == 0 {
		return
	}
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

// move changes the mailboxes of a consumer, unless it has left. It is for functions of OnCommit.
func (w *Waiters) move(c *consumer, a mail.Actor, boxes []mail.Mailbox) {
	if !c.entered || c.gone.Load() {
		return
	}
	w.unlist(c)
	w.mu.Lock()
	c.actor, c.boxes = a, boxes
	w.mu.Unlock()
	w.enter(c)
}

// dismissAgent is dismiss for the consumers of an agent.
func (w *Waiters) dismissAgent(tx *store.Tx, agent int64, why error) {
	w.dismiss(tx, func(c *consumer) bool { return c.actor.Mailbox == agent }, why)
}

// dismiss ends the consumers for which who is true with an error when the transaction is committed. From now on they
// receive nothing.
func (w *Waiters) dismiss(tx *store.Tx, who func(*consumer) bool, why error) {
	for _, c := range w.those(who) {
		c.leaving.Set(tx, true)
	}
	tx.OnCommit(func() {
		all := w.those(who) // those that entered in this batch included
		for _, c := range all {
			w.remove(c)
		}
		for _, c := range all {
			if c.stream != nil {
				c.stream.end(why, SettledElsewhere)
			} else {
				c.dismissed(why)
			}
		}
	})
}

// those returns the consumers for which who is true.
func (w *Waiters) those(who func(*consumer) bool) []*consumer {
	all := map[*consumer]bool{}
	for _, l := range w.lines {
		for _, c := range l.consumers {
			if who(c) {
				all[c] = true
			}
		}
	}
	return slices.Collect(maps.Keys(all))
}

// taker returns the next consumer of a mailbox that may have a new delivery at once. It returns nil if there is none, or
// if other deliveries go before.
func (w *Waiters) taker(tx *store.Tx, to mail.Mailbox, r *ready) (*consumer, error) {
	l := w.lines[to.ID]
	if l == nil || l.holds.Get() == unread || w.retry.Get() != nil {
		return nil, nil
	}
	var failed error
	c := l.nextTo(func(c *consumer) bool {
		if !c.takes(to.Ref.Kind, r) || w.capacity(c) == 0 || w.unread.Get() && w.hasUnread(c) {
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

// hasUnread reports whether another delivery may go before a new one for a consumer, from any of its mailboxes.
func (w *Waiters) hasUnread(c *consumer) bool {
	return slices.ContainsFunc(c.boxes, func(box mail.Mailbox) bool {
		l := w.lines[box.ID]
		return l != nil && l.holds.Get() == unread
	})
}

// give gives a consumer a claim, which dispatch delivers.
func (w *Waiters) give(tx *store.Tx, c *consumer, claim *Claim) {
	if len(c.load.Get().fresh) == 0 {
		w.changes.Note(tx, change{to: c}, 0)
	}
	c.take(tx, claim)
}

// recall takes a claim that has ended from the consumer that was given it in this batch.
func (w *Waiters) recall(tx *store.Tx, holder consumerKey, k mail.DeliveryID) {
	l := w.lines[k.Mailbox]
	if l == nil {
		return
	}
	for _, c := range l.consumers {
		held := c.load.Get()
		i := slices.IndexFunc(held.fresh, func(claim Claim) bool { return claim.key == k })
		if i < 0 || c.key() != holder {
			continue
		}
		bytes := held.fresh[i].size()
		held.given -= int64(bytes)
		held.fresh = slices.Delete(slices.Clone(held.fresh), i, i+1)
		c.load.Set(tx, held)
		w.release(tx, c, 1, bytes)
	}
}

// passes reports whether a consumer's agent may be given a ready delivery.
func (w *Waiters) passes(tx *store.Tx, c *consumer, r *ready) (bool, error) {
	p, err := w.gates.Pass(tx, c.actor.Mailbox)
	return err == nil && (p != OnlyDirectives || r.directive()), err
}

// Reconsider has dispatch examine all that an agent's consumers may take, at the end of this batch: its gate allows more
// than before. Nothing new is given to them before that, because it would overtake older deliveries.
func (w *Waiters) Reconsider(agent int64) {
	for _, c := range w.those(func(c *consumer) bool { return c.actor.Mailbox == agent }) {
		w.free(c)
	}
}

// DrainEnded has dispatch examine all that consumers may take. It is a hook of the end of a drain.
func (w *Waiters) DrainEnded(*store.Tx) error {
	for _, c := range w.those(func(*consumer) bool { return true }) {
		w.free(c)
	}
	return nil
}

package broker

import "brokerd/internal/store"

// Most messages find a consumer that waits for them. Such a message is given to it as it is sent: its
// delivery begins as CLAIMED, which saves entering it among the ready ones, finding it there and changing it, a
// third of what a message costs the writer. dispatch, at the end of the batch, tells the consumer.
//
// What was granted in a batch is noted in the waiters for the functions after it.

// waiting returns the consumer whose turn it is to be given a delivery, if one may have it before all that is ready.
func (b *Broker) waiting(tx *store.Tx, mailbox int64, ref MailboxRef, r *ready) (*consumer, error) {
	w := b.Waiters
	if at, ok := w.touched.Find(mailbox); ok && at != justVisible {
		return nil, nil // something is ready and not yet handed out
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.scans[mailbox]; ok {
		return nil, nil
	}
	var failed error
	c := w.nextConsumer(mailbox, func(c *consumer) bool {
		if c.eager || !c.takes(ref.Kind, r) || w.roomBesideGrants(c) == 0 {
			return false
		}
		p, err := b.gates.Pass(tx, c.actor.Mailbox)
		if err != nil {
			failed = err
		}
		return err == nil && (p == Everything || r.directive()) // dispatch gives a probe
	})
	return c, failed
}

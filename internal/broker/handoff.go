package broker

import "brokerd/internal/store"

// Most messages find a consumer that waits for them. Such a message is given to it as it is sent: its
// delivery begins as CLAIMED, which saves entering it among the ready ones, finding it there and changing it, a
// third of what a message costs the writer. dispatch, at the end of the batch, tells the consumer.
//
// What was granted in a batch is noted in the hub for the functions after it.

// waiting returns the consumer whose turn it is to be given a delivery, if one may have it before all that is ready.
func (b *Broker) waiting(tx *store.Tx, mailbox int64, ref MailboxRef, r *ready) (*consumer, error) {
	h := b.hub
	if at, ok := h.touched.Find(mailbox); ok && at != justVisible {
		return nil, nil // something is ready and not yet handed out
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.scans[mailbox]; ok {
		return nil, nil
	}
	var failed error
	c := h.nextConsumer(mailbox, func(c *consumer) bool {
		if c.eager || !c.takes(ref.Kind, r) || h.roomBesideGrants(c) == 0 {
			return false
		}
		g, err := b.gate(tx, c.actor.Mailbox)
		if err != nil {
			failed = err
		}
		// A probe is left to dispatch.
		return err == nil && (g == gate{} || r.directive() || g.pass(tx.Now()) == everything)
	})
	return c, failed
}

// A granted is what a consumer has been given in a batch.
type granted struct {
	claims []Claim
	bytes  int // of their contents
}

// roomBesideGrants is the room that a consumer has beside what this batch has already granted to it.
func (h *hub) roomBesideGrants(c *consumer) int {
	if _, leaving := h.leaving.Find(c); leaving {
		return 0
	}
	return c.roomBeside(h.grants.Get(c))
}

// grant notes that a consumer has been given a delivery by the function of tx.
func (h *hub) grant(tx *store.Tx, c *consumer, claim Claim) {
	g := h.grants.Get(c)
	h.grants.Set(tx, c, granted{append(g.claims, claim), g.bytes + len(claim.Content)})
}

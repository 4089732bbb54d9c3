package broker

import (
	"slices"

	"brokerd/internal/store"
)

// Most messages find a consumer that waits for them. Such a message is given to it as it is sent: its
// delivery begins as CLAIMED, which saves entering it among the ready ones, finding it there and changing it, a
// third of what a message costs the writer. dispatch, at the end of the batch, tells the consumer.
//
// What was granted in a batch is noted in the hub for the functions after it; a function that is
// rolled back takes its grants with it.

// waiting returns the consumer whose turn it is to be given a delivery, if one may have it before all that is ready.
func (b *Broker) waiting(tx *store.Tx, mailbox int64, ref mailboxRef, r *ready) (*consumer, error) {
	h := b.hub
	if at, ok := h.touched[mailbox]; ok && at != justVisible {
		return nil, nil // something is ready and not yet handed out
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.scans[mailbox]; ok {
		return nil, nil
	}
	var failed error
	c := h.nextConsumer(mailbox, func(c *consumer) bool {
		if c.eager || !c.takes(ref.kind, r) || b.granted(c) == 0 {
			return false
		}
		g, err := b.gate(tx, c.actor.mailbox)
		if err != nil {
			failed = err
		}
		// A probe is left to dispatch.
		return err == nil && (g == gate{} || r.directive() || g.pass(tx.Now()) == everything)
	})
	return c, failed
}

// granted is the room that a consumer has beside what this batch has already granted to it.
func (b *Broker) granted(c *consumer) int {
	s := b.hub.grants[c]
	if s == nil {
		return c.room()
	}
	return c.roomBeside(s)
}

// grant notes that a consumer has been given a delivery by the function of tx.
func (b *Broker) grant(c *consumer, claim Claim) {
	h := b.hub
	s := h.grants[c]
	if s == nil {
		s = &share{}
		h.grants[c] = s
		h.grantees = append(h.grantees, c)
	}
	s.claims = append(s.claims, claim)
	s.bytes += len(claim.Content)
}

// revertible takes back what was granted from the revision on if the function of tx is rolled back.
func (b *Broker) revertible(tx *store.Tx, from int64) {
	h := b.hub
	tx.OnUndo(func() {
		for c, s := range h.grants {
			s.claims = slices.DeleteFunc(s.claims, func(claim Claim) bool { return claim.Revision >= from })
			s.bytes = 0
			for i := range s.claims {
				s.bytes += len(s.claims[i].Content)
			}
			if len(s.claims) == 0 {
				delete(h.grants, c)
				h.grantees = slices.DeleteFunc(h.grantees, func(o *consumer) bool { return o == c })
			}
		}
	})
}

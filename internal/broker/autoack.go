package broker

import (
	"context"
	"errors"

	"brokerd/internal/identity"
	"brokerd/internal/store"
)

// A read with AutoAck finishes each delivery before it shows it, so it delivers at most once. It leaves
// out claimed deliveries, those that are not due, and those that wait for an earlier one of their
// ordering key. While the agent is halted or the broker is drained, it leaves out all but directives.
// A delivery that was left out may become ready without a new arrival. Therefore the reported
// position, which the cursor keeps, stays before the first of them. The next read shows no delivery
// twice, because those that were shown are finished.

// leave notes that something was left out.
func (p *arrivalsPage) leave(arrival int64) {
	if p.left == 0 || arrival < p.left {
		p.left = arrival
	}
}

// ready reports whether reading with AutoAck may show a delivery that the choice takes.
func (g *gate) ready(m *row, d *Delivery) bool {
	return (d.State == Pending || d.State == NoticeUnread) && (!g.closed() || IsDirective(m.kind))
}

// ackShown finishes what a page shows. What has changed since it was read is left out.
func (b *Broker) ackShown(ctx context.Context, c identity.Caller, p *arrivalsPage) error {
	if len(p.items) == 0 {
		return nil
	}
	read := *p
	return b.store.Drain(ctx, func(tx *store.Tx) error {
		*p = read
		a, err := b.Owner(tx, c)
		if err != nil {
			return err
		}
		g, err := b.gate(tx, a.Mailbox)
		if err != nil {
			return err
		}
		s := b.NewSettleTx(tx, a)
		shown := make([]Item, 0, len(read.items))
		for _, item := range read.items {
			done := !g.closed() || item.directive
			if done {
				if done, err = s.ackUnclaimed(&item); err != nil {
					return err
				}
			}
			if done {
				shown = append(shown, item)
			} else {
				p.leave(item.Delivery.Arrival)
			}
		}
		p.items, p.promoted = shown, len(s.ready) > 0
		_, err = s.Finish()
		return err
	})
}

// ackUnclaimed finishes a delivery in the actor's own mailbox that is ready, and reports whether it was.
func (s *SettleTx) ackUnclaimed(item *Item) (bool, error) {
	now, d := s.tx.Now(), &item.Delivery
	var ordering string
	err := s.tx.QueryRow(updateAckReady, s.actor.Mailbox, now, item.Revision).Scan(&ordering)
	if errors.Is(err, store.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if d.DeliveredAt.IsZero() {
		s.fresh++
		if err := s.count(s.tx, s.actor.Session, isDelivered, item.Revision); err != nil {
			return false, err
		}
	}
	if err := s.count(s.tx, s.actor.Session, isAcked, item.Revision); err != nil {
		return false, err
	}
	if err := s.endUnanswered(s.tx, item.Revision); err != nil {
		return false, err
	}
	if d.State == Pending {
		s.left[s.actor.Mailbox]--
	}
	d.State, d.Holder, d.FinishedAt = Acked, s.actor.Name, now
	d.ReadAt, d.DeliveredAt = earliest(d.ReadAt, now), earliest(d.DeliveredAt, now)
	h := held{key: key{item.Revision, s.actor.Mailbox}, claims: d.Claims}
	s.noted[Ack] = append(s.noted[Ack], h.claimID())
	if ordering == "" {
		return true, nil
	}
	return true, s.PromoteNext(s.actor.Mailbox, ordering)
}

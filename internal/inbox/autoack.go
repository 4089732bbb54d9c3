package inbox

import (
	"context"

	"brokerd/internal/identity"
	"brokerd/internal/mail"
	"brokerd/internal/store"
)

// A read with AutoAck acknowledges each delivery before it sends it, so it delivers at most once. It leaves out claimed
// deliveries, those that are not due, and those that wait for an earlier one of their ordering key. While the agent is
// halted or the broker is drained, it leaves out all but directives. A delivery that was left out may become ready
// without a new arrival. Therefore the reported position, which the cursor keeps, stays before the first of them. The
// next read sends no delivery twice, because the deliveries that were sent are finished.

// leave notes that the page leaves out a delivery.
func (p *arrivalsPage) leave(arrival int64) {
	if p.left == 0 || arrival < p.left {
		p.left = arrival
	}
}

// ready reports whether a read with AutoAck may send a delivery that the choice takes. halted reports whether the agent
// is halted.
func ready(m *row, d *mail.Delivery, halted bool) bool {
	return (d.State == mail.Pending || d.State == mail.NoticeUnread) && (!halted || mail.IsDirective(m.kind))
}

// ackShown acknowledges the deliveries of a page. The page then leaves out those that have changed since it was read.
func (r *Reader) ackShown(ctx context.Context, c identity.Caller, p *arrivalsPage) error {
	if len(p.items) == 0 {
		return nil
	}
	read := *p
	return r.store.Drain(ctx, func(tx *store.Tx) error {
		*p = read
		a, err := r.broker.Mailboxes.Owner(tx, c)
		if err != nil {
			return err
		}
		closed, err := r.gates.DirectivesOnly(tx, a.Mailbox)
		if err != nil {
			return err
		}
		s := r.broker.NewSettleTx(tx, a)
		shown := make([]mail.Item, 0, len(read.items))
		for _, item := range read.items {
			done := !closed || item.Directive
			if done {
				if done, err = s.AckReady(&item); err != nil {
					return err
				}
			}
			if done {
				shown = append(shown, item)
			} else {
				p.leave(item.Delivery.Arrival)
			}
		}
		p.items, p.promoted = shown, s.MadeReady()
		_, err = s.Finish()
		return err
	})
}

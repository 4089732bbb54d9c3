package inbox

import (
	"context"
	"encoding/json"
	"math"
	"time"

	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/mail"
	"brokerd/internal/store"
)

// A Look is a way to read a mailbox without follow: in the order in which claims take messages, or together with the
// waiting messages of the queues of the caller's role and channels. It claims nothing. The zero Look asks for neither.
type Look struct {
	Priority bool // order by priority instead of arrival
	Queues   bool
	Newest   bool  // first; by arrival only
	Behind   Place // the position of the page before; zero = from the start
}

// A Place is a position in a look: a sort key and a message.
type Place [2]int64

// Asked reports whether a list is to show the mailbox in this way, rather than by arrival.
func (l *Look) Asked() bool { return l.Priority || l.Queues }

// start sets the position in front of everything, unless the caller has given one.
func (l *Look) start() {
	if l.Behind == (Place{}) {
		l.Behind = Place{math.MinInt64, 0}
	}
}

// read returns at most size items behind the position, with about as many bytes of messages, and
// moves the position behind them. boxes are the mailboxes that the actor may take from, its own
// first. more is false at the end. Deliveries that the choice leaves out count neither for size nor
// for bytes, but one call reads at most listStretch deliveries.
func (l *Look) read(
	q store.Querier, boxes []mail.Mailbox, choice *Choice, size, bytes int,
) (items []mail.Item, more bool, err error) {
	query := selectLookByArrival
	switch {
	case l.Priority:
		query = selectLookByRank
	case l.Newest:
		query = selectLookNewest
	}
	names := map[int64]string{}
	queues := []int64{}
	for i, b := range boxes {
		names[b.ID] = b.Ref.String()
		if i > 0 && l.Queues {
			queues = append(queues, b.ID)
		}
	}
	list, _ := json.Marshal(queues) // numbers always marshal
	rows := q.Query(query, boxes[0].ID, string(list), l.Behind[0], l.Behind[1], listStretch)
	n := 0
	for rows.Next() {
		var mailbox, at int64
		m, d, err := scanInbox(rows, &mailbox, &at)
		if err != nil {
			return nil, false, err
		}
		n++
		takes := choice.takes(&m)
		if takes {
			if bytes -= len(m.Content); len(items) == size || bytes < 0 && len(items) > 0 {
				return items, true, rows.Close()
			}
			d.Mailbox = names[mailbox]
			items = append(items, mail.Item{Message: m.Message, Delivery: d, Queued: mailbox != boxes[0].ID})
		}
		l.Behind = Place{at, m.Revision}
	}
	return items, n == listStretch, rows.Err()
}

// listLook lists the inbox in the way that the options' Look asks for.
func (r *Reader) listLook(q store.Querier, a mail.Actor, l ListOptions, p *Page) error {
	boxes := []mail.Mailbox{{}, {ID: a.Mailbox, Ref: mail.ParseMailbox(l.Mailbox)}} // no own mailbox
	if l.Mailbox == "" {
		var err error
		if boxes, err = r.broker.Mailboxes.Reachable(q, a); err != nil {
			return err
		}
	}
	l.Look.Newest = l.Newest
	l.Look.start()
	items, more, err := l.Look.read(q, boxes, &l.Choice, l.Size, mail.MaxAnswer)
	if p.Items = items; more {
		p.Behind = l.Look.Behind
	}
	return err
}

// listGiven lists given messages of the actor's own mailbox, finished ones too.
func listGiven(q store.Querier, a mail.Actor, l ListOptions, p *Page) error {
	after := min(int(l.After), len(l.IDs))
	items, err := mail.FindItems(q, a, l.IDs[after:min(len(l.IDs), after+l.Size+1)])
	if err != nil {
		return err
	}
	p.Items = items[:min(len(items), l.Size)]
	if next := after + len(p.Items); next < len(l.IDs) {
		p.Next = int64(next)
	}
	return nil
}

// receiveLook is Receive with a Look. It returns after the last message, or after the wait if there
// is none.
func (r *Reader) receiveLook(ctx context.Context, c identity.Caller, o ReceiveOptions, send Send) error {
	var a mail.Actor
	var boxes []mail.Mailbox
	err := r.store.Write(ctx, func(tx *store.Tx) (err error) {
		if a, err = r.broker.Mailboxes.Owner(tx, c); err != nil {
			return err
		}
		boxes, err = r.broker.Mailboxes.Choose(tx, a, nil) // with ids, so that all of them can be listened to
		return err
	})
	if err != nil {
		return err
	}
	ids := make([]int64, len(boxes))
	for i := range boxes {
		ids[i] = boxes[i].ID
	}
	arrived, stop := r.broker.Waiters.Listen(ids...)
	defer stop()
	var waited <-chan time.Time
	if o.Wait > 0 {
		timer := r.clock.NewTimer(o.Wait)
		defer timer.Stop()
		waited = timer.Chan()
	}
	for {
		sent, err := r.sendLook(ctx, c, a, boxes, o, send)
		if err != nil || sent > 0 || waited == nil {
			return err
		}
		select {
		case <-arrived:
		case <-waited:
			return nil
		case <-r.broker.Stopping():
			return fault.Stopping()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// sendLook sends all deliveries, page by page, and returns the number of messages.
func (r *Reader) sendLook(
	ctx context.Context, c identity.Caller, a mail.Actor, boxes []mail.Mailbox, o ReceiveOptions, send Send,
) (int, error) {
	look, sent := o.Look, 0
	look.start()
	for more := true; more && (o.Limit == 0 || sent < o.Limit); {
		size := receivePage
		if o.Limit > 0 {
			size = min(size, o.Limit-sent)
		}
		var items []mail.Item
		err := r.store.ReadPage(ctx, func(s *store.Snapshot) error {
			now, err := r.broker.Mailboxes.Acting(s, c)
			if err != nil {
				return err // it has deregistered meanwhile
			}
			if now.Session.Closed() {
				return fault.SessionClosed(now.Session.Name)
			}
			items, more, err = look.read(s, boxes, &o.Choice, size, receiveBytes)
			return err
		})
		if err != nil {
			return sent, err
		}
		if len(items) == 0 {
			continue
		}
		sent += len(items)
		shown := shownOf(items, o.KeepNotices)
		if err := send(items, 0); err != nil {
			return sent, err
		}
		if err := r.noteDelivered(ctx, a, shown, "", 0); err != nil {
			return sent, err
		}
	}
	return sent, nil
}

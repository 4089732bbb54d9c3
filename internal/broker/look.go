package broker

import (
	"context"
	"encoding/json"
	"math"
	"time"

	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

// A Look is a way to read a mailbox without follow: in the order in which claims take messages, or
// together with the waiting messages of the queues of the caller's role and channels. It takes
// nothing. The zero Look asks for neither.
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
func (l *Look) read(q store.Querier, boxes []Mailbox, choice *Choice, size, bytes int) (items []Item, more bool, err error) {
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
			items = append(items, Item{Message: m.Message, Delivery: d, queued: mailbox != boxes[0].ID})
		}
		l.Behind = Place{at, m.Revision}
	}
	return items, n == listStretch, rows.Err()
}

// listLook lists the inbox as the listing's Look asks for.
func (b *Broker) listLook(q store.Querier, a Actor, l Listing, p *Page) error {
	boxes := []Mailbox{{}, {a.Mailbox, ParseMailbox(l.Mailbox)}} // no own mailbox
	if l.Mailbox == "" {
		var err error
		if boxes, err = b.Reachable(q, a); err != nil {
			return err
		}
	}
	l.Look.Newest = l.Newest
	l.Look.start()
	items, more, err := l.Look.read(q, boxes, &l.Choice, l.Size, MaxAnswer)
	if p.Items = items; more {
		p.Behind = l.Look.Behind
	}
	return err
}

// listGiven lists given messages of the actor's own mailbox, finished ones too.
func listGiven(q store.Querier, a Actor, l Listing, p *Page) error {
	bytes := 0
	for i := int(l.After); i < len(l.IDs); i++ {
		m, err := FindMessage(q, a.Session.ID, l.IDs[i])
		if err != nil {
			return err
		}
		var found []Delivery
		if a.Mailbox != 0 {
			if found, err = deliveriesOf(q, m.Revision, a.Mailbox); err != nil {
				return err
			}
		}
		if len(found) == 0 {
			return fault.Missing("message", l.IDs[i].Text, "message %s is not in the mailbox of agent %q", l.IDs[i].Text, a.Name)
		}
		if bytes += len(m.Content); len(p.Items) == l.Size || bytes > MaxAnswer && len(p.Items) > 0 {
			p.Next = int64(i)
			return nil
		}
		p.Items = append(p.Items, Item{Message: m, Delivery: found[0]})
	}
	return nil
}

// receiveLook is Receive with a Look. It returns after the last message, or after the wait if there
// is none.
func (b *Broker) receiveLook(ctx context.Context, c identity.Caller, r Reading, send func([]Item, int64) error) error {
	var a Actor
	var boxes []Mailbox
	err := b.store.Write(ctx, func(tx *store.Tx) (err error) {
		if a, err = b.Owner(tx, c); err != nil {
			return err
		}
		boxes, err = b.boxes(tx, a, nil) // with ids, so that all of them can be listened to
		return err
	})
	if err != nil {
		return err
	}
	ids := make([]int64, len(boxes))
	for i := range boxes {
		ids[i] = boxes[i].ID
	}
	arrived, stop := b.hub.listen(ids...)
	defer stop()
	var waited <-chan time.Time
	if r.Wait > 0 {
		timer := b.clock.NewTimer(r.Wait)
		defer timer.Stop()
		waited = timer.Chan()
	}
	for {
		sent, err := b.sendLook(ctx, c, a, boxes, r, send)
		if err != nil || sent > 0 || waited == nil {
			return err
		}
		select {
		case <-arrived:
		case <-waited:
			return nil
		case <-b.stopping:
			return ErrStopping()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// sendLook sends all that is there, page by page, and returns the number of messages.
func (b *Broker) sendLook(
	ctx context.Context, c identity.Caller, a Actor, boxes []Mailbox, r Reading, send func([]Item, int64) error,
) (int, error) {
	look, sent := r.Look, 0
	look.start()
	for more := true; more && (r.Limit == 0 || sent < r.Limit); {
		size := receivePage
		if r.Limit > 0 {
			size = min(size, r.Limit-sent)
		}
		var items []Item
		err := b.store.ReadPage(ctx, func(s *store.Snapshot) error {
			now, err := b.Acting(s, c)
			if err != nil {
				return err // it has deregistered meanwhile
			}
			if now.Session.Closed {
				return errSessionClosed(now.Session.Name)
			}
			items, more, err = look.read(s, boxes, &r.Choice, size, receiveBytes)
			return err
		})
		if err != nil {
			return sent, err
		}
		if len(items) == 0 {
			continue
		}
		sent += len(items)
		shown := shownOf(items, r.KeepNotices)
		if err := send(items, 0); err != nil {
			return sent, err
		}
		if err := b.handed(ctx, a, shown, "", 0); err != nil {
			return sent, err
		}
	}
	return sent, nil
}

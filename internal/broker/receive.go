package broker

import (
	"context"
	"slices"
	"time"

	"brokerd/internal/events"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

const (
	receivePage  = 200       // rows read at a time
	receiveBytes = 120 << 10 // bytes of messages sent at a time, unless one message has more: the memory that an unread stream costs
	itemBytes    = 256       // of a message beside its content, on the wire
	cursorKind   = "mailbox"
)

// A Choice chooses messages; what is empty does not restrict.
type Choice struct {
	Types       []string
	Channels    []string
	Senders     []string
	Correlation string
	Thread      string
	Task        string
	Priority    int // this or higher
	From, To    time.Time
}

// A row is a message as queries read it, with what a Choice looks at.
type row struct {
	Message
	kind        string
	priority    int
	channel     string
	correlation string
	task        string
}

func (c *Choice) takes(r *row) bool {
	return (len(c.Types) == 0 || slices.Contains(c.Types, r.kind)) &&
		(len(c.Channels) == 0 || slices.Contains(c.Channels, r.channel)) &&
		(len(c.Senders) == 0 || slices.Contains(c.Senders, r.Sender)) &&
		(c.Correlation == "" || c.Correlation == r.correlation) &&
		(c.Thread == "" || c.Thread == r.Thread || r.Thread == "" && c.Thread == r.ID.String()) &&
		(c.Task == "" || c.Task == r.task) &&
		r.priority >= c.Priority &&
		(c.From.IsZero() || !r.CreatedAt.Before(c.From)) &&
		(c.To.IsZero() || r.CreatedAt.Before(c.To))
}

// A Reading is how an agent reads its own mailbox.
type Reading struct {
	After  int64
	Cursor string
	Follow bool
	Wait   time.Duration
	Choice Choice
	Limit  int // 0 = none
	// AutoAck finishes what is shown before it is handed to send, and leaves out what nobody could claim.
	AutoAck bool
	// KeepNotices leaves notices unread.
	KeepNotices bool
	// Look, if it asks for something, is instead of After, Cursor, Follow and AutoAck.
	Look Look
}

// Receive reads the caller's own mailbox by arrival and hands each page to send, with the revision up to
// which everything has been looked at. It returns when there is no more, or with Follow when ctx ends
// or the broker stops (fault.Unavailable). fault.OutOfRange (RESTORED) if a restore has left out After. No transaction is open while send runs.
func (b *Broker) Receive(ctx context.Context, c identity.Caller, r Reading, send func([]Item, int64) error) error {
	if r.Look.Asked() {
		return b.receiveLook(ctx, c, r, send)
	}
	if err := b.store.CheckResume(r.After); err != nil {
		return err
	}
	var a Actor
	at := r.After
	err := b.store.Write(ctx, func(tx *store.Tx) (err error) {
		if a, err = b.Owner(tx, c); err != nil || r.Cursor == "" {
			return err
		}
		var known bool
		at, known, err = events.LoadCursor(tx, a.Session.ID, a.Name, cursorKind, r.Cursor)
		if err == nil && !known { // before any message counts as read
			err = events.SaveCursor(tx, a.Session.ID, a.Name, cursorKind, r.Cursor, at)
		}
		return err
	})
	if err != nil {
		return err
	}
	arrived, stop := b.hub.listen(a.Mailbox)
	defer stop()
	var waited <-chan time.Time
	if r.Wait > 0 && !r.Follow {
		timer := b.clock.NewTimer(r.Wait)
		defer timer.Stop()
		waited = timer.Chan()
	}
	sent, marked := 0, false
	var left int64 // AutoAck: the first arrival that was left out since reading last began there
	for {
		page, err := b.arrivals(ctx, c, a, at, r)
		if err != nil {
			return err
		}
		if most := r.Limit - sent; r.Limit > 0 && len(page.items) > most {
			page.cut(most)
		}
		if r.AutoAck {
			if err := b.ackShown(ctx, c, &page); err != nil {
				return err
			}
			if left == 0 {
				left = page.left
			}
		}
		upTo := page.upTo
		if left != 0 {
			upTo = left - 1
		}
		n, shown := len(page.items), shownOf(page.items, r.KeepNotices)
		if n > 0 || r.Follow && (!marked || page.skipped) {
			if err := send(page.take(), upTo); err != nil {
				return err
			}
			marked = true
		}
		at = page.upTo
		sent += n
		if err := b.handed(ctx, a, shown, r.Cursor, upTo); err != nil {
			return err
		}
		if !page.more && left != 0 {
			at, left = left-1, 0
		}
		switch {
		case r.Limit > 0 && sent >= r.Limit:
			return nil
		case page.more || page.promoted:
			continue
		case !r.Follow && (sent > 0 || waited == nil):
			return nil
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

// An arrivalsPage is what Receive reads at a time.
type arrivalsPage struct {
	items   []Item
	upTo    int64 // everything up to it has been looked at
	more    bool
	skipped bool // the choice left something out

	left     int64 // AutoAck: the first arrival that was left out although the choice takes it
	promoted bool  // AutoAck: others of an ordering key have become ready by what was shown
}

// cut keeps the first n items.
func (p *arrivalsPage) cut(n int) {
	p.items = p.items[:n]
	p.upTo, p.more = p.items[n-1].Delivery.Arrival, true
	if p.left > p.upTo {
		p.left = 0
	}
}

// shown are the messages of a page whose delivery to the agent handed has to record.
type shown struct {
	fresh   []int64 // the agent has not received them before
	notices []int64 // they are finished by that
}

func shownOf(items []Item, keepNotices bool) (s shown) {
	for i := range items {
		if items[i].queued {
			continue
		}
		if items[i].Delivery.DeliveredAt.IsZero() {
			s.fresh = append(s.fresh, items[i].Revision)
		}
		if items[i].Delivery.State == NoticeUnread && !keepNotices {
			s.notices = append(s.notices, items[i].Revision)
		}
	}
	return s
}

// take returns the items, and keeps none of them in memory while send waits for the client.
func (p *arrivalsPage) take() []Item {
	items := p.items
	p.items = nil
	return items
}

func (b *Broker) arrivals(ctx context.Context, c identity.Caller, a Actor, after int64, r Reading) (arrivalsPage, error) {
	var p arrivalsPage
	err := b.store.ReadPage(ctx, func(s *store.Snapshot) error {
		now, err := b.Acting(s, c)
		if err != nil {
			return err // it has deregistered meanwhile
		}
		if now.Session.Closed {
			return errSessionClosed(now.Session.Name)
		}
		var g gate
		if r.AutoAck {
			if g, err = readGate(s, a.Mailbox); err != nil {
				return err
			}
		}
		p = arrivalsPage{upTo: s.Revision()}
		rows := s.Query(selectArrivals, a.Mailbox, after, receivePage)
		bytes, n := 0, 0
		for rows.Next() {
			m, d, err := scanInbox(rows)
			if err != nil {
				return err
			}
			n++
			if !r.Choice.takes(&m) {
				p.upTo, p.skipped = d.Arrival, true
				continue
			}
			if r.AutoAck && !g.ready(&m, &d) {
				p.upTo = d.Arrival
				p.leave(d.Arrival)
				continue
			}
			if bytes += itemBytes + len(m.Content); bytes > receiveBytes && len(p.items) > 0 {
				p.more = true
				return rows.Close()
			}
			p.upTo = d.Arrival
			d.Mailbox = a.Name
			p.items = append(p.items, Item{Message: m.Message, Delivery: d, directive: IsDirective(m.kind)})
		}
		if n == receivePage {
			p.more = true
		} else {
			p.upTo = max(after, s.Revision())
		}
		return rows.Err()
	})
	return p, err
}

// handed records that messages were written to their recipient: it marks the fresh ones as
// delivered, finishes the notices, and saves the cursor.
func (b *Broker) handed(ctx context.Context, a Actor, shown shown, cursor string, upTo int64) error {
	fresh := shown.fresh
	if len(fresh)+len(shown.notices) == 0 && cursor == "" {
		return nil
	}
	return b.store.Write(ctx, func(tx *store.Tx) error {
		if _, err := b.dir.Session(tx, a.Session.Name); err != nil {
			return err // it was closed meanwhile
		}
		received := 0
		for _, message := range fresh {
			n, err := tx.ExecCount(updateDelivered, tx.Now(), message, a.Mailbox)
			if err != nil {
				return err
			}
			if n == 0 {
				continue
			}
			received++
			if err := b.count(tx, a.Session, isDelivered, message); err != nil {
				return err
			}
		}
		finishNotices(tx, a.Mailbox, shown.notices)
		if len(fresh) > 0 {
			tx.OnCommit(func() { b.worked(a, 0, received, 0) })
			entry := a.Event("message.delivered")
			entry.Severity = events.Debug
			entry.Summary = counted(len(fresh), "message") + " delivered"
			entry.Details = revisionsJSON("messages", fresh)
			if _, err := b.log.Append(tx, entry); err != nil {
				return err
			}
		}
		if cursor == "" {
			return nil
		}
		_, err := events.MoveCursor(tx, a.Session.ID, a.Name, cursorKind, cursor, upTo)
		return err
	})
}

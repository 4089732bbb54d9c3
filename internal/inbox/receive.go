package inbox

import (
	"context"
	"slices"
	"time"

	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/finding"
	"brokerd/internal/identity"
	"brokerd/internal/mail"
	"brokerd/internal/store"
)

const (
	receivePage = 200 // rows read at a time
	itemBytes   = 256 // of a message beside its content, on the wire
	// receiveBytes is how many bytes of messages a page has, unless one message has more. A stream whose client does
	// not read keeps one page in memory.
	receiveBytes = 120 << 10
	cursorKind   = "mailbox"
)

// A Choice chooses messages. An empty field does not restrict.
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

// A row is a message with the columns that a Choice checks.
type row struct {
	mail.Message
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

// ReceiveOptions say how an agent reads its own mailbox.
type ReceiveOptions struct {
	After  int64
	Cursor string
	Follow bool
	Wait   time.Duration
	Choice Choice
	Limit  int // 0 = none
	// AutoAck acknowledges deliveries before they are sent, and leaves out those that cannot be claimed.
	AutoAck bool
	// KeepNotices leaves notices unread.
	KeepNotices bool
	// Look, if it asks for something, replaces After, Cursor, Follow and AutoAck.
	Look Look
}

// Send sends a page to the client, with the revision up to which the mailbox has been read; 0 with a Look.
type Send func(page []mail.Item, upTo int64) error

// Receive reads the caller's own mailbox by arrival and sends it page by page. It returns after the last delivery. With
// Follow, it returns when ctx ends or the broker stops (fault.Unavailable). No transaction is open while send runs.
// Errors: fault.OutOfRange (RESTORED) if a restore has left out After.
func (r *Reader) Receive(ctx context.Context, c identity.Caller, o ReceiveOptions, send Send) error {
	if o.Look.Asked() {
		return r.receiveLook(ctx, c, o, send)
	}
	if err := r.store.CheckResume(o.After); err != nil {
		return err
	}
	var a mail.Actor
	at := o.After
	err := r.store.Write(ctx, func(tx *store.Tx) (err error) {
		if a, err = r.broker.Mailboxes.Owner(tx, c); err != nil || o.Cursor == "" {
			return err
		}
		var known bool
		at, known, err = events.LoadCursor(tx, a.Session.ID, a.Name, cursorKind, o.Cursor)
		if err == nil && !known { // before any message counts as read
			err = events.SaveCursor(tx, a.Session.ID, a.Name, cursorKind, o.Cursor, at)
		}
		return err
	})
	if err != nil {
		return err
	}
	arrived, stop := r.broker.Waiters.Listen(a.Mailbox)
	defer stop()
	var waited <-chan time.Time
	if o.Wait > 0 && !o.Follow {
		timer := r.clock.NewTimer(o.Wait)
		defer timer.Stop()
		waited = timer.Chan()
	}
	sent, marked := 0, false
	var left int64 // AutoAck: the first arrival that was left out since reading last began there
	for {
		page, err := r.arrivals(ctx, c, a, at, o)
		if err != nil {
			return err
		}
		if most := o.Limit - sent; o.Limit > 0 && len(page.items) > most {
			page.cut(most)
		}
		if o.AutoAck {
			if err := r.ackShown(ctx, c, &page); err != nil {
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
		n, shown := len(page.items), shownOf(page.items, o.KeepNotices)
		if n > 0 || o.Follow && (!marked || page.skipped) {
			if err := send(page.take(), upTo); err != nil {
				return err
			}
			marked = true
		}
		at = page.upTo
		sent += n
		if err := r.noteDelivered(ctx, a, shown, o.Cursor, upTo); err != nil {
			return err
		}
		if !page.more && left != 0 {
			at, left = left-1, 0
		}
		switch {
		case o.Limit > 0 && sent >= o.Limit:
			return nil
		case page.more || page.promoted:
			continue
		case !o.Follow && (sent > 0 || waited == nil):
			return nil
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

// An arrivalsPage is a page of deliveries that Receive reads at a time.
type arrivalsPage struct {
	items   []mail.Item
	upTo    int64 // the mailbox has been read up to this revision
	more    bool
	skipped bool // the choice left a delivery out

	left     int64 // AutoAck: the first arrival that was left out although the choice takes it
	promoted bool  // AutoAck: the acknowledgements have made others of an ordering key ready
}

// cut keeps the first n items.
func (p *arrivalsPage) cut(n int) {
	p.items = p.items[:n]
	p.upTo, p.more = p.items[n-1].Delivery.Arrival, true
	if p.left > p.upTo {
		p.left = 0
	}
}

// shown are the messages of a page whose delivery to the agent noteDelivered has to record.
type shown struct {
	fresh   []int64 // the agent has not received them before
	notices []int64 // they are finished by that
}

func shownOf(items []mail.Item, keepNotices bool) (s shown) {
	for i := range items {
		if items[i].Queued {
			continue
		}
		if items[i].Delivery.DeliveredAt.IsZero() {
			s.fresh = append(s.fresh, items[i].Revision)
		}
		if items[i].Delivery.State == mail.NoticeUnread && !keepNotices {
			s.notices = append(s.notices, items[i].Revision)
		}
	}
	return s
}

// take returns the items, and keeps none of them in memory while send waits for the client.
func (p *arrivalsPage) take() []mail.Item {
	items := p.items
	p.items = nil
	return items
}

// arrivals reads a page of deliveries.
func (r *Reader) arrivals(
	ctx context.Context, c identity.Caller, a mail.Actor, after int64, o ReceiveOptions,
) (arrivalsPage, error) {
	var p arrivalsPage
	err := r.store.ReadPage(ctx, func(s *store.Snapshot) error {
		now, err := r.broker.Mailboxes.Acting(s, c)
		if err != nil {
			return err // it has deregistered meanwhile
		}
		if now.Session.Closed() {
			return fault.SessionClosed(now.Session.Name)
		}
		halted := false
		if o.AutoAck {
			if halted, _, err = r.gates.HaltAndBreaker(s, a.Mailbox); err != nil {
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
			if !o.Choice.takes(&m) {
				p.upTo, p.skipped = d.Arrival, true
				continue
			}
			if o.AutoAck && !ready(&m, &d, halted) {
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
			item := mail.Item{Message: m.Message, Delivery: d, Directive: mail.IsDirective(m.kind)}
			p.items = append(p.items, item)
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

// noteDelivered records that messages were sent to their recipient: it marks the fresh ones as delivered, finishes the
// notices, and saves the cursor.
func (r *Reader) noteDelivered(ctx context.Context, a mail.Actor, shown shown, cursor string, upTo int64) error {
	fresh := shown.fresh
	if len(fresh)+len(shown.notices) == 0 && cursor == "" {
		return nil
	}
	return r.store.Write(ctx, func(tx *store.Tx) error {
		if _, err := r.dir.Session(tx, a.Session.Name); err != nil {
			return err // it was closed meanwhile
		}
		if err := r.broker.NoteDelivered(tx, a, fresh, shown.notices); err != nil {
			return err
		}
		if len(fresh) > 0 {
			entry := a.Event("message.delivered")
			entry.Severity = events.Debug
			entry.Summary = finding.Count(len(fresh), "message") + " delivered"
			entry.Details = events.RevisionsJSON("messages", fresh)
			if _, err := r.log.Append(tx, entry); err != nil {
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

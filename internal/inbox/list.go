package inbox

import (
	"context"
	"errors"
	"math"
	"time"

	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/finding"
	"brokerd/internal/identity"
	"brokerd/internal/mail"
	"brokerd/internal/msgid"
	"brokerd/internal/store"
)

const (
	listStretch   = 5000 // messages, of whatever session, that a list reads in one snapshot
	listStretches = 200  // snapshots of one list call
	mostOffers    = 1000 // open offers that a list reads
)

// Box says which messages to list.
type Box int

// The boxes. The numbers are those of the API.
const (
	Inbox Box = iota + 1
	Sent
	All
)

// ListOptions say which messages to list, and from which position.
type ListOptions struct {
	Box      Box
	Choice   Choice
	Size     int
	Newest   bool        // first
	MarkRead bool        // Inbox
	After    int64       // the position of the page before; 0 = from the start
	Look     Look        // Inbox
	IDs      []msgid.Ref // Inbox: only these
	Mailbox  string      // Inbox: of which mailbox; empty = the caller's own

	// Also reads what else the answer has, in the snapshot of the page; nil = nothing.
	Also func(q store.Querier, session int64) error
}

// A Page is one page of a list.
type Page struct {
	Items    []mail.Item
	Next     int64 // position for the next page; 0 = this is the last
	Behind   Place // with ListOptions.Look: position for the next page; zero = this is the last
	Revision int64
}

// Get returns a message with every delivery. Errors: fault.NotFound.
func (r *Reader) Get(
	ctx context.Context, c identity.Caller, ref msgid.Ref,
) (mail.Message, []mail.Delivery, error) {
	var m mail.Message
	var deliveries []mail.Delivery
	err := r.store.Read(ctx, func(s *store.Snapshot) error {
		a, err := r.broker.Mailboxes.Acting(s, c)
		if err != nil {
			return err
		}
		if m, err = mail.FindMessage(s, a.Session.ID, ref); err != nil {
			return err
		}
		deliveries, err = mail.DeliveriesOf(s, m.Revision, 0)
		return err
	})
	return m, deliveries, err
}

// List lists messages. A page may be empty although others follow. The inbox of a caller without an
// agent is OperatorMailbox. Errors: fault.Denied for a mailbox that is not the caller's.
//
// The messages of a session have no index, since each send would have to update it. Instead one snapshot reads a
// bounded number of messages, so that a list in a small session of a large database does not keep a reader from other
// calls.
func (r *Reader) List(ctx context.Context, c identity.Caller, l ListOptions) (p Page, err error) {
	if !l.Newest {
		if err := r.store.CheckResume(l.After); err != nil {
			return p, err
		}
	}
	for range listStretches {
		if p, err = r.listOnce(ctx, c, l); err != nil || len(p.Items) > 0 || p.Next == 0 {
			break
		}
		l.After = p.Next
	}
	return p, err
}

func (r *Reader) listOnce(ctx context.Context, c identity.Caller, l ListOptions) (Page, error) {
	var p Page
	var a mail.Actor
	err := r.store.Read(ctx, func(s *store.Snapshot) (err error) {
		if a, err = r.broker.Mailboxes.Acting(s, c); err != nil {
			return err
		}
		if l.Box == 0 {
			l.Box = Inbox
			if a.System() && !l.Look.Asked() && len(l.IDs) == 0 && l.Mailbox == "" {
				l.Box = All
			}
		}
		p = Page{Revision: s.Revision()}
		if l.Also != nil {
			if err := l.Also(s, a.Session.ID); err != nil {
				return err
			}
		}
		if l.Box != Inbox {
			return listMessages(s, a, l, &p)
		}
		own := mail.AgentRef(a.Name)
		switch {
		case l.Mailbox != "" && !a.System():
			return fault.New(fault.Denied, "NOT_FOR_AGENTS", "only operators and observers may list a mailbox by its name")
		case l.Mailbox != "":
			own = mail.ParseMailbox(l.Mailbox)
		case l.MarkRead && c.Access == identity.Observer:
			return fault.New(fault.Denied, "NOT_FOR_OBSERVERS", "an observer only looks: leave mark_read out")
		}
		if a.Mailbox, err = r.broker.Mailboxes.Find(s, a.Session.ID, own); err != nil {
			return err
		}
		switch {
		case len(l.IDs) > 0:
			return listGiven(s, a, l, &p)
		case l.Look.Asked():
			err = r.listLook(s, a, l, &p)
		default:
			err = listInbox(s, a, l, &p)
		}
		if err != nil {
			return err
		}
		return addOffers(s, a.Mailbox, p.Items)
	})
	if err != nil || !l.MarkRead || l.Box != Inbox {
		return p, err
	}
	return p, r.markRead(ctx, a, &p)
}

// listInbox lists the unfinished deliveries in the actor's mailbox, by arrival.
func listInbox(q store.Querier, a mail.Actor, l ListOptions, p *Page) error {
	query, after := selectArrivals, l.After
	if l.Newest {
		query = selectArrivalsDown
		if after == 0 {
			after = math.MaxInt64
		}
	}
	rows := q.Query(query, a.Mailbox, after, listStretch)
	n, bytes := 0, 0
	for rows.Next() {
		m, d, err := scanInbox(rows)
		if err != nil {
			return err
		}
		if n++; !l.Choice.takes(&m) {
			after = d.Arrival
			continue
		}
		if bytes += len(m.Content); len(p.Items) == l.Size || bytes > mail.MaxAnswer && len(p.Items) > 0 {
			p.Next = after
			return rows.Close()
		}
		after = d.Arrival
		d.Mailbox = a.Name
		p.Items = append(p.Items, mail.Item{Message: m.Message, Delivery: d})
	}
	if n == listStretch {
		p.Next = after
	}
	return rows.Err()
}

// listMessages lists messages of the session by revision.
func listMessages(q store.Querier, a mail.Actor, l ListOptions, p *Page) error {
	if l.Box == Sent {
		l.Choice.Senders = []string{a.Name}
	}
	from, to := l.After, int64(math.MaxInt64)
	if l.Newest {
		from, to = 0, l.After
		if to == 0 {
			to = math.MaxInt64
		}
	}
	end, err := stretchEnd(q, l, from, to)
	if err != nil {
		return err
	}
	if end != 0 && l.Newest {
		from = end
	} else if end != 0 {
		to = end
	}
	rows := queryMessages(q, a.Session.ID, l, from, to)
	n, bytes, last := 0, 0, l.After
	for rows.Next() {
		m, err := scanMessage(rows)
		if err != nil {
			return err
		}
		if n++; !l.Choice.takes(&m) {
			last = m.Revision
			continue
		}
		if bytes += len(m.Content); len(p.Items) == l.Size || bytes > mail.MaxAnswer && len(p.Items) > 0 {
			p.Next = last
			return rows.Close()
		}
		last = m.Revision
		p.Items = append(p.Items, mail.Item{Message: m.Message})
	}
	switch {
	case n == listStretch:
		p.Next = last
	case end != 0 && l.Newest:
		p.Next = end + 1
	case end != 0:
		p.Next = end - 1
	}
	return rows.Err()
}

// stretchEnd returns the revision of the first message that a list must leave to the next snapshot,
// 0 if there is none. A list by an index needs no end.
func stretchEnd(q store.Querier, l ListOptions, from, to int64) (end int64, err error) {
	if c := l.Choice; c.Thread != "" || c.Correlation != "" || c.Task != "" {
		return 0, nil
	}
	query := selectStretchEnd
	if l.Newest {
		query = selectStretchEndDown
	}
	err = q.QueryRow(query, from, to, listStretch).Scan(&end)
	if errors.Is(err, store.ErrNoRows) {
		return 0, nil
	}
	return end, err
}

// queryMessages asks for messages between two revisions, by the most selective part of the choice.
func queryMessages(q store.Querier, session int64, l ListOptions, from, to int64) *store.Rows {
	order := ascending
	if l.Newest {
		order = descending
	}
	c := l.Choice
	switch {
	case c.Thread != "":
		first := int64(-1)
		if ref, ok := msgid.ParseRef(c.Thread); ok && ref.ID != (msgid.ID{}) {
			first = ref.Revision // the message that began the thread does not name it
		}
		return q.Query(selectMessages+byThread+order, session, from, to, c.Thread, first, listStretch)
	case c.Correlation != "":
		return q.Query(selectMessages+byCorrelation+order, session, from, to, c.Correlation, listStretch)
	case c.Task != "":
		return q.Query(selectMessages+byTask+order, session, from, to, c.Task, listStretch)
	}
	return q.Query(selectMessages+order, session, from, to, listStretch)
}

// markRead marks the messages of a page as read.
func (r *Reader) markRead(ctx context.Context, a mail.Actor, p *Page) error {
	var unread, fresh, notices []int64
	for i := range p.Items {
		d := &p.Items[i].Delivery
		if p.Items[i].Queued {
			continue
		}
		if d.ReadAt.IsZero() {
			unread = append(unread, p.Items[i].Revision)
		}
		if d.State == mail.NoticeUnread {
			notices = append(notices, p.Items[i].Revision)
		}
		if d.DeliveredAt.IsZero() {
			fresh = append(fresh, p.Items[i].Revision)
		}
	}
	if len(unread) == 0 {
		return nil
	}
	var at time.Time
	err := r.store.Write(ctx, func(tx *store.Tx) error {
		at = tx.Now()
		if _, err := r.dir.Session(tx, a.Session.Name); err != nil {
			return err
		}
		if err := r.broker.NoteRead(tx, a, unread, fresh, notices); err != nil {
			return err
		}
		entry := a.Event("message.read")
		entry.Severity = events.Debug
		entry.Summary = finding.Count(len(unread), "message") + " read"
		entry.Details = events.RevisionsJSON("messages", unread)
		_, err := r.log.Append(tx, entry)
		return err
	})
	if err != nil {
		return err
	}
	for i := range p.Items {
		if d := &p.Items[i].Delivery; !p.Items[i].Queued && d.ReadAt.IsZero() {
			d.ReadAt = at
		}
	}
	return nil
}

// scanMessage reads a row of the selectMessages queries.
func scanMessage(rows *store.Rows) (row, error) {
	var r row
	var id []byte
	err := rows.Scan(&r.Revision, &id, &r.Sender, &r.SenderRole, &r.CreatedAt, &r.ExpiresAt, &r.Thread, &r.Content,
		&r.kind, &r.priority, &r.channel, &r.correlation, &r.task)
	copy(r.ID[:], id)
	return r, err
}

// scanInbox reads a row of the selectArrivals queries, and into more the columns behind theirs.
func scanInbox(rows *store.Rows, more ...any) (row, mail.Delivery, error) {
	var r row
	var d mail.Delivery
	var id []byte
	var state int
	err := rows.Scan(append([]any{&r.Revision, &id, &r.Sender, &r.SenderRole, &r.CreatedAt, &r.ExpiresAt, &r.Thread,
		&r.Content, &r.kind, &r.priority, &r.channel, &r.correlation, &r.task,
		&state, &d.Arrival, &d.Claims, &d.Attempts, &d.MaxAttempts, &d.Holder, &d.Consumer, &d.ClaimedAt, &d.DeliveredAt,
		&d.ReadAt, &d.DueAt}, more...)...)
	copy(r.ID[:], id)
	d.State = mail.State(state)
	return r, d, err
}

// addOffers adds to a page of a mailbox which of its messages are offered now.
func addOffers(q store.Querier, mailbox int64, items []mail.Item) error {
	open := map[int64]mail.Offer{}
	rows := q.Query(selectOpenOffers, mailbox, mostOffers)
	defer rows.Close()
	for rows.Next() {
		var message int64
		var o mail.Offer
		var way int
		if err := rows.Scan(&message, &o.Number, &way, &o.Harness, &o.Mark, &o.OfferedAt); err != nil {
			return err
		}
		o.Way = mail.Way(way)
		open[message] = o
	}
	for i := range items {
		if o, ok := open[items[i].Revision]; ok && !items[i].Queued {
			items[i].Delivery.Offers = []mail.Offer{o}
		}
	}
	return rows.Err()
}

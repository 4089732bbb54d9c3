package broker

import (
	"context"
	"errors"
	"math"
	"time"

	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

const (
	listStretch   = 5000   // messages, of whatever session, that a list reads in one snapshot
	listStretches = 200    // snapshots of one list call
	maxDeliveries = 10_000 // named in one answer
)

// Box says which messages to list.
type Box int

// The boxes. The numbers are those of the API.
const (
	Inbox Box = iota + 1
	Sent
	All
)

// A Listing is what to list, and from where on.
type Listing struct {
	Box      Box
	Choice   Choice
	Size     int
	Newest   bool   // first
	MarkRead bool   // Inbox
	After    int64  // the position of the page before; 0 = from the start
	Look     Look   // Inbox
	IDs      []Ref  // Inbox: only these
	Mailbox  string // Inbox: of which mailbox; empty = the caller's own
}

// A Page is one page of a list.
type Page struct {
	Items    []Item
	Next     int64 // position for the next page; 0 = this is the last
	Behind   Place // with Listing.Look: position for the next page; zero = this is the last
	Revision int64
	Thread   *Thread // with Choice.Thread
}

// Get returns a message with every delivery. Errors: fault.NotFound.
func (b *Broker) Get(ctx context.Context, c identity.Caller, ref Ref) (Message, []Delivery, error) {
	var m Message
	var deliveries []Delivery
	err := b.store.Read(ctx, func(s *store.Snapshot) error {
		a, err := b.Acting(s, c)
		if err != nil {
			return err
		}
		if m, err = FindMessage(s, a.Session.ID, ref); err != nil {
			return err
		}
		deliveries, err = deliveriesOf(s, m.Revision, 0)
		return err
	})
	return m, deliveries, err
}

// List lists messages. A page may be empty although others follow. The inbox of a caller without an
// agent is OperatorMailbox. Errors: fault.Denied for a mailbox that is not the caller's.
//
// The messages of a session have no index, which every send would have to keep up to date. Instead
// one snapshot passes a bounded number of messages, so that a list in a small session of a large
// database does not keep a reader from other calls.
func (b *Broker) List(ctx context.Context, c identity.Caller, l Listing) (p Page, err error) {
	if !l.Newest {
		if err := b.store.CheckResume(l.After); err != nil {
			return p, err
		}
	}
	for range listStretches {
		if p, err = b.listOnce(ctx, c, l); err != nil || len(p.Items) > 0 || p.Next == 0 {
			break
		}
		l.After = p.Next
	}
	return p, err
}

func (b *Broker) listOnce(ctx context.Context, c identity.Caller, l Listing) (Page, error) {
	var p Page
	var a Actor
	err := b.store.Read(ctx, func(s *store.Snapshot) (err error) {
		if a, err = b.Acting(s, c); err != nil {
			return err
		}
		if l.Box == 0 {
			l.Box = Inbox
			if a.System() && !l.Look.Asked() && len(l.IDs) == 0 && l.Mailbox == "" {
				l.Box = All
			}
		}
		p = Page{Revision: s.Revision()}
		if l.Choice.Thread != "" {
			if p.Thread, err = b.thread(s, a.Session.ID, l.Choice.Thread); err != nil {
				return err
			}
		}
		if l.Box != Inbox {
			return listMessages(s, a, l, &p)
		}
		own := MailboxRef{AgentMailbox, a.Name}
		switch {
		case l.Mailbox != "" && !a.System():
			return fault.New(fault.Denied, "NOT_FOR_AGENTS", "only operators and observers may list a mailbox by its name")
		case l.Mailbox != "":
			own = ParseMailbox(l.Mailbox)
		case l.MarkRead && c.Access == identity.Observer:
			return fault.New(fault.Denied, "NOT_FOR_OBSERVERS", "an observer only looks: leave mark_read out")
		}
		if a.Mailbox, err = b.FindMailbox(s, a.Session.ID, own); err != nil {
			return err
		}
		switch {
		case len(l.IDs) > 0:
			return listGiven(s, a, l, &p)
		case l.Look.Asked():
			err = b.listLook(s, a, l, &p)
		default:
			err = listInbox(s, a, l, &p)
		}
		if err != nil {
			return err
		}
		return openOffers(s, a.Mailbox, p.Items)
	})
	if err != nil || !l.MarkRead || l.Box != Inbox {
		return p, err
	}
	return p, b.markRead(ctx, a, &p)
}

// listInbox lists what is unfinished in the actor's mailbox, by arrival.
func listInbox(q store.Querier, a Actor, l Listing, p *Page) error {
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
		if bytes += len(m.Content); len(p.Items) == l.Size || bytes > MaxAnswer && len(p.Items) > 0 {
			p.Next = after
			return rows.Close()
		}
		after = d.Arrival
		d.Mailbox = a.Name
		p.Items = append(p.Items, Item{Message: m.Message, Delivery: d})
	}
	if n == listStretch {
		p.Next = after
	}
	return rows.Err()
}

// listMessages lists messages of the session by revision.
func listMessages(q store.Querier, a Actor, l Listing, p *Page) error {
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
		if bytes += len(m.Content); len(p.Items) == l.Size || bytes > MaxAnswer && len(p.Items) > 0 {
			p.Next = last
			return rows.Close()
		}
		last = m.Revision
		p.Items = append(p.Items, Item{Message: m.Message})
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
func stretchEnd(q store.Querier, l Listing, from, to int64) (end int64, err error) {
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
func queryMessages(q store.Querier, session int64, l Listing, from, to int64) *store.Rows {
	order := ascending
	if l.Newest {
		order = descending
	}
	c := l.Choice
	switch {
	case c.Thread != "":
		first := int64(-1)
		if ref, ok := ParseRef(c.Thread); ok && ref.ID != (ID{}) {
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

// markRead marks what a page shows as read.
func (b *Broker) markRead(ctx context.Context, a Actor, p *Page) error {
	var unread, fresh, notices []int64
	for i := range p.Items {
		d := &p.Items[i].Delivery
		if p.Items[i].queued {
			continue
		}
		if d.ReadAt.IsZero() {
			unread = append(unread, p.Items[i].Revision)
		}
		if d.State == NoticeUnread {
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
	err := b.store.Write(ctx, func(tx *store.Tx) error {
		at = tx.Now()
		if _, err := b.dir.Session(tx, a.Session.Name); err != nil {
			return err
		}
		for _, message := range unread {
			tx.Exec(updateRead, tx.Now(), tx.Now(), message, a.Mailbox)
		}
		finishNotices(tx, a.Mailbox, notices)
		entry := a.Event("message.read")
		entry.Severity = events.Debug
		entry.Summary = counted(len(unread), "message") + " read"
		entry.Details = revisionsJSON("messages", unread)
		if _, err := b.log.Append(tx, entry); err != nil {
			return err
		}
		tx.OnCommit(func() { b.worked(a, 0, len(fresh), 0) })
		return b.count(tx, a.Session, isDelivered, fresh...)
	})
	if err != nil {
		return err
	}
	for i := range p.Items {
		if d := &p.Items[i].Delivery; !p.Items[i].queued && d.ReadAt.IsZero() {
			d.ReadAt = at
		}
	}
	return nil
}

// FindMessage returns a message of the session; fault.NotFound if there is none.
func FindMessage(q store.Querier, session int64, ref Ref) (Message, error) {
	m := Message{Revision: ref.Revision}
	var id []byte
	var in int64
	err := q.QueryRow(selectMessage, ref.Revision).Scan(&in, &id, &m.Sender, &m.SenderRole, &m.CreatedAt, &m.ExpiresAt, &m.Thread, &m.Content)
	copy(m.ID[:], id)
	if errors.Is(err, store.ErrNoRows) || err == nil && (in != session || !ref.names(m.ID)) {
		return Message{}, fault.Missing("message", ref.Text, "there is no message %s in this session", ref.Text)
	}
	return m, err
}

// deliveriesOf returns the deliveries of a message with their history and offers: all, or only that in one mailbox.
func deliveriesOf(q store.Querier, message, only int64) ([]Delivery, error) {
	first, last := only, only
	if only == 0 {
		last = math.MaxInt64
	}
	rows := q.Query(selectDeliveries, message, first, last, maxDeliveries)
	var found []Delivery
	at := map[int64]int{}
	for rows.Next() {
		var d Delivery
		var mailbox int64
		var ref MailboxRef
		var kind, state int
		if err := rows.Scan(&mailbox, &kind, &ref.Name, &state, &d.Arrival, &d.Claims, &d.Attempts, &d.MaxAttempts, &d.Holder, &d.Consumer,
			&d.ClaimedAt, &d.DeliveredAt, &d.ReadAt, &d.FinishedAt, &d.DueAt); err != nil {
			return nil, err
		}
		ref.Kind = MailboxKind(kind)
		d.Mailbox, d.State = ref.String(), State(state)
		at[mailbox] = len(found)
		found = append(found, d)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	rows = q.Query(selectAttempts, message, first, last)
	for rows.Next() {
		var mailbox int64
		var t Attempt
		if err := rows.Scan(&mailbox, &t.Number, &t.Agent, &t.Consumer, &t.ClaimedAt, &t.EndedAt, &t.Error); err != nil {
			return nil, err
		}
		if i, ok := at[mailbox]; ok {
			found[i].History = append(found[i].History, t)
		}
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	return found, offersOf(q, message, first, last, at, found)
}

// DeliveryOf returns the delivery of a message in one mailbox, with its history and offers.
func DeliveryOf(q store.Querier, message, mailbox int64) (Delivery, error) {
	found, err := deliveriesOf(q, message, mailbox)
	if err != nil || len(found) == 0 {
		return Delivery{}, err
	}
	return found[0], nil
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
func scanInbox(rows *store.Rows, more ...any) (row, Delivery, error) {
	var r row
	var d Delivery
	var id []byte
	var state int
	err := rows.Scan(append([]any{&r.Revision, &id, &r.Sender, &r.SenderRole, &r.CreatedAt, &r.ExpiresAt, &r.Thread, &r.Content,
		&r.kind, &r.priority, &r.channel, &r.correlation, &r.task,
		&state, &d.Arrival, &d.Claims, &d.Attempts, &d.MaxAttempts, &d.Holder, &d.Consumer, &d.ClaimedAt, &d.DeliveredAt, &d.ReadAt, &d.DueAt},
		more...)...)
	copy(r.ID[:], id)
	d.State = State(state)
	return r, d, err
}

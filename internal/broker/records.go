package broker

import (
	"fmt"
	"time"

	"brokerd/internal/fault"
	"brokerd/internal/store"
)

// A record is a message with all its deliveries. Times are Unix nanoseconds; 0 = none.
type record struct {
	revision   int64
	session    int64
	createdAt  int64
	expiresAt  int64
	id         ID
	sender     string
	senderRole string
	thread     string // empty = its own id
	content    []byte
	deliveries []recordedDelivery
	follows    bool // the message that was read before it, with no others between them
}

// A recordedDelivery is a delivery as the archive takes it.
type recordedDelivery struct {
	mailbox, holder, consumer                         string
	state, arrival, claims, attempts, maxAttempts     int64
	claimedAt, deliveredAt, readAt, finishedAt, dueAt int64
	history                                           []Attempt
	offers                                            []Offer
}

// standing returns what Remove is to find again.
func (r *record) standing() Standing {
	s := Standing{
		First: r.revision, Last: r.revision, Messages: 1, Session: r.session, CreatedAt: time.Unix(0, r.createdAt).UTC(),
		Deliveries: len(r.deliveries), Follows: r.follows,
	}
	for i := range r.deliveries {
		d := &r.deliveries[i]
		s.Sums[0] += d.state
		s.Sums[1] += d.claims
		s.Sums[2] += d.finishedAt&0xffffffff + d.readAt&0xffffffff
	}
	return s
}

// records calls use for messages as they stand in q, in the order given, which must be that of their revisions; use returns false
// for no more. What it is given is good until it returns. fault.Conflict if one of them is not there.
func records(q store.Querier, messages []Standing, use func(*record) (bool, error)) error {
	r := reading{names: boxNames{q: q, known: map[int64]boxNamed{}}}
	for i := 0; i < len(messages); {
		all := messages[i]
		for i++; i < len(messages) && messages[i].Follows; i++ {
			all.Join(&messages[i])
		}
		r.messages = q.Query(selectRecords, all.First, all.Last)
		r.deliveries = q.Query(selectRecordDeliveries, all.First, all.Last)
		r.attempts = q.Query(selectRecordAttempts, all.First, all.Last)
		r.offers = q.Query(selectRecordOffers, all.First, all.Last)
		more, err := r.all(all.Messages, use)
		r.close()
		if err != nil || !more {
			return err
		}
	}
	return nil
}

// A reading goes through four tables at the same pace.
type reading struct {
	messages, deliveries, attempts, offers *store.Rows
	names                                  boxNames

	now      record
	id       []byte
	at       key // of the delivery that comes next; zero after the last
	next     recordedDelivery
	holder   int64 // of it
	failedAt key   // of the attempt that comes next; zero after the last
	failed   Attempt
	offerAt  key // of the offer that comes next; zero after the last
	offer    Offer
}

func (r *reading) close() {
	_ = r.messages.Close() // an error was told by whoever read to the end
	_ = r.deliveries.Close()
	_ = r.attempts.Close()
	_ = r.offers.Close()
}

// all reads so many messages.
func (r *reading) all(n int, use func(*record) (more bool, err error)) (more bool, err error) {
	if err := r.nextDelivery(); err != nil {
		return false, err
	}
	if err := r.nextAttempt(); err != nil {
		return false, err
	}
	if err := r.nextOffer(); err != nil {
		return false, err
	}
	for i := range n {
		if err := r.message(); err != nil {
			return false, fmt.Errorf("read messages: %w", err)
		}
		r.now.follows = i > 0
		if more, err := use(&r.now); err != nil || !more {
			return false, err
		}
	}
	return true, nil
}

// message reads the next message with its deliveries.
func (r *reading) message() error {
	if !r.messages.Next() {
		if err := r.messages.Err(); err != nil {
			return err
		}
		return fault.New(fault.Conflict, "CHANGED", "a message was removed meanwhile")
	}
	m := &r.now
	err := r.messages.Scan(&m.revision, &m.session, &r.id, &m.sender, &m.senderRole, &m.createdAt, &m.expiresAt, &m.thread, &m.content)
	if err != nil {
		return err
	}
	copy(m.id[:], r.id)
	m.deliveries = m.deliveries[:0]
	for r.at.message == m.revision {
		if err := r.delivery(); err != nil {
			return err
		}
	}
	return nil
}

// delivery adds the delivery that was read to the message, and reads the next one.
func (r *reading) delivery() error {
	holder, err := r.names.of(r.holder)
	if err != nil {
		return err
	}
	mailbox, err := r.names.of(r.at.mailbox)
	if err != nil {
		return err
	}
	d := &r.next
	d.holder, d.mailbox, d.history, d.offers = holder.name, mailbox.full, nil, nil
	for r.failedAt == r.at {
		d.history = append(d.history, r.failed)
		if err := r.nextAttempt(); err != nil {
			return err
		}
	}
	for r.offerAt == r.at {
		d.offers = append(d.offers, r.offer)
		if err := r.nextOffer(); err != nil {
			return err
		}
	}
	r.now.deliveries = append(r.now.deliveries, *d)
	return r.nextDelivery()
}

func (r *reading) nextDelivery() error {
	r.at = key{}
	if !r.deliveries.Next() {
		return r.deliveries.Err()
	}
	d := &r.next
	return r.deliveries.Scan(&r.at.message, &r.at.mailbox, &d.state, &d.arrival, &d.claims, &d.attempts, &d.maxAttempts,
		&r.holder, &d.consumer, &d.claimedAt, &d.deliveredAt, &d.readAt, &d.finishedAt, &d.dueAt)
}

func (r *reading) nextAttempt() error {
	r.failedAt = key{}
	if !r.attempts.Next() {
		return r.attempts.Err()
	}
	t := &r.failed
	var holder int64
	err := r.attempts.Scan(&r.failedAt.message, &r.failedAt.mailbox, &t.Number, &holder, &t.Consumer, &t.ClaimedAt, &t.EndedAt, &t.Error)
	if err != nil {
		return err
	}
	agent, err := r.names.of(holder)
	t.Agent = agent.name
	return err
}

func (r *reading) nextOffer() error {
	r.offerAt = key{}
	if !r.offers.Next() {
		return r.offers.Err()
	}
	o := &r.offer
	var way int
	err := r.offers.Scan(&r.offerAt.message, &r.offerAt.mailbox, &o.Number, &way, &o.Harness, &o.Mark,
		&o.OfferedAt, &o.AcceptedAt, &o.ReturnedAt, &o.Why)
	o.Way = Way(way)
	return err
}

// boxNames looks up the names of mailboxes, each once.
type boxNames struct {
	q     store.Querier
	known map[int64]boxNamed
}

type boxNamed struct {
	name string
	full string // as a person writes it
}

// of returns the names of a mailbox; empty ones for 0.
func (b *boxNames) of(mailbox int64) (boxNamed, error) {
	if named, ok := b.known[mailbox]; ok || mailbox == 0 {
		return named, nil
	}
	var ref MailboxRef
	var kind int
	if err := b.q.QueryRow(selectMailboxName, mailbox).Scan(&kind, &ref.Name); err != nil {
		return boxNamed{}, fmt.Errorf("name mailbox %d: %w", mailbox, err)
	}
	ref.Kind = MailboxKind(kind)
	named := boxNamed{ref.Name, ref.String()}
	b.known[mailbox] = named
	return named, nil
}

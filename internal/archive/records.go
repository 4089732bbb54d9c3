package archive

import (
	"fmt"
	"time"

	"brokerd/internal/fault"
	"brokerd/internal/mail"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Records writes messages as lines of JSON. messages are in the order of their revisions, as Standings has found them
// in the same snapshot. With each line, to receives the standing that Remove needs, which has no channel and no times
// of the end. A line is valid until to returns, and to returns false to end the list. Errors: fault.Conflict if one
// of the messages does not exist.
func (m *Messages) Records(q store.Querier, messages []work.Standing, to func(s *work.Standing, line []byte) bool) error {
	var line []byte
	return read(q, messages, func(r *Record) (more bool, err error) {
		if line, err = m.append(line[:0], r); err != nil {
			return false, fmt.Errorf("message %d: %w", r.Revision, err)
		}
		s := standing(r)
		return to(&s, line), nil
	})
}

// standing returns the standing of a record, which Remove compares with the one that it finds.
func standing(r *Record) work.Standing {
	s := work.Standing{
		First: r.Revision, Last: r.Revision, Messages: 1, Session: r.Session, CreatedAt: time.Unix(0, r.CreatedAt).UTC(),
		Deliveries: len(r.Deliveries), Follows: r.Follows,
	}
	for i := range r.Deliveries {
		d := &r.Deliveries[i]
		s.Sums[0] += d.State
		s.Sums[1] += d.Claims
		s.Sums[2] += d.FinishedAt&0xffffffff + d.ReadAt&0xffffffff
	}
	return s
}

// A visit receives a record, which is valid until it returns. It returns false for no more.
type visit func(*Record) (more bool, err error)

// read calls use for messages in the order of the list, which is that of their revisions. Errors: fault.Conflict if
// one of them does not exist.
func read(q store.Querier, messages []work.Standing, use visit) error {
	r := reader{q: q, names: map[int64]string{0: ""}}
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

// A reader reads the rows of four tables together, in the order of their messages.
type reader struct {
	q                                      store.Querier
	messages, deliveries, attempts, offers *store.Rows
	names                                  map[int64]string // of the mailboxes that it has read

	now      Record
	id       []byte
	at       key // of the next delivery; zero after the last
	next     RecordedDelivery
	holder   int64 // of the next delivery
	failedAt key   // of the next attempt; zero after the last
	failed   mail.Attempt
	offerAt  key // of the next offer; zero after the last
	offer    mail.Offer
}

// A key names a delivery.
type key struct{ message, mailbox int64 }

func (r *reader) close() {
	_ = r.messages.Close() // the reader has returned an error of the rows
	_ = r.deliveries.Close()
	_ = r.attempts.Close()
	_ = r.offers.Close()
}

// all reads n messages.
func (r *reader) all(n int, use visit) (more bool, err error) {
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
		r.now.Follows = i > 0
		if more, err := use(&r.now); err != nil || !more {
			return false, err
		}
	}
	return true, nil
}

// message reads the next message with its deliveries.
func (r *reader) message() error {
	if !r.messages.Next() {
		if err := r.messages.Err(); err != nil {
			return err
		}
		return fault.New(fault.Conflict, "CHANGED", "a message was removed meanwhile")
	}
	m := &r.now
	err := r.messages.Scan(
		&m.Revision, &m.Session, &r.id, &m.Sender, &m.SenderRole, &m.CreatedAt, &m.ExpiresAt, &m.Thread, &m.Content)
	if err != nil {
		return err
	}
	copy(m.ID[:], r.id)
	m.Deliveries = m.Deliveries[:0]
	for r.at.message == m.Revision {
		if err := r.delivery(); err != nil {
			return err
		}
	}
	return nil
}

// delivery adds the delivery that it has read to the message, and reads the next one.
func (r *reader) delivery() error {
	d := &r.next
	d.History, d.Offers = nil, nil
	var err error
	if d.Holder, err = r.name(r.holder); err != nil {
		return err
	}
	if d.Mailbox, err = r.name(r.at.mailbox); err != nil {
		return err
	}
	for r.failedAt == r.at {
		d.History = append(d.History, r.failed)
		if err := r.nextAttempt(); err != nil {
			return err
		}
	}
	for r.offerAt == r.at {
		d.Offers = append(d.Offers, r.offer)
		if err := r.nextOffer(); err != nil {
			return err
		}
	}
	r.now.Deliveries = append(r.now.Deliveries, *d)
	return r.nextDelivery()
}

func (r *reader) nextDelivery() error {
	r.at = key{}
	if !r.deliveries.Next() {
		return r.deliveries.Err()
	}
	d := &r.next
	return r.deliveries.Scan(&r.at.message, &r.at.mailbox, &d.State, &d.Arrival, &d.Claims, &d.Attempts, &d.MaxAttempts,
		&r.holder, &d.Consumer, &d.ClaimedAt, &d.DeliveredAt, &d.ReadAt, &d.FinishedAt, &d.DueAt)
}

func (r *reader) nextAttempt() error {
	r.failedAt = key{}
	if !r.attempts.Next() {
		return r.attempts.Err()
	}
	t := &r.failed
	var holder int64
	err := r.attempts.Scan(
		&r.failedAt.message, &r.failedAt.mailbox, &t.Number, &holder, &t.Consumer, &t.ClaimedAt, &t.EndedAt, &t.Error)
	if err != nil {
		return err
	}
	t.Agent, err = r.name(holder)
	return err
}

func (r *reader) nextOffer() error {
	r.offerAt = key{}
	if !r.offers.Next() {
		return r.offers.Err()
	}
	o := &r.offer
	var way int
	err := r.offers.Scan(&r.offerAt.message, &r.offerAt.mailbox, &o.Number, &way, &o.Harness, &o.Mark,
		&o.OfferedAt, &o.AcceptedAt, &o.ReturnedAt, &o.Why)
	o.Way = mail.Way(way)
	return err
}

// name returns the name of a mailbox, which for a holder is that of the agent; empty for 0.
func (r *reader) name(mailbox int64) (string, error) {
	name, known := r.names[mailbox]
	if known {
		return name, nil
	}
	name, err := mail.MailboxName(r.q, mailbox)
	if err != nil {
		return "", fmt.Errorf("name mailbox %d: %w", mailbox, err)
	}
	r.names[mailbox] = name
	return name, nil
}

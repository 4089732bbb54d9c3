package broker

import (
	"fmt"

	"brokerd/internal/fault"
	"brokerd/internal/store"
)

// A record is a message with all its deliveries.
type record struct {
	Message
	deliveries []Delivery
}

// records calls use for messages as they stand in q, in the order given, which must be that of their revisions; use returns false
// for no more. What it is given is good until it returns. fault.Conflict if one of them is not there.
func records(q store.Querier, messages []Standing, use func(*record) (bool, error)) error {
	names := boxNames{q: q, known: map[int64]boxNamed{}}
	for stretch := range stretches(messages) {
		first, last := ends(stretch)
		r := reading{
			messages:   q.Query(selectRecords, first, last),
			deliveries: q.Query(selectRecordDeliveries, first, last),
			attempts:   q.Query(selectRecordAttempts, first, last),
			names:      &names,
		}
		more, err := r.all(stretch, use)
		r.close()
		if err != nil || !more {
			return err
		}
	}
	return nil
}

// A reading goes through three tables at the same pace.
type reading struct {
	messages, deliveries, attempts *store.Rows
	names                          *boxNames

	now      record
	at       key // of the delivery that comes next; zero after the last
	next     Delivery
	holder   int64 // of it
	failedAt key   // of the attempt that comes next; zero after the last
	failed   Attempt
}

func (r *reading) close() {
	_ = r.messages.Close() // an error was told by whoever read to the end
	_ = r.deliveries.Close()
	_ = r.attempts.Close()
}

func (r *reading) all(stretch []Standing, use func(*record) (bool, error)) (more bool, err error) {
	if err := r.nextDelivery(); err != nil {
		return false, err
	}
	if err := r.nextAttempt(); err != nil {
		return false, err
	}
	for _, m := range stretch {
		if err := r.message(m.Revision); err != nil {
			return false, fmt.Errorf("read message %d: %w", m.Revision, err)
		}
		if more, err := use(&r.now); err != nil || !more {
			return false, err
		}
	}
	return true, nil
}

// message reads the next message with its deliveries.
func (r *reading) message(revision int64) error {
	m := &r.now.Message
	if !r.messages.Next() {
		if err := r.messages.Err(); err != nil {
			return err
		}
		return fault.New(fault.Conflict, "CHANGED", "a message was removed meanwhile")
	}
	var id []byte
	err := r.messages.Scan(&m.Revision, &id, &m.Sender, &m.SenderRole, &m.CreatedAt, &m.ExpiresAt, &m.Thread, &m.Content)
	if err != nil {
		return err
	}
	copy(m.ID[:], id)
	if m.Revision != revision {
		return fault.New(fault.Conflict, "CHANGED", "a message was removed meanwhile")
	}
	r.now.deliveries = r.now.deliveries[:0]
	for r.at.message == revision {
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
	d := r.next
	d.Holder, d.Mailbox = holder.name, mailbox.full
	for r.failedAt == r.at {
		d.History = append(d.History, r.failed)
		if err := r.nextAttempt(); err != nil {
			return err
		}
	}
	r.now.deliveries = append(r.now.deliveries, d)
	return r.nextDelivery()
}

func (r *reading) nextDelivery() error {
	r.at = key{}
	if !r.deliveries.Next() {
		return r.deliveries.Err()
	}
	d := &r.next
	*d = Delivery{}
	var state int
	err := r.deliveries.Scan(&r.at.message, &r.at.mailbox, &state, &d.Arrival, &d.Claims, &d.Attempts, &d.MaxAttempts,
		&r.holder, &d.Consumer, &d.ClaimedAt, &d.DeliveredAt, &d.ReadAt, &d.FinishedAt, &d.DueAt)
	d.State = State(state)
	return err
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
	var ref mailboxRef
	var kind int
	if err := b.q.QueryRow(selectMailboxName, mailbox).Scan(&kind, &ref.name); err != nil {
		return boxNamed{}, fmt.Errorf("name mailbox %d: %w", mailbox, err)
	}
	ref.kind = boxKind(kind)
	named := boxNamed{ref.name, ref.String()}
	b.known[mailbox] = named
	return named, nil
}

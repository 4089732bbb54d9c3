// Package producers keeps the numbers that programs give to their messages, so that a message that is sent again is
// recognised. The core of messages uses it.
package producers

import (
	"errors"
	"math"
	"time"

	"brokerd/internal/fault"
	"brokerd/internal/msgid"
	"brokerd/internal/store"
)

const (
	// producerKept is for how much uptime the broker remembers a producer after its last batch.
	producerKept = 24 * time.Hour
	// producersChecked is how many producers each new one checks. So all of them are checked in
	// turn, without an index that every batch would have to keep up to date.
	producersChecked = 10
	// producerReach is how many revisions back the message of a repeated number is looked for.
	producerReach = 200_000
)

// Producers remembers the producers of messages, and removes those that have not sent anything for a day of uptime. It
// belongs to the writer. The zero Producers is ready to use.
type Producers struct {
	checked int64 // the id of the last producer that Forget has checked
	kept    store.Cache[Name, row]
}

// A Name names a producer.
type Name struct {
	Session int64
	Sender  string // the agent
	Name    string // that the agent has given it; empty = there is no producer
}

type row struct {
	id     int64
	number int64 // the highest accepted
	last   int64 // the revision it got
}

// A Producer is a source of messages that numbers them: one row a producer, instead of one a message. One function of the
// writer uses it.
type Producer struct {
	row
	name Name
	used bool
	next Message // the first that is not below the number last asked for
}

// A Message is what a number was given to.
type Message struct {
	Number   int64
	Revision int64
	ID       msgid.ID
	Count    int // of deliveries
}

// Open returns the producer of a name, which is made if it does not exist yet. Without a name it returns one whose ID is 0.
func (r *Producers) Open(tx *store.Tx, name Name) (p Producer, err error) {
	p.name = name
	if name.Name == "" {
		return p, nil
	}
	p.row, err = r.kept.Get(tx, name, func() (found row, err error) {
		err = tx.QueryRow(selectProducer, name.Session, name.Sender, name.Name).Scan(&found.id, &found.number, &found.last)
		if !errors.Is(err, store.ErrNoRows) {
			return found, err
		}
		if _, err := r.Forget(tx, producersChecked); err != nil {
			return found, err
		}
		err = tx.QueryRow(insertProducer, name.Session, name.Sender, name.Name, tx.Uptime()).Scan(&found.id)
		return found, err
	})
	return p, err
}

// Clear forgets what is in memory: the caller removes producers.
func (r *Producers) Clear(tx *store.Tx) { r.kept.Clear(tx) }

// ID returns what messages are stored with, 0 if there is no producer.
func (p *Producer) ID() int64 { return p.id }

// Has reports whether a number is not above those that were accepted.
func (p *Producer) Has(number int64) bool { return number <= p.number }

// Accept takes note of the message that has got a number.
func (p *Producer) Accept(number, revision int64) { p.number, p.last, p.used = number, revision, true }

// Forget removes those of the next producers that have not sent anything for a day of
// uptime, in the order of their ids. It checks up to limit, and returns how many it has checked:
// fewer than limit at the end, after which it starts again from the first.
func (r *Producers) Forget(tx *store.Tx, limit int) (int64, error) {
	var n, last int64
	if err := tx.QueryRow(selectProducersAfter, r.checked, limit).Scan(&n, &last); err != nil {
		return 0, err
	}
	old, err := tx.ExecCount(deleteOldProducers, r.checked, last, tx.Uptime()-producerKept)
	if err != nil {
		return 0, err
	}
	if old > 0 {
		r.kept.Clear(tx)
	}
	if n < int64(limit) {
		last = 0
	}
	tx.OnCommit(func() { r.checked = last })
	return n, nil
}

// Duplicate returns the message of a number that was sent before. Within a function of the writer they are asked for in
// ascending order. Errors: fault.Precondition (NUMBER_TOO_LOW) for a number that no message has, or none of late.
func (p *Producer) Duplicate(tx *store.Tx, number int64) (Message, error) {
	if number > p.next.Number {
		if err := p.seek(tx, number); err != nil {
			return Message{}, err
		}
	}
	if p.next.Number != number {
		return Message{}, fault.New(fault.Precondition, "NUMBER_TOO_LOW",
			"number %d of this producer was not accepted, or too long ago to tell, and %d was: send it under a number above %d",
			number, p.number, p.number)
	}
	return p.next, nil
}

// seek finds the first message of the producer whose number is not below this one. Numbers have gaps, but
// they grow with the revisions, so the search continues where the last one ended.
func (p *Producer) seek(tx *store.Tx, number int64) error {
	after := p.next.Revision
	if after == 0 {
		after = p.last - producerReach
		err := tx.QueryRow(selectProducedBelow, after, p.last, p.id, p.name.Session, p.name.Sender, number).Scan(&after)
		if err != nil && !errors.Is(err, store.ErrNoRows) {
			return err
		}
	}
	var id []byte
	err := tx.QueryRow(selectProduced, after, p.last, p.id, p.name.Session, p.name.Sender, number).
		Scan(&p.next.Revision, &id, &p.next.Number, &p.next.Count)
	if errors.Is(err, store.ErrNoRows) {
		p.next = Message{Number: math.MaxInt64}
		return nil
	}
	copy(p.next.ID[:], id)
	return err
}

// Save stores the numbers that were accepted.
func (r *Producers) Save(tx *store.Tx, p *Producer) {
	if p.used {
		tx.Exec(updateProducer, p.number, p.last, tx.Uptime(), p.id)
		r.kept.Set(tx, p.name, p.row)
	}
}

const (
	selectProducer = `
		SELECT id, number, last FROM producers WHERE session = ? AND sender = ? AND name = ?`
	insertProducer = `
		INSERT INTO producers (session, sender, name, number, last, used_at) VALUES (?, ?, ?, 0, 0, ?) RETURNING id`
	updateProducer = `
		UPDATE producers SET number = ?, last = ?, used_at = ? WHERE id = ?`
	selectProducersAfter = `
		SELECT COUNT(*), MAX(x.id) FROM (SELECT id FROM producers WHERE id > ? ORDER BY id LIMIT ?) AS x`
	deleteOldProducers = `
		DELETE FROM producers WHERE id > ? AND id <= ? AND used_at < ?`
	selectProducedBelow = `
		SELECT revision FROM messages
		WHERE revision > ? AND revision <= ? AND producer = ? AND session = ? AND sender = ? AND number < ?
		ORDER BY revision DESC
		LIMIT 1`
	selectProduced = `
		SELECT m.revision, m.id, m.number, (SELECT COUNT(*) FROM deliveries d WHERE d.message = m.revision)
		FROM messages m
		WHERE m.revision > ? AND m.revision <= ? AND m.producer = ? AND m.session = ? AND m.sender = ? AND m.number >= ?
		ORDER BY m.revision
		LIMIT 1`
)

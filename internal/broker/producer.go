package broker

import (
	"errors"
	"math"
	"time"

	"brokerd/internal/fault"
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
// belongs to the writer.
type Producers struct {
	checked int64 // the id of the last producer that Forget has checked
	kept    store.Cache[producerKey, accepted]
}

type producerKey struct {
	session      int64
	sender, name string
}

// An accepted is the row of a producer.
type accepted struct {
	id     int64
	number int64 // the highest accepted
	last   int64 // the revision it got
}

// A producer is a source of messages that numbers them, so that one sent again is recognised: one row a
// producer, instead of one a message.
type producer struct {
	accepted // its id is 0 if the batch names no producer
	name     string
	actor    Actor // whose producer it is
	used     bool
	next     produced // the first that is not below the number last asked for
}

// A produced is what a number was given to.
type produced struct {
	number   int64
	revision int64
	id       ID
	count    int // of deliveries
}

// open returns the actor's producer of that name, which is made if it does not exist yet.
func (r *Producers) open(tx *store.Tx, a Actor, name string) (p producer, err error) {
	p.actor, p.name = a, name
	if name == "" {
		return p, nil
	}
	p.accepted, err = r.kept.Get(tx, p.key(), func() (row accepted, err error) {
		err = tx.QueryRow(selectProducer, a.Session.ID, a.Name, name).Scan(&row.id, &row.number, &row.last)
		if !errors.Is(err, store.ErrNoRows) {
			return row, err
		}
		if _, err := r.Forget(tx, producersChecked); err != nil {
			return row, err
		}
		err = tx.QueryRow(insertProducer, a.Session.ID, a.Name, name, tx.Uptime()).Scan(&row.id)
		return row, err
	})
	return p, err
}

func (p *producer) key() producerKey { return producerKey{p.actor.Session.ID, p.actor.Name, p.name} }

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

// duplicate answers a number that was sent before. Within a batch they are asked for in ascending order.
func (p *producer) duplicate(tx *store.Tx, number int64) (Outcome, error) {
	if number > p.next.number {
		if err := p.seek(tx, number); err != nil {
			return Outcome{}, err
		}
	}
	if p.next.number != number {
		return Outcome{}, fault.New(fault.Precondition, "NUMBER_TOO_LOW",
			"number %d of this producer was not accepted, or too long ago to tell, and %d was: send it under a number above %d",
			number, p.number, p.number)
	}
	return Outcome{ID: p.next.id, Revision: p.next.revision, Count: p.next.count, Duplicate: true}, nil
}

// seek finds the first message of the producer whose number is not below this one. Numbers have gaps, but
// they grow with the revisions, so the search goes on where the last one ended.
func (p *producer) seek(tx *store.Tx, number int64) error {
	after := p.next.revision
	if after == 0 {
		after = p.last - producerReach
		err := tx.QueryRow(selectProducedBelow, after, p.last, p.id, p.actor.Session.ID, p.actor.Name, number).Scan(&after)
		if err != nil && !errors.Is(err, store.ErrNoRows) {
			return err
		}
	}
	var id []byte
	err := tx.QueryRow(selectProduced, after, p.last, p.id, p.actor.Session.ID, p.actor.Name, number).
		Scan(&p.next.revision, &id, &p.next.number, &p.next.count)
	if errors.Is(err, store.ErrNoRows) {
		p.next = produced{number: math.MaxInt64}
		return nil
	}
	copy(p.next.id[:], id)
	return err
}

// save stores the numbers that were accepted.
func (r *Producers) save(tx *store.Tx, p *producer) {
	if p.used {
		tx.Exec(updateProducer, p.number, p.last, tx.Uptime(), p.id)
		r.kept.Set(tx, p.key(), p.accepted)
	}
}

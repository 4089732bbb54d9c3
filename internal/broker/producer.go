package broker

import (
	"errors"
	"time"

	"brokerd/internal/fault"
	"brokerd/internal/store"
)

const (
	// producerKept is how long a producer is remembered after its last batch.
	producerKept = 24 * time.Hour
	// producerReach is how many revisions back the message of a repeated number is looked for.
	producerReach = 200_000
)

// A producer is a source of messages that numbers them, so that one sent again is recognised: one row a
// producer, instead of one a message.
type producer struct {
	id     int64 // 0 = the batch names none
	number int64 // the highest accepted
	last   int64 // the revision it got
	used   bool
}

// openProducer returns the actor's producer of that name, which is made if it does not exist yet.
func openProducer(tx *store.Tx, a actor, name string) (p producer, err error) {
	if name == "" {
		return p, nil
	}
	err = tx.QueryRow(selectProducer, a.session.ID, a.Name, name).Scan(&p.id, &p.number, &p.last)
	if !errors.Is(err, store.ErrNoRows) {
		return p, err
	}
	if _, err := tx.Exec(deleteOldProducers, tx.Now().Add(-producerKept)); err != nil {
		return p, err
	}
	err = tx.QueryRow(insertProducer, a.session.ID, a.Name, name, tx.Now()).Scan(&p.id)
	return p, err
}

// duplicate answers a number that was sent before.
func (p *producer) duplicate(tx *store.Tx, number int64) (Outcome, error) {
	out := Outcome{Duplicate: true}
	var id []byte
	err := tx.QueryRow(selectProduced, p.last-(p.number-number), p.last-producerReach, p.id, number).Scan(&out.Revision, &id, &out.Count)
	if errors.Is(err, store.ErrNoRows) {
		return out, fault.New(fault.Precondition, "NUMBER_TOO_LOW",
			"number %d of this producer was not accepted, or too long ago to tell, and %d was: send it under a number above %d",
			number, p.number, p.number)
	}
	copy(out.ID[:], id)
	return out, err
}

func (p *producer) save(tx *store.Tx) error {
	if !p.used {
		return nil
	}
	_, err := tx.Exec(updateProducer, p.number, p.last, tx.Now(), p.id)
	return err
}

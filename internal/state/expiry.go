package state

import (
	"context"
	"time"

	"go.uber.org/zap"

	"brokerd/internal/store"
)

// duePage is how many keys expire in one transaction.
const duePage = 300

// expect has the calendar wake no later than at, once the transaction is committed.
func (k *Keys) expect(tx *store.Tx, at time.Time) {
	tx.OnCommit(func() { k.wakeBy(at) })
}

func (k *Keys) wakeBy(at time.Time) {
	if planned, ok := k.calendar.Deadline(struct{}{}); !ok || at.Before(planned) {
		k.calendar.Set(struct{}{}, at)
	}
}

// expireDue deletes the keys whose time to live is over, and plans the next turn. Which these are it finds in the database.
func (k *Keys) expireDue() {
	var next time.Time
	err := k.store.Write(context.Background(), func(tx *store.Tx) error {
		if err := k.expire(tx); err != nil {
			return err
		}
		next = time.Time{}
		rows := tx.Query(nextExpiry)
		defer rows.Close()
		if rows.Next() {
			return rows.Scan(&next)
		}
		return rows.Err()
	})
	if err != nil {
		k.zap.Warn("expired keys could not be deleted; trying again", zap.Error(err))
		next = k.clock.Now().Add(time.Second)
	}
	if !next.IsZero() {
		k.wakeBy(next)
	}
}

func (k *Keys) expire(tx *store.Tx) error {
	var due []row
	rows := tx.Query(selectDue, tx.Now(), duePage)
	defer rows.Close()
	for rows.Next() {
		var r row
		if err := rows.Scan(&r.scope, &r.Namespace, &r.Key); err != nil {
			return err
		}
		due = append(due, r)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	t := turn{Keys: k, tx: tx}
	for i := range due {
		r, err := find(tx, due[i].scope, due[i].Name)
		if err != nil {
			return err
		}
		if err := t.lapse(&r); err != nil {
			return err
		}
	}
	return nil
}

package auth

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"

	"brokerd/internal/store"
)

// retryAfter is the pause before the next attempt to record an expiry.
const retryAfter = time.Second

// due runs in the goroutine of the queue.
func (r *Registry) due(keys []dueKey) {
	for _, key := range keys {
		if key.credential == 0 {
			r.closeMinute(key.client)
			continue
		}
		r.expire(key.credential)
	}
}

// expire ends a credential whose time has come: in memory at once, then in the table. If the broker
// cannot write, it tries again later.
func (r *Registry) expire(id int64) {
	e := r.entry(id)
	if e == nil {
		return
	}
	e.end(errExpired(e.id, e.until))
	err := r.store.Write(context.Background(), func(tx *store.Tx) error {
		c, known, err := find(tx, id)
		if err != nil || !known {
			return err
		}
		return r.endNow(tx, &c, Expired, "")
	})
	if err != nil {
		r.zap.Warn("cannot record the end of a credential; the broker tries again", zap.String("credential", name(id)), zap.Error(err))
		r.queue.Set(dueKey{credential: id}, r.clock.Now().Add(retryAfter))
	}
}

// removeOld removes ended credentials that are old or too many: a few for every new one, so they
// never accumulate.
func (r *Registry) removeOld(tx *store.Tx) error {
	const atOnce = 10
	old, err := ids(tx.Query(selectRemovable, tx.Now().Add(-keepEnded), atOnce))
	if err != nil {
		return err
	}
	surplus, err := ids(tx.Query(selectSurplus, atOnce, mostEnded))
	if err != nil {
		return err
	}
	removed := slices.Concat(old, surplus)
	for _, id := range removed {
		tx.Exec(deleteCredential, id)
	}
	tx.OnCommit(func() {
		for _, id := range removed {
			r.drop(id)
		}
	})
	return nil
}

// ids reads rows with one number each, and closes them.
func ids(rows *store.Rows) (all []int64, err error) {
	defer rows.Close()
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		all = append(all, id)
	}
	return all, rows.Err()
}

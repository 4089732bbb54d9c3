package backlog

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"go.uber.org/zap"

	"brokerd/internal/directory"
	"brokerd/internal/mail"
	"brokerd/internal/store"
)

// ranksPage is how many ranks one function computes.
const ranksPage = 200

// SessionConfigured makes the ranks of a session follow its ageing. It is a hook of the configuration.
func (q *Chores) SessionConfigured(tx *store.Tx, before, now directory.Session) error {
	if now.Settings.GetAgeing().AsDuration() == before.Settings.GetAgeing().AsDuration() {
		return nil
	}
	keys, err := readKeys(tx.Query(selectRanked, now.ID, ranksPage+1))
	if err != nil {
		return err
	}
	if len(keys) > ranksPage {
		tx.Exec(upsertRerank, now.ID)
		tx.OnCommit(func() { q.ranks.Set(now.ID, q.clock.Now()) })
		return nil
	}
	updateRanks(tx, now, keys)
	tx.Exec(deleteRerank, now.ID)
	q.core.Waiters.Reread(tx, keys)
	return nil
}

// resumeRanks resumes the changes of ageing that were not finished when the broker stopped.
func (q *Chores) resumeRanks(s *store.Snapshot) error {
	now := q.clock.Now()
	rows := s.Query(selectReranks)
	for rows.Next() {
		var session int64
		if err := rows.Scan(&session); err != nil {
			return err
		}
		q.ranks.Set(session, now)
	}
	return rows.Err()
}

// rerankAll computes the ranks of sessions until all are computed or the broker stops.
func (q *Chores) rerankAll(sessions []int64) {
	for _, session := range sessions {
		if q.isStopping() {
			return
		}
		if err := q.rerank(session); err != nil {
			q.ranks.Set(session, q.clock.Now().Add(time.Second))
			q.log.Warn("a page of the backlog could not be written; trying again", zap.Error(err))
		}
	}
}

// isStopping reports whether the broker stops. A change then ends after its page.
func (q *Chores) isStopping() bool {
	select {
	case <-q.core.Stopping():
		return true
	default:
		return q.ctx.Err() != nil
	}
}

// rerank computes the ranks of all that is unfinished in a session, one page per function, unless
// the broker stops. Until the last page, a mailbox has ranks by the old and by the new ageing:
// every delivery can be claimed, only the order is mixed.
//
// One snapshot names the deliveries, and a page finds each of them whatever its state is by then.
// Deliveries that are sent or redriven after the change have the new rank already.
func (q *Chores) rerank(session int64) error {
	var version int64
	var keys []mail.DeliveryID
	ctx := context.Background()
	err := q.store.Read(ctx, func(s *store.Snapshot) (err error) {
		if err := s.QueryRow(selectRerank, session).Scan(&version); err != nil {
			return err
		}
		keys, err = readKeys(s.Query(selectRanked, session, math.MaxInt32))
		return err
	})
	if errors.Is(err, store.ErrNoRows) {
		return nil // the session has ended, or a later change did it all
	}
	if err != nil {
		return err
	}
	for page := range slices.Chunk(keys, ranksPage) {
		if q.isStopping() {
			return nil
		}
		if err := q.store.Write(ctx, func(tx *store.Tx) error { return q.rerankPage(tx, session, page) }); err != nil {
			return err
		}
	}
	return q.store.Write(ctx, func(tx *store.Tx) error {
		q.core.Waiters.Reread(tx, keys)
		tx.Exec(deleteRerankVersion, session, version)
		return nil
	})
}

// rerankPage computes some ranks by the ageing that the session has now.
func (q *Chores) rerankPage(tx *store.Tx, session int64, keys []mail.DeliveryID) error {
	now, err := q.dir.ByID(tx, session)
	if errors.Is(err, store.ErrNoRows) {
		return nil // it is deleted
	}
	if err != nil {
		return err
	}
	updateRanks(tx, now, keys)
	return nil
}

func readKeys(rows *store.Rows) ([]mail.DeliveryID, error) {
	var keys []mail.DeliveryID
	for rows.Next() {
		var k mail.DeliveryID
		if err := rows.Scan(&k.Message, &k.Mailbox); err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
	return keys, rows.Err()
}

func updateRanks(tx *store.Tx, session directory.Session, keys []mail.DeliveryID) {
	ageing := session.Settings.GetAgeing().AsDuration()
	for _, k := range keys {
		tx.Exec(updateRank, ageing, k.Message, k.Mailbox)
	}
}

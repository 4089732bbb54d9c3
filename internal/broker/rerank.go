package broker

import (
	"context"
	"errors"
	"slices"

	"brokerd/internal/store"
)

// ranksPage is how many ranks one function computes.
const ranksPage = 200

// SessionConfigured follows a change of a session's settings: circuit breakers close if there are to be none, and ranks follow the ageing. It is a hook of the
// configuration.
func (b *Broker) SessionConfigured(tx *store.Tx, before, now Session) error {
	if now.Ageing == before.Ageing {
		return nil
	}
	keys, err := readKeys(tx.Query(selectRanked, now.ID, ranksPage+1))
	if err != nil {
		return err
	}
	if len(keys) > ranksPage {
		tx.Exec(upsertRerank, now.ID)
		b.Chores.later(tx, chore{rerankChore, now.ID})
		return nil
	}
	updateRanks(tx, now, keys)
	tx.Exec(deleteRerank, now.ID)
	b.Waiters.reread(tx, keys)
	return nil
}

// rerank computes the ranks of all that is unfinished in a session, one page per function, unless
// the broker stops. Until the last page, a mailbox has ranks by the old and by the new ageing:
// every delivery can be claimed, only the order is mixed.
//
// One snapshot names the deliveries, and a page finds each of them whatever its state is by then.
// Deliveries that are sent or redriven after the change have the new rank already.
func (q *Chores) rerank(session int64) error {
	var version int64
	var keys []key
	ctx := context.Background()
	err := q.broker.store.Read(ctx, func(s *store.Snapshot) (err error) {
		if err := s.QueryRow(selectRerank, session).Scan(&version); err != nil {
			return err
		}
		keys, err = readKeys(s.Query(selectRanked, session, noLimit))
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
		if err := q.broker.store.Write(ctx, func(tx *store.Tx) error { return q.rerankPage(tx, session, page) }); err != nil {
			return err
		}
	}
	return q.broker.store.Write(ctx, func(tx *store.Tx) error {
		q.broker.Waiters.reread(tx, keys)
		tx.Exec(deleteRerankVersion, session, version)
		return nil
	})
}

// rerankPage computes some ranks by the ageing that the session has now.
func (q *Chores) rerankPage(tx *store.Tx, session int64, keys []key) error {
	now, err := q.broker.dir.ByID(tx, session)
	if errors.Is(err, store.ErrNoRows) {
		return nil // it is deleted
	}
	if err != nil {
		return err
	}
	updateRanks(tx, now, keys)
	return nil
}

func readKeys(rows *store.Rows) ([]key, error) {
	var keys []key
	for rows.Next() {
		var k key
		if err := rows.Scan(&k.message, &k.mailbox); err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
	return keys, rows.Err()
}

func updateRanks(tx *store.Tx, session Session, keys []key) {
	for _, k := range keys {
		tx.Exec(updateRank, session.Ageing, k.message, k.mailbox)
	}
}

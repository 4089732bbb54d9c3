package broker

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"brokerd/internal/fault"
	"brokerd/internal/store"
)

// Messages that are finished are removed some day, with all that refers to them. Whoever adds a table that does adds it here.

// ofMessages removes what belongs to messages; the argument is a JSON list of their revisions.
var ofMessages = [...]string{
	`DELETE FROM questions WHERE message IN (SELECT value FROM json_each(?))`,
	`DELETE FROM resends WHERE message IN (SELECT value FROM json_each(?))`,
	`DELETE FROM attempts WHERE message IN (SELECT value FROM json_each(?))`,
	`DELETE FROM deliveries WHERE message IN (SELECT value FROM json_each(?))`,
	`DELETE FROM messages WHERE revision IN (SELECT value FROM json_each(?))`,
}

// ofSessions removes what a session has beside messages; the argument is its row id. What refers to mailboxes goes before these.
var ofSessions = [...]string{
	`DELETE FROM threads WHERE session = ?`,
	`DELETE FROM halts WHERE agent IN (SELECT id FROM mailboxes WHERE session = ?)`,
	`DELETE FROM breakers WHERE agent IN (SELECT id FROM mailboxes WHERE session = ?)`,
	`DELETE FROM subscriptions WHERE channel IN (SELECT id FROM mailboxes WHERE session = ?)`,
	`DELETE FROM channels WHERE mailbox IN (SELECT id FROM mailboxes WHERE session = ?)`,
	`DELETE FROM producers WHERE session = ?`,
	`DELETE FROM mailboxes WHERE session = ?`,
}

// Queries of what is to be removed. The rows are read by standings.
const (
	standingColumns = `
		SELECT m.revision, m.session, m.created_at, m.channel, COUNT(d.message), COALESCE(MIN(d.state >= 5), 1)
				AND NOT EXISTS (SELECT 1 FROM questions q WHERE q.message = m.revision AND q.settled IS NULL AND q.overdue IS NULL),
			MAX(CASE WHEN d.state <> 6 THEN d.finished_at END), MAX(CASE WHEN d.state = 6 THEN d.finished_at END)
		FROM messages m LEFT JOIN deliveries d ON d.message = m.revision`
	selectStandings = standingColumns + `
		WHERE m.revision > ? AND (? = 0 OR m.session = ?)
		GROUP BY m.revision
		ORDER BY m.revision
		LIMIT ?`
	selectStandingsOf = standingColumns + `
		WHERE m.revision IN (SELECT value FROM json_each(?))
		GROUP BY m.revision
		ORDER BY m.revision`
	deleteProducers = `
		DELETE FROM producers WHERE id IN (SELECT id FROM producers WHERE used_at < ? LIMIT ?)`
)

// A Standing is what decides how long a message is kept.
type Standing struct {
	Revision   int64
	Session    int64
	CreatedAt  time.Time
	Channel    string    // it went to, or was labelled with
	Deliveries int       // how many it has
	Finished   bool      // every delivery is, and no response is being waited for
	FinishedAt time.Time // when the last one was that is no dead letter; zero if there is none
	DeadAt     time.Time // when the last one died; zero if there is none
}

// Standings returns how messages stand, those after a revision in the order of theirs, of one session or, for 0, of all.
func (b *Broker) Standings(q store.Querier, session, after int64, limit int) ([]Standing, error) {
	return standings(q.Query(selectStandings, after, session, session, limit))
}

func standings(rows *store.Rows) ([]Standing, error) {
	defer rows.Close()
	var found []Standing
	for rows.Next() {
		var s Standing
		err := rows.Scan(&s.Revision, &s.Session, &s.CreatedAt, &s.Channel, &s.Deliveries, &s.Finished, &s.FinishedAt, &s.DeadAt)
		if err != nil {
			return nil, err
		}
		found = append(found, s)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("look how messages stand: %w", err)
	}
	return found, nil
}

// Remove removes finished messages, which are given in the order of their revisions, with all that belongs to them. If any of them
// does not stand as it did, because it was redriven, acknowledged late or removed, none is removed: fault.Conflict.
func (b *Broker) Remove(tx *store.Tx, messages []Standing) error {
	list, err := revisionList(messages)
	if err != nil {
		return err
	}
	now, err := standings(tx.Query(selectStandingsOf, list))
	if err != nil {
		return err
	}
	unfinished := func(m Standing) bool { return !m.Finished }
	if !slices.Equal(now, messages) || slices.ContainsFunc(now, unfinished) {
		return fault.New(fault.Conflict, "CHANGED", "a message that was to be removed has changed")
	}
	return erase(tx, list)
}

// Erase removes messages whatever their standing, with all that belongs to them. Their session must be closed.
func (b *Broker) Erase(tx *store.Tx, messages []Standing) error {
	list, err := revisionList(messages)
	if err != nil {
		return err
	}
	return erase(tx, list)
}

// revisionList is a JSON list.
func revisionList(messages []Standing) (string, error) {
	revisions := make([]int64, len(messages))
	for i, m := range messages {
		revisions[i] = m.Revision
	}
	list, err := json.Marshal(revisions)
	return string(list), err
}

func erase(tx *store.Tx, list string) error {
	for _, statement := range ofMessages {
		if _, err := tx.Exec(statement, list); err != nil {
			return fmt.Errorf("remove messages: %w", err)
		}
	}
	return nil
}

// Forget removes what a session has beside its messages, which must be gone: mailboxes, channels, subscriptions.
func (b *Broker) Forget(tx *store.Tx, session int64) error {
	for _, statement := range ofSessions {
		if _, err := tx.Exec(statement, session); err != nil {
			return fmt.Errorf("remove mailboxes: %w", err)
		}
	}
	b.boxIDs.Clear(tx)
	b.audience.Clear(tx)
	b.gates.Clear(tx)
	return nil
}

// ForgetProducers removes some producers that have not sent anything for a day, and reports how many.
func (b *Broker) ForgetProducers(tx *store.Tx, limit int) (int64, error) {
	return tx.Exec(deleteProducers, tx.Now().Add(-producerKept), limit)
}

// ChannelsKept returns the channels that have a time of their own for which messages are kept, by session and name.
func (b *Broker) ChannelsKept(q store.Querier) (map[int64]map[string]time.Duration, error) {
	rows := q.Query(selectChannelsKept)
	defer rows.Close()
	kept := map[int64]map[string]time.Duration{}
	for rows.Next() {
		var session int64
		var name string
		var d time.Duration
		if err := rows.Scan(&session, &name, &d); err != nil {
			return nil, err
		}
		if kept[session] == nil {
			kept[session] = map[string]time.Duration{}
		}
		kept[session][name] = d
	}
	return kept, rows.Err()
}

// allDeliveriesOf is deliveriesOf without its limit.
func allDeliveriesOf(q store.Querier, message int64) ([]Delivery, error) {
	return deliveriesUpTo(q, message, 0, math.MaxInt)
}

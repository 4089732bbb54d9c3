package broker

import (
	"errors"
	"fmt"
	"time"

	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Retention removes finished messages with all rows that refer to them, and the deletion of a
// session removes all messages. Each table with such rows is in one of the lists below. A message
// may name 1,000 artifacts and have thousands of deliveries, each with up to 100 attempts.

// ofMessages removes messages from one revision to another, with their deliveries and questions.
var ofMessages = [...]string{
	`DELETE FROM questions WHERE message BETWEEN ? AND ?`,
	`DELETE FROM deliveries WHERE message BETWEEN ? AND ?`,
	`DELETE FROM messages WHERE revision BETWEEN ? AND ?`,
}

// detailsOfMessages removes as many of the other rows as the last argument says. Until it has removed
// them, a version of an artifact that they name is kept; they have no other effect.
var detailsOfMessages = [...]string{
	`DELETE FROM message_artifacts
		WHERE (session, artifact, message) IN (
			SELECT session, artifact, message FROM message_artifacts
			WHERE message BETWEEN ? AND ? LIMIT ?)`,
	`DELETE FROM resends
		WHERE (message, mailbox) IN (
			SELECT message, mailbox FROM resends WHERE message BETWEEN ? AND ? LIMIT ?)`,
	`DELETE FROM offers
		WHERE (message, mailbox, number) IN (
			SELECT message, mailbox, number FROM offers WHERE message BETWEEN ? AND ? LIMIT ?)`,
	`DELETE FROM attempts
		WHERE (message, mailbox, claim) IN (
			SELECT message, mailbox, claim FROM attempts WHERE message BETWEEN ? AND ? LIMIT ?)`,
}

// someOfMessages is ofMessages for as many rows as the last argument says. The row of a message is
// the last one.
var someOfMessages = [...]string{
	`DELETE FROM questions
		WHERE message IN (SELECT message FROM questions WHERE message BETWEEN ? AND ? LIMIT ?)`,
	`DELETE FROM deliveries
		WHERE (message, mailbox) IN (
			SELECT message, mailbox FROM deliveries WHERE message BETWEEN ? AND ? LIMIT ?)`,
	`DELETE FROM messages
		WHERE revision IN (SELECT revision FROM messages WHERE revision BETWEEN ? AND ? LIMIT ?)`,
}

// Messages whose details are not all removed yet: see Remove.
const (
	leftovers = `
CREATE TABLE leftovers (
	first INTEGER PRIMARY KEY, -- revisions of messages that are removed, from this one
	last  INTEGER NOT NULL     -- to this one
);
`
	insertLeftover = `INSERT INTO leftovers (first, last) VALUES (?, ?)`
	selectLeftover = `SELECT first, last FROM leftovers ORDER BY first LIMIT 1`
	deleteLeftover = `DELETE FROM leftovers WHERE first = ?`
)

// mostRemoved is how many rows of messages Remove deletes. It leaves some of store.MaxChanged for
// the notes of the archive and of leftovers.
const mostRemoved = 9000

// someOfSessions removes some rows that a session has beside messages and mailboxes. Its arguments
// are the row id of the session and the number of rows.
var someOfSessions = [...]string{
	`DELETE FROM threads
		WHERE (session, thread) IN (SELECT session, thread FROM threads WHERE session = ? LIMIT ?)`,
	`DELETE FROM producers WHERE id IN (SELECT id FROM producers WHERE session = ? LIMIT ?)`,
}

// someOfMailboxes removes some rows of which a mailbox may have many.
var someOfMailboxes = [...]string{
	`DELETE FROM subscriptions
		WHERE (channel, agent) IN (
			SELECT channel, agent FROM subscriptions WHERE channel = ? LIMIT ?)`,
}

// ofMailboxes removes a mailbox, and the rows that refer to it.
var ofMailboxes = [...]string{
	`DELETE FROM departures WHERE mailbox = ?`,
	deleteHalt,
	deleteBreaker,
	`DELETE FROM channels WHERE mailbox = ?`,
	`DELETE FROM mailboxes WHERE id = ?`,
}

const selectSomeMailboxes = `
	SELECT id FROM mailboxes WHERE session = ? LIMIT ?`

// Queries of what is to be removed. Of times the low halves are added up, which cannot overflow.
const (
	selectStandings = `
		SELECT m.revision, m.session, m.created_at, m.channel, COUNT(d.message),
			COUNT(*) FILTER (WHERE d.state NOT BETWEEN 5 AND 8) = 0
				AND NOT EXISTS (SELECT 1 FROM questions q WHERE q.message = m.revision AND q.settled IS NULL AND q.overdue IS NULL),
			MAX(CASE WHEN d.state <> 6 THEN d.finished_at END), MAX(CASE WHEN d.state = 6 THEN d.finished_at END)
		FROM messages m LEFT JOIN deliveries d ON d.message = m.revision
		WHERE m.revision > ? AND (? = 0 OR m.session = ?)
		GROUP BY m.revision
		ORDER BY m.revision
		LIMIT ?`
	selectAlike = `
		SELECT COUNT(*), MIN(revision), MAX(revision), MIN(session), MAX(session), MAX(created_at),
			MIN(channel), COUNT(channel) = 0 OR COUNT(channel) = COUNT(*) AND MIN(channel) = MAX(channel)
		FROM (SELECT revision, session, created_at, channel FROM messages WHERE revision > ? ORDER BY revision LIMIT ?) AS x`
	selectAlikeDeliveries = `
		SELECT COUNT(*), COUNT(*) FILTER (WHERE state NOT IN (5, 7, 8)) = 0
				AND NOT EXISTS (SELECT 1 FROM questions WHERE message BETWEEN ?1 AND ?2 AND settled IS NULL AND overdue IS NULL),
			MAX(finished_at)
		FROM deliveries
		WHERE message BETWEEN ?1 AND ?2`
	selectStretch = `
		SELECT (SELECT COUNT(*) FROM messages WHERE revision BETWEEN ?1 AND ?2), COUNT(*),
			COUNT(*) FILTER (WHERE state NOT BETWEEN 5 AND 8) = 0
				AND NOT EXISTS (SELECT 1 FROM questions WHERE message BETWEEN ?1 AND ?2 AND settled IS NULL AND overdue IS NULL),
			SUM(state), SUM(claims), SUM((finished_at & 4294967295) + COALESCE(read_at & 4294967295, 0))
		FROM deliveries
		WHERE message BETWEEN ?1 AND ?2`

	selectRecords = `
		SELECT revision, session, id, sender, sender_role, created_at, expires_at, thread, content
		FROM messages
		WHERE revision BETWEEN ? AND ?
		ORDER BY revision`
	selectRecordDeliveries = `
		SELECT message, mailbox, state, abs(arrival), claims, attempts, max_attempts, holder, consumer,
			claimed_at, delivered_at, read_at, finished_at, due_at
		FROM deliveries
		WHERE message BETWEEN ? AND ?
		ORDER BY message, mailbox`
	selectRecordAttempts = `
		SELECT message, mailbox, number, holder, consumer, claimed_at, ended_at, error
		FROM attempts
		WHERE message BETWEEN ? AND ?
		ORDER BY message, mailbox, ended_at, claim`
	selectRecordOffers = `
		SELECT message, mailbox, number, way, harness, mark, offered_at, accepted_at, returned_at, why
		FROM offers
		WHERE message BETWEEN ? AND ?
		ORDER BY message, mailbox, number`
)

// A Standing is what decides how long messages are kept that follow each other: there are no others between them, nor will there be,
// since new ones have higher revisions. Of times it has the latest.
type Standing struct {
	First      int64 // revision
	Last       int64
	Messages   int
	Session    int64
	CreatedAt  time.Time
	Channel    string    // they went to, or were labelled with
	Deliveries int       // how many they have
	Finished   bool      // every delivery is, and no response is being waited for
	FinishedAt time.Time // when the last one was that is no dead letter; zero if there is none
	DeadAt     time.Time // when the last one died; zero if there is none
	Follows    bool      // the one before it in the list, with no others between them
	Sums       [3]int64  // of the deliveries that were read: any change of one that is finished shows in them
}

// Standings returns how messages stand, those after a revision in the order of theirs, of one session or, for 0, of all. At most limit are
// looked at. If all of these are finished, none of them dead, in one session and channel, they may be returned as one.
func (b *Broker) Standings(q store.Querier, session, after int64, limit int) ([]Standing, error) {
	one, alike, err := alike(q, after, limit)
	if err != nil {
		return nil, fmt.Errorf("look how messages stand: %w", err)
	}
	if alike && (session == 0 || session == one.Session) {
		return []Standing{one}, nil
	}
	return b.EachStanding(q, session, after, limit)
}

// alike returns how some messages stand together, and whether that is how each of them does, but for times.
func alike(q store.Querier, after int64, limit int) (s Standing, alike bool, err error) {
	var another int64
	var first, last int64
	err = q.QueryRow(selectAlike, after, limit).Scan(&s.Messages, &first, &last, &s.Session, &another, &s.CreatedAt, &s.Channel, &alike)
	if err != nil || !alike || s.Messages == 0 || s.Session != another {
		return s, false, err
	}
	s.First, s.Last = first, last
	err = q.QueryRow(selectAlikeDeliveries, first, last).Scan(&s.Deliveries, &s.Finished, &s.FinishedAt)
	return s, s.Finished, err
}

// EachStanding is Standings with each message by itself.
func (b *Broker) EachStanding(q store.Querier, session, after int64, limit int) ([]Standing, error) {
	rows := q.Query(selectStandings, after, session, session, limit)
	defer rows.Close()
	found := make([]Standing, 0, limit)
	for rows.Next() {
		s := Standing{Messages: 1, Follows: session == 0 && len(found) > 0}
		err := rows.Scan(&s.First, &s.Session, &s.CreatedAt, &s.Channel, &s.Deliveries, &s.Finished, &s.FinishedAt, &s.DeadAt)
		if err != nil {
			return nil, err
		}
		s.Last = s.First
		found = append(found, s)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("look how messages stand: %w", err)
	}
	return found, nil
}

// Join adds the messages that follow to a standing.
func (s *Standing) Join(next *Standing) {
	s.Last = next.Last
	s.Messages += next.Messages
	s.Deliveries += next.Deliveries
	for i, sum := range next.Sums {
		s.Sums[i] += sum
	}
}

// Remove removes finished messages, which were read by Records, with all that belongs to them.
// Details beyond 9,000 rows are left to Tidy. If any of the messages does not stand as it did,
// because it was redriven, acknowledged late or removed, none is removed: fault.Conflict.
func (b *Broker) Remove(tx *store.Tx, messages []Standing) error {
	for i := range messages {
		same, err := unchanged(tx, &messages[i])
		if err != nil {
			return fmt.Errorf("look how messages stand: %w", err)
		}
		if !same {
			return fault.New(fault.Conflict, "CHANGED", "a message that was to be removed has changed")
		}
	}
	if err := removeAll(tx, messages); err != nil {
		return fmt.Errorf("remove messages: %w", err)
	}
	return nil
}

func removeAll(tx *store.Tx, messages []Standing) error {
	limit := mostRemoved
	for i := range messages {
		for _, statement := range ofMessages {
			n, err := tx.ExecCount(statement, messages[i].First, messages[i].Last)
			if err != nil {
				return err
			}
			limit -= int(n)
		}
	}
	for i := range messages {
		var err error
		if limit > 0 {
			limit, err = tx.ExecPage(limit, detailsOfMessages[:], messages[i].First, messages[i].Last)
		}
		if err != nil {
			return err
		}
		if limit <= 0 {
			tx.Exec(insertLeftover, messages[i].First, messages[i].Last)
		}
	}
	return nil
}

// Tidy removes up to limit rows that are of no more use: details of messages that Remove has left,
// and then producers (see ForgetProducers). It returns how many it has checked: fewer than limit if
// there are no more.
func (b *Broker) Tidy(tx *store.Tx, limit int) (int64, error) {
	var first, last int64
	err := tx.QueryRow(selectLeftover).Scan(&first, &last)
	if errors.Is(err, store.ErrNoRows) {
		return b.ForgetProducers(tx, limit)
	}
	left := 0
	if err == nil {
		left, err = tx.ExecPage(limit, detailsOfMessages[:], first, last)
	}
	if err != nil {
		return 0, fmt.Errorf("remove what is left of messages: %w", err)
	}
	if left > 0 {
		tx.Exec(deleteLeftover, first)
	}
	return int64(limit), nil
}

// unchanged reports whether all messages of a stretch are finished and stand as they did.
func unchanged(tx *store.Tx, s *Standing) (bool, error) {
	var count, deliveries int
	var finished bool
	var sums [3]int64
	err := tx.QueryRow(selectStretch, s.First, s.Last).Scan(&count, &deliveries, &finished, &sums[0], &sums[1], &sums[2])
	return finished && count == s.Messages && deliveries == s.Deliveries && sums == s.Sums, err
}

// Erase removes messages of a session that is being deleted, whatever their standing, with all that
// belongs to them: up to limit rows. It returns how many of the standings it has removed whole. The
// next call continues with the others.
func (b *Broker) Erase(tx *store.Tx, messages []Standing, limit int) (removed int, err error) {
	for i := range messages {
		for _, statements := range [][]string{detailsOfMessages[:], someOfMessages[:]} {
			limit, err = tx.ExecPage(limit, statements, messages[i].First, messages[i].Last)
			if err != nil {
				return i, fmt.Errorf("remove messages: %w", err)
			}
			if limit == 0 {
				return i, nil
			}
		}
	}
	return len(messages), nil
}

// EraseMailboxes removes up to limit of the rows that a session has beside its messages, which must
// be removed: threads and producers, and after them mailboxes with their channels and
// subscriptions. It reports whether there may be more.
func (b *Broker) EraseMailboxes(tx *store.Tx, session int64, limit int) (more bool, err error) {
	if more, err = b.eraseMailboxes(tx, session, limit); err != nil {
		return false, fmt.Errorf("remove mailboxes: %w", err)
	}
	return more, nil
}

func (b *Broker) eraseMailboxes(tx *store.Tx, session int64, limit int) (more bool, err error) {
	tx.Exec(deleteRerank, session)
	if left, err := tx.ExecPage(limit, someOfSessions[:], session); left == 0 || err != nil {
		return true, err
	}
	boxes, err := store.Collect(tx.Query(selectSomeMailboxes, session, limit),
		func(r *store.Rows) (id int64, err error) { return id, r.Scan(&id) })
	if err != nil || len(boxes) == 0 {
		return false, err
	}
	b.boxIDs.Clear(tx)
	b.audience.Clear(tx)
	b.vacancies.Clear(tx)
	b.gates.Clear(tx)
	page := work.NewPage(tx)
	for _, box := range boxes {
		if page.Full() {
			return true, nil
		}
		if left, err := tx.ExecPage(limit, someOfMailboxes[:], box); left == 0 || err != nil {
			return true, err
		}
		for _, statement := range ofMailboxes {
			tx.Exec(statement, box)
		}
	}
	return len(boxes) == limit, nil
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

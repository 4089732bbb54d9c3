package archive

import (
	"errors"
	"fmt"

	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Retention removes finished messages with all rows that refer to them, and the deletion of a session removes all
// messages. Each table with such rows is in one of the lists below. A message may name 1,000 artifacts and have
// thousands of deliveries, each with up to 100 attempts.

// ofMessages removes messages from one revision to another, with their deliveries and questions.
var ofMessages = [...]string{
	`DELETE FROM questions WHERE message BETWEEN ? AND ?`,
	`DELETE FROM deliveries WHERE message BETWEEN ? AND ?`,
	`DELETE FROM messages WHERE revision BETWEEN ? AND ?`,
}

// detailsOfMessages removes as many of the other rows as the last argument says. The broker keeps a version of an
// artifact as long as one of these rows names it; they have no other effect.
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

// someOfMessages is ofMessages for as many rows as the last argument says. The row of a message is the last one.
var someOfMessages = [...]string{
	`DELETE FROM questions
		WHERE message IN (SELECT message FROM questions WHERE message BETWEEN ? AND ? LIMIT ?)`,
	`DELETE FROM deliveries
		WHERE (message, mailbox) IN (
			SELECT message, mailbox FROM deliveries WHERE message BETWEEN ? AND ? LIMIT ?)`,
	`DELETE FROM messages
		WHERE revision IN (SELECT revision FROM messages WHERE revision BETWEEN ? AND ? LIMIT ?)`,
}

// A row of leftovers is a stretch of removed messages whose details are not all removed yet: see Remove.
const (
	insertLeftover = `INSERT INTO leftovers (first, last) VALUES (?, ?)`
	selectLeftover = `SELECT first, last FROM leftovers ORDER BY first LIMIT 1`
	deleteLeftover = `DELETE FROM leftovers WHERE first = ?`
)

// mostRemoved is how many rows Remove changes. It leaves some of store.MaxChanged for the notes of the archive and for
// leftovers.
const mostRemoved = 9000

// someOfSessions removes some rows that a session has beside messages and mailboxes. Its arguments are the row id of
// the session and the number of rows.
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
	`DELETE FROM halts WHERE agent = ?`,
	`DELETE FROM breakers WHERE agent = ?`,
	`DELETE FROM channels WHERE mailbox = ?`,
	`DELETE FROM mailboxes WHERE id = ?`,
}

const (
	deleteRerank        = `DELETE FROM reranks WHERE session = ?`
	selectSomeMailboxes = `
		SELECT id FROM mailboxes WHERE session = ? LIMIT ?`
)

// Remove removes finished messages that Records has read, with all that belongs to them. Their events stay in the log.
// It leaves details beyond 9,000 rows to Tidy. If one of the messages has changed since, because it was redriven,
// acknowledged late or removed, Remove removes none. Errors: fault.Conflict for such a message.
func (m *Messages) Remove(tx *store.Tx, messages []work.Standing) error {
	for i := range messages {
		same, err := unchanged(tx, &messages[i])
		if err != nil {
			return fmt.Errorf("read the state of messages: %w", err)
		}
		if !same {
			return fault.New(fault.Conflict, "CHANGED", "a message that was to be removed has changed")
		}
	}
	if err := m.removeAll(tx, messages); err != nil {
		return fmt.Errorf("remove messages: %w", err)
	}
	return nil
}

func (m *Messages) removeAll(tx *store.Tx, messages []work.Standing) error {
	limit := mostRemoved
	for i := range messages {
		kept, err := m.log.KeepSent(tx, messages[i].First, messages[i].Last)
		if err != nil {
			return err
		}
		limit -= kept
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

// Tidy removes up to limit rows that have no more use: details of messages that Remove has left, and then producers
// (see producers.Producers). It returns how many it has checked: fewer than limit if there are no more.
func (m *Messages) Tidy(tx *store.Tx, limit int) (int64, error) {
	var first, last int64
	err := tx.QueryRow(selectLeftover).Scan(&first, &last)
	if errors.Is(err, store.ErrNoRows) {
		return m.producers.Forget(tx, limit)
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

// unchanged reports whether all messages of a stretch are finished and have the standing that Records has read.
func unchanged(tx *store.Tx, s *work.Standing) (bool, error) {
	var count, deliveries int
	var finished bool
	var sums [3]int64
	err := tx.QueryRow(selectStretch, s.First, s.Last).
		Scan(&count, &deliveries, &finished, &sums[0], &sums[1], &sums[2])
	return finished && count == s.Messages && deliveries == s.Deliveries && sums == s.Sums, err
}

// Erase removes messages of a session that is being deleted, whatever their standing, with all that belongs to them:
// up to limit rows. It returns how many of the standings it has removed completely. The next call continues with the
// others.
func (m *Messages) Erase(tx *store.Tx, messages []work.Standing, limit int) (removed int, err error) {
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

// EraseMailboxes removes up to limit of the rows that a session has beside its messages: threads and producers, and
// after them mailboxes with their channels and subscriptions. The messages must be removed before. It reports whether
// there may be more.
func (m *Messages) EraseMailboxes(tx *store.Tx, session int64, limit int) (more bool, err error) {
	if more, err = m.eraseMailboxes(tx, session, limit); err != nil {
		return false, fmt.Errorf("remove mailboxes: %w", err)
	}
	return more, nil
}

func (m *Messages) eraseMailboxes(tx *store.Tx, session int64, limit int) (more bool, err error) {
	tx.Exec(deleteRerank, session)
	m.broker.ForgetMailboxes(tx)
	if left, err := tx.ExecPage(limit, someOfSessions[:], session); left == 0 || err != nil {
		return true, err
	}
	boxes, err := store.Collect(tx.Query(selectSomeMailboxes, session, limit),
		func(r *store.Rows) (id int64, err error) { return id, r.Scan(&id) })
	if err != nil || len(boxes) == 0 {
		return false, err
	}
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

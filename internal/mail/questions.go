package mail

import (
	"time"

	"brokerd/internal/content"
	"brokerd/internal/store"
)

// A Question is a message that requires a response and has none.
type Question struct {
	Message
	Deadline time.Time
	Overdue  bool
}

// Subject returns one line that says what the question is about.
func (q *Question) Subject() string { return content.Title(q.Content) }

// OpenQuestions returns open questions of a sender, the first ones alone. now says which questions are overdue.
func OpenQuestions(q store.Querier, session int64, sender string, most int, now time.Time) ([]Question, error) {
	return readQuestions(q.Query(selectAsked, session, sender, most), now)
}

// Owed returns open questions to an agent, the first ones alone: their deliveries are in its mailbox, or it has
// claimed them. mailbox is the agent's own; now says which questions are overdue.
func Owed(q store.Querier, session int64, agent string, mailbox int64, most int, now time.Time) ([]Question, error) {
	return readQuestions(q.Query(selectOwed, session, agent, mailbox, most), now)
}

// OpenOfThread returns open questions of a thread, the first ones alone. now says which questions are overdue.
func OpenOfThread(q store.Querier, session int64, thread string, most int, now time.Time) ([]Question, error) {
	return readQuestions(q.Query(selectOpenOfThread, session, thread, most), now)
}

// readQuestions reads the rows of a query for open questions.
func readQuestions(rows *store.Rows, now time.Time) ([]Question, error) {
	var found []Question
	for rows.Next() {
		var q Question
		var id []byte
		if err := rows.Scan(&q.Revision, &q.Deadline, &id, &q.Sender, &q.CreatedAt, &q.Content); err != nil {
			return nil, err
		}
		copy(q.ID[:], id)
		q.Overdue = !q.Deadline.After(now)
		found = append(found, q)
	}
	return found, rows.Err()
}

// Open questions of one sender, to one agent, and of one thread.
const (
	questionColumns = `
		SELECT q.message, q.deadline, m.id, m.sender, m.created_at, m.content
		FROM questions q JOIN messages m ON m.revision = q.message`
	selectAsked = questionColumns + `
		WHERE q.session = ? AND q.sender = ? AND q.settled IS NULL
		ORDER BY q.message
		LIMIT ?`
	selectOwed = questionColumns + `
		WHERE q.session = ?1 AND q.sender <> ?2 AND q.settled IS NULL AND EXISTS (
			SELECT 1 FROM deliveries d
			WHERE d.message = q.message AND (d.mailbox = ?3 OR d.holder = ?3)
				AND d.arrival IS NOT NULL AND d.state NOT IN (7, 8))
		ORDER BY q.message
		LIMIT ?4`
	selectOpenOfThread = questionColumns + `
		WHERE q.session = ? AND q.thread = ? AND q.settled IS NULL
		ORDER BY q.message
		LIMIT ?`
)

package broker

import (
	"time"

	"brokerd/internal/content"
	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

// Questions keeps the messages that require a response, and the calls that wait for one. The broker calls its methods
// in the writer.
type Questions interface {
	// Asked records a message that requires a response by a deadline.
	Asked(tx *store.Tx, session int64, m *Message, deadline time.Time)
	// Open returns the question that a message is, for the reply to it that is about to be sent; nil if the message
	// requires no response or has one. No call receives a reply that is delivered later.
	Open(tx *store.Tx, message int64, later bool) (OpenQuestion, error)
	// Unanswered ends the calls that wait for replies to a message of which a delivery has just ended, unless a reply
	// can still come.
	Unanswered(tx *store.Tx, message int64) error
}

// An OpenQuestion is a question that a reply settles.
type OpenQuestion interface {
	// Awaited reports whether a call receives the reply.
	Awaited() bool
	// Answered settles the question with its first reply, which the waiting calls receive.
	Answered(tx *store.Tx, session int64, reply *Message) error
}

// UseQuestions gives the broker what keeps questions. Call it before the broker is used.
func (b *Broker) UseQuestions(q Questions) { b.questions = q }

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

// An answer says what a draft answers. It is nil for a draft that answers nothing.
type answer struct {
	to       Message
	question OpenQuestion // that the draft settles; nil if the message is no open question, or the draft is no reply to it
}

// answers finds out what a draft answers. A reply that is delivered later goes to no call that waits now; a directive
// is no reply.
func (s *SendTx) answers(d *Draft) (*answer, error) {
	if d.ReplyTo.Revision == 0 {
		return nil, nil
	}
	m, err := FindMessage(s.tx, s.actor.Session.ID, d.ReplyTo)
	if err != nil {
		return nil, err
	}
	a := &answer{to: m}
	if m.Sender == s.actor.Name || IsDirective(d.Type) {
		return a, nil
	}
	a.question, err = s.questions.Open(s.tx, m.Revision, d.NotBefore.After(s.tx.Now()))
	return a, err
}

// message returns the message that the draft answers; nil if it answers none.
func (a *answer) message() *Message {
	if a == nil {
		return nil
	}
	return &a.to
}

// settles reports whether the draft is the first reply to a question.
func (a *answer) settles() bool { return a != nil && a.question != nil }

// awaited reports whether a call waits for the reply.
func (a *answer) awaited() bool { return a.settles() && a.question.Awaited() }

// awaitedIn reports whether the mailbox is that of an agent whose call waits for the reply.
func (a *answer) awaitedIn(r *recipient) bool {
	return a.awaited() && r.ref == MailboxRef{AgentMailbox, a.to.Sender}
}

// thread returns the thread that is stored with a draft: the given one, or that of the message that it answers. An
// empty thread means that the message starts one.
func (a *answer) thread(d *Draft) string {
	if a == nil || d.Thread != "" {
		return d.Thread
	}
	return a.to.ThreadID()
}

// recipients is route, but refuses a reply to a message of the broker itself, which no agent would read.
func (s *SendTx) recipients(d *Draft, a *answer) ([]*recipient, error) {
	if a != nil && a.to.Sender == identity.System && d.Target == (Target{ToAgent, identity.System}) {
		var own bool
		if err := s.tx.QueryRow(selectIsBrokers, a.to.Revision).Scan(&own); err != nil {
			return nil, err
		}
		if own {
			return nil, fault.New(fault.Precondition, "NOBODY_WAITS",
				"message %d takes no reply: the broker has sent it to inform its recipients; acknowledge it", a.to.Revision)
		}
	}
	return s.route(d)
}

// checkTimes refuses times that have passed or are too far ahead.
func (d *Draft) checkTimes(now time.Time) error {
	switch {
	case d.NotBefore.Sub(now) > MaxTTL:
		return fault.Field("not_before", "is more than 365 days ahead")
	case !d.Response || d.Deadline.IsZero():
		return nil
	case !d.Deadline.After(now):
		return fault.Field("response_deadline", "is not in the future")
	case d.Deadline.Sub(now) > MaxTTL:
		return fault.Field("response_deadline", "is more than 365 days ahead")
	}
	return nil
}

package conversations

import (
	"errors"
	"time"

	"brokerd/internal/mail"
	"brokerd/internal/router"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Asked implements router.Questions.
func (r *Registry) Asked(tx *store.Tx, session int64, m *mail.Message, deadline time.Time) {
	tx.Exec(insertQuestion, m.Revision, session, m.Sender, m.ThreadID(), deadline)
}

// Open implements router.Questions.
func (r *Registry) Open(tx *store.Tx, message int64, later bool) (router.OpenQuestion, error) {
	open, err := isOpen(tx, message)
	if err != nil || !open {
		return nil, err
	}
	q := &openQuestion{registry: r, message: message}
	if !later {
		q.waiting = r.waitingFor(message)
	}
	return q, nil
}

// isOpen reports whether a message requires a response and has none.
func isOpen(q store.Querier, message int64) (bool, error) {
	var settled, reply int64
	err := q.QueryRow(selectQuestion, message).Scan(&settled, &reply)
	if errors.Is(err, store.ErrNoRows) {
		return false, nil
	}
	return settled == 0, err
}

// An openQuestion is a question that a reply settles.
type openQuestion struct {
	registry *Registry
	message  int64
	waiting  []*call // calls that receive the reply
}

// Awaited implements router.OpenQuestion.
func (q *openQuestion) Awaited() bool { return len(q.waiting) > 0 }

// Answered implements router.OpenQuestion.
func (q *openQuestion) Answered(tx *store.Tx, session int64, reply *mail.Message) error {
	tx.Exec(updateSettled, reply.Revision, reply.Revision, q.message)
	q.registry.endWaits(tx, q.message, q.waiting, verdict{reply: reply})
	return q.registry.backlog.Withdraw(tx, session, work.Moot{About: q.message, Type: overdueType})
}

// settle settles an open question without a reply. The calls that wait for one receive the reason.
func (r *Registry) settle(tx *store.Tx, session, message, revision int64, why NoReplyReason) error {
	tx.Exec(updateSettled, revision, nil, message)
	r.endWaits(tx, message, r.waitingFor(message), verdict{none: NoReply{Reason: why}})
	return r.backlog.Withdraw(tx, session, work.Moot{About: message, Type: overdueType})
}

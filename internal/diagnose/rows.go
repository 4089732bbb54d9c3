package diagnose

import (
	"errors"
	"time"

	"brokerd/internal/directory"
	"brokerd/internal/finding"
	"brokerd/internal/mail"
	"brokerd/internal/msgid"
	"brokerd/internal/store"
)

// A rowReader reads the rows of one answer. After the first error it reads nothing more.
type rowReader struct {
	*Examiner
	q     store.Querier
	about finding.Question
	err   error // the first
}

// fail keeps the first error.
func (r *rowReader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// A row is where the columns of a row go.
type row []any

// read reads the first row of a statement. It returns false if there is none, and after an error.
func (r *rowReader) read(to row, query string, args ...any) bool {
	if r.err != nil {
		return false
	}
	err := r.q.QueryRow(query, args...).Scan(to...)
	if errors.Is(err, store.ErrNoRows) {
		return false
	}
	r.err = err
	return err == nil
}

// collect reads all rows of a statement. columns returns where the columns of a row go.
func collect[T any](r *rowReader, columns func(*T) row, query string, args ...any) []T {
	if r.err != nil {
		return nil
	}
	all, err := store.Collect(r.q.Query(query, args...), func(rows *store.Rows) (one T, err error) {
		err = rows.Scan(columns(&one)...)
		return one, err
	})
	r.fail(err)
	return all
}

// find returns a message of the session.
func (r *rowReader) find(ref msgid.Ref) (m mail.Message) {
	if r.err == nil {
		m, r.err = mail.FindMessage(r.q, r.about.Session, ref)
	}
	return m
}

// mailboxID returns the id of an agent's mailbox, 0 if it does not exist yet.
func (r *rowReader) mailboxID(ref mail.MailboxRef) int64 {
	id, err := r.broker.Mailboxes.Find(r.q, r.about.Session, ref)
	r.fail(err)
	return id
}

// reachable returns the mailboxes that an agent may take from. mailbox is its own.
func (r *rowReader) reachable(agent directory.Agent, mailbox int64) []mail.Mailbox {
	boxes, err := r.broker.Mailboxes.Reachable(r.q,
		mail.Actor{Agent: agent, Session: directory.Session{ID: r.about.Session}, Mailbox: mailbox})
	r.fail(err)
	return boxes
}

// waitingIn returns a mailbox's id, 0 if it does not exist yet, and how many messages wait in it.
func (r *rowReader) waitingIn(ref mail.MailboxRef) (id, waiting int64) {
	r.read(row{&id, &waiting}, selectWaitingOf, r.about.Session, int(ref.Kind), ref.Name)
	return id, waiting
}

// A countedBox is a mailbox with the number of messages that wait in it.
type countedBox struct {
	mail.Mailbox
	waiting int64
}

// fullest returns the mailboxes with the most messages that wait, the fullest first.
func (r *rowReader) fullest() []countedBox {
	return collect(r, func(c *countedBox) row { return row{&c.ID, (*int)(&c.Ref.Kind), &c.Ref.Name, &c.waiting} },
		selectFullest, r.about.Session, mostBoxes)
}

// A question is one whose deadline has passed and that has no answer.
type question struct {
	message  int64
	deadline time.Time
}

// questions reads the rows of one of the selectLate statements.
func (r *rowReader) questions(query string, args ...any) []question {
	return collect(r, func(q *question) row { return row{&q.message, &q.deadline} }, query, args...)
}

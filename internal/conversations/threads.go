package conversations

import (
	"context"
	"errors"
	"strconv"
	"time"

	"brokerd/internal/broker"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/mail"
	"brokerd/internal/msgid"
	"brokerd/internal/store"
)

const (
	maxParticipants = 1000 // named in one answer
	maxQuestions    = 100  // likewise
)

// A Thread is the state of a conversation.
type Thread struct {
	Name         string
	Messages     int64
	Participants []string // sorted, at most maxParticipants
	First, Last  time.Time
	Open         []mail.Question // oldest first, at most maxQuestions
	Outcome      string          // empty unless it is resolved
	ResolvedBy   string
	ResolvedAt   time.Time

	FirstMessage, LastMessage *ThreadMessage // in a list of conversations
}

// threadArgs are the arguments of the queries that read the messages of a thread, and more that come after them.
func threadArgs(session int64, name string, more ...any) []any {
	first, id := broker.ThreadStart(name)
	return append([]any{session, name, first, id}, more...)
}

// Thread returns the state of a conversation; nil if no message belongs to it.
func (r *Registry) Thread(q store.Querier, session int64, name string) (*Thread, error) {
	t := &Thread{Name: name}
	if err := q.QueryRow(selectThread, threadArgs(session, name)...).Scan(&t.Messages, &t.First, &t.Last); err != nil {
		return nil, err
	}
	if t.Messages == 0 {
		return nil, nil // which is no error in a list
	}
	rows := q.Query(selectParticipants, threadArgs(session, name, maxParticipants)...)
	for rows.Next() {
		var participant string
		if err := rows.Scan(&participant); err != nil {
			return nil, err
		}
		t.Participants = append(t.Participants, participant)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	return t, r.standing(q, session, t, maxQuestions)
}

// standing fills in the outcome of a conversation and its oldest open questions.
func (r *Registry) standing(q store.Querier, session int64, t *Thread, questions int) error {
	err := q.QueryRow(selectOutcome, session, t.Name).Scan(&t.Outcome, &t.ResolvedBy, &t.ResolvedAt)
	if err != nil && !errors.Is(err, store.ErrNoRows) {
		return err
	}
	t.Open, err = mail.OpenOfThread(q, session, t.Name, questions, r.clock.Now())
	return err
}

// Resolve notes the outcome of a thread, in place of an earlier one, and settles its open questions. The id of one of
// its messages also names the thread. It returns how many questions it settled. Errors: fault.NotFound if no message
// belongs to the thread, fault.Denied for an agent that neither sent nor received one of its messages.
func (r *Registry) Resolve(
	ctx context.Context, c identity.Caller, req idempotency.Request, thread, outcome string,
) (int, int64, error) {
	var answer struct {
		Settled  int
		Revision int64
	}
	err := req.Drain(ctx, r.store, &answer, func(tx *store.Tx) error {
		a, err := r.broker.Mailboxes.Acting(tx, c)
		if err != nil {
			return err
		}
		name, err := threadNamed(tx, a.Session.ID, thread)
		if err != nil {
			return err
		}
		if err := r.mayResolve(tx, a, name); err != nil {
			return err
		}
		open, err := store.Collect(tx.Query(selectOpenOfThread, a.Session.ID, name),
			func(rows *store.Rows) (question int64, err error) { return question, rows.Scan(&question) })
		if err != nil {
			return err
		}
		entry := a.Event("thread.resolved")
		entry.Summary = "thread " + name + " is resolved: " + events.OneLine(outcome)
		entry.Related = []string{name}
		entry.Details = `{"thread":` + events.Quote(name) + `,"outcome":` + events.Quote(outcome) +
			`,"settled":` + strconv.Itoa(len(open)) + `}`
		answer.Settled = len(open)
		if answer.Revision, err = r.log.Append(tx, entry); err != nil {
			return err
		}
		for _, question := range open {
			if err := r.settle(tx, a.Session.ID, question, answer.Revision, QuestionResolved); err != nil {
				return err
			}
		}
		tx.Exec(upsertOutcome, a.Session.ID, name, outcome, a.Name, tx.Now())
		return nil
	})
	return answer.Settled, answer.Revision, err
}

// threadNamed returns the name of the thread that is meant: the given one, or that of the message with this id.
func threadNamed(q store.Querier, session int64, thread string) (string, error) {
	var messages int64
	var first, last time.Time
	err := q.QueryRow(selectThread, threadArgs(session, thread)...).Scan(&messages, &first, &last)
	if err != nil || messages > 0 {
		return thread, err
	}
	if ref, ok := msgid.ParseRef(thread); ok && ref.Claim == 0 {
		m, err := mail.FindMessage(q, session, ref)
		if fault.KindOf(err) != fault.NotFound {
			return m.ThreadID(), err
		}
	}
	return "", fault.Missing("thread", thread, "no message of this session belongs to a thread %q", thread)
}

// mayResolve refuses an agent that takes no part in a thread.
func (r *Registry) mayResolve(q store.Querier, a mail.Actor, thread string) error {
	if a.System() {
		return nil
	}
	mailbox, err := r.broker.Mailboxes.Find(q, a.Session.ID, mail.AgentRef(a.Name))
	if err != nil {
		return err
	}
	var takesPart bool
	args := threadArgs(a.Session.ID, thread, a.Name, mailbox)
	if err := q.QueryRow(existsParticipant, args...).Scan(&takesPart); err != nil || takesPart {
		return err
	}
	return fault.New(fault.Denied, "NOT_A_PARTICIPANT",
		"agent %q has neither sent nor got a message of thread %q: only who has, or an operator, may resolve it",
		a.Name, thread)
}

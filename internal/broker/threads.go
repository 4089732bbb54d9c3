package broker

import (
	"context"
	"errors"
	"strconv"
	"time"

	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

const (
	maxParticipants = 1000 // named in one answer
	maxQuestions    = 100  // likewise
)

// A Thread is how a conversation stands.
type Thread struct {
	Name         string
	Messages     int64
	Participants []string // sorted, at most maxParticipants
	First, Last  time.Time
	Open         []Question // oldest first, at most maxQuestions
	Outcome      string     // empty unless it is resolved
	ResolvedBy   string
	ResolvedAt   time.Time

	FirstMessage, LastMessage *ThreadMessage // in a list of conversations
}

// threadArgs are the arguments of the queries that look at the messages of a thread, and more that come after them.
func threadArgs(session int64, name string, more ...any) []any {
	first, id := ThreadStart(name)
	return append([]any{session, name, first, id}, more...)
}

// ThreadStart returns revision and id of the message that a thread is named after. That message
// does not name the thread itself. The revision is -1 if the thread has another name.
func ThreadStart(name string) (revision int64, id []byte) {
	if ref, ok := ParseRef(name); ok && ref.ID != (ID{}) && ref.ID.String() == name {
		return ref.Revision, ref.ID[:]
	}
	return -1, nil
}

// ThreadOf returns the state of a conversation; nil if no message belongs to it.
func (b *Broker) ThreadOf(q store.Querier, session int64, name string) (*Thread, error) {
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
	return t, b.standing(q, session, t, maxQuestions)
}

// standing fills in the outcome of a conversation and its oldest open questions.
func (b *Broker) standing(q store.Querier, session int64, t *Thread, questions int) error {
	err := q.QueryRow(selectOutcome, session, t.Name).Scan(&t.Outcome, &t.ResolvedBy, &t.ResolvedAt)
	if err != nil && !errors.Is(err, store.ErrNoRows) {
		return err
	}
	t.Open, err = readQuestions(q.Query(selectOpenQuestions, session, t.Name, questions), b.clock.Now())
	return err
}

// OpenQuestions returns open questions of a sender, the first ones alone. now says which questions are overdue.
func OpenQuestions(q store.Querier, session int64, sender string, most int, now time.Time) ([]Question, error) {
	return readQuestions(q.Query(selectAsked, session, sender, most), now)
}

// Owed returns open questions to an agent, the first ones alone: their deliveries are in its mailbox, or it has
// claimed them. mailbox is the agent's own; now says which questions are overdue.
func Owed(q store.Querier, session int64, agent string, mailbox int64, most int, now time.Time) ([]Question, error) {
	return readQuestions(q.Query(selectOwed, session, agent, mailbox, most), now)
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

// Resolve notes the outcome of a thread, in place of an earlier one, and settles its open questions. The thread may also be named
// by the id of one of its messages. It returns how many questions it settled. Errors: fault.NotFound if no message belongs to the thread,
// fault.Denied for an agent that neither sent nor got one of its messages.
func (b *Broker) Resolve(ctx context.Context, c identity.Caller, req idempotency.Request, thread, outcome string) (int, int64, error) {
	var answer struct {
		Settled  int
		Revision int64
	}
	err := b.Change(ctx, req, &answer, func(tx *store.Tx) error {
		a, err := b.Acting(tx, c)
		if err != nil {
			return err
		}
		name, err := threadNamed(tx, a.Session.ID, thread)
		if err != nil {
			return err
		}
		if err := b.mayResolve(tx, a, name); err != nil {
			return err
		}
		var open []int64
		rows := tx.Query(selectOpenOfThread, a.Session.ID, name)
		for rows.Next() {
			var question int64
			if err := rows.Scan(&question); err != nil {
				return err
			}
			open = append(open, question)
		}
		if err := rows.Err(); err != nil {
			return err
		}
		entry := a.Event("thread.resolved")
		entry.Summary = "thread " + name + " is resolved: " + OneLine(outcome)
		entry.Related = []string{name}
		entry.Details = `{"thread":` + Quote(name) + `,"outcome":` + Quote(outcome) + `,"settled":` + strconv.Itoa(len(open)) + `}`
		answer.Settled = len(open)
		if answer.Revision, err = b.log.Append(tx, entry); err != nil {
			return err
		}
		for _, question := range open {
			if err := b.settleQuestion(tx, a.Session.ID, question, answer.Revision, QuestionResolved); err != nil {
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
	if err := q.QueryRow(selectThread, threadArgs(session, thread)...).Scan(&messages, &first, &last); err != nil || messages > 0 {
		return thread, err
	}
	if ref, ok := ParseRef(thread); ok && ref.Claim == 0 {
		m, err := FindMessage(q, session, ref)
		if fault.KindOf(err) != fault.NotFound {
			return m.ThreadID(), err
		}
	}
	return "", fault.Missing("thread", thread, "no message of this session belongs to a thread %q", thread)
}

func (b *Broker) mayResolve(q store.Querier, a Actor, thread string) error {
	if a.System() {
		return nil
	}
	mailbox, err := b.FindMailbox(q, a.Session.ID, MailboxRef{AgentMailbox, a.Name})
	if err != nil {
		return err
	}
	var takesPart bool
	if err := q.QueryRow(existsParticipant, threadArgs(a.Session.ID, thread, a.Name, mailbox)...).Scan(&takesPart); err != nil || takesPart {
		return err
	}
	return fault.New(fault.Denied, "NOT_A_PARTICIPANT", "agent %q has neither sent nor got a message of thread %q: only who has, or an operator, may resolve it",
		a.Name, thread)
}

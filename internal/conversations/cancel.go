package conversations

import (
	"context"
	"fmt"
	"strconv"

	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/finding"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/mail"
	"brokerd/internal/msgid"
	"brokerd/internal/store"
)

// A Cancellation counts what became of the deliveries of a cancelled message.
type Cancellation struct {
	Cancelled int
	Kept      int // claimed or finished
	Revision  int64
}

// Cancel cancels the deliveries of a message that are not claimed, and settles the message if it is an open question.
// Errors: fault.NotFound, and fault.Denied for a caller other than the sender and an operator.
func (r *Registry) Cancel(
	ctx context.Context, c identity.Caller, req idempotency.Request, ref msgid.Ref, reason string,
) (Cancellation, error) {
	var answer Cancellation
	err := req.Drain(ctx, r.store, &answer, func(tx *store.Tx) error {
		a, err := r.broker.Mailboxes.Acting(tx, c)
		if err != nil {
			return err
		}
		m, err := sent(tx, a, ref, "cancel it")
		if err != nil {
			return err
		}
		waiting, kept, err := unclaimedOf(tx, m.Revision)
		if err != nil {
			return err
		}
		question, err := isOpen(tx, m.Revision)
		if err != nil {
			return err
		}
		answer = Cancellation{Cancelled: len(waiting), Kept: kept, Revision: r.store.Revision()}
		if len(waiting) == 0 && !question {
			return nil
		}
		s := r.broker.NewSettleTx(tx, a)
		revision, err := s.Append(cancelled(a, m.Revision, len(waiting), reason))
		if err != nil {
			return err
		}
		if question {
			if err := r.settle(tx, a.Session.ID, m.Revision, revision, QuestionCancelled); err != nil {
				return err
			}
		}
		for i := range waiting {
			d := &waiting[i]
			tx.Exec(updateCancelled, tx.Now(), m.Revision, d.mailbox)
			if d.state.Waits() {
				s.Leave(d.mailbox, 1)
			}
			if d.ordering == "" || d.state == mail.Blocked {
				continue
			}
			if err := s.PromoteNext(d.mailbox, d.ordering); err != nil {
				return err
			}
		}
		answer.Revision, err = s.Finish()
		return err
	})
	return answer, err
}

// cancelled returns the event that a message is cancelled in so many mailboxes.
func cancelled(a mail.Actor, message int64, mailboxes int, reason string) events.Entry {
	entry := a.Event("message.cancelled")
	entry.Summary = fmt.Sprintf("message %d cancelled for %s", message, finding.Count(mailboxes, "recipient"))
	entry.Related = []string{strconv.FormatInt(message, 10)}
	if reason != "" {
		entry.Summary += ": " + events.OneLine(reason)
		entry.Details = `{"reason":` + events.Quote(reason) + `}`
	}
	return entry
}

// A delivery is one that can be cancelled.
type delivery struct {
	mailbox  int64
	state    mail.State
	ordering string // its ordering key
}

// unclaimedOf returns the deliveries of a message that wait or are unread notices, and how many others there are.
func unclaimedOf(q store.Querier, message int64) (waiting []delivery, others int, err error) {
	rows := q.Query(selectMessageStates, message)
	for rows.Next() {
		var d delivery
		var state int
		if err := rows.Scan(&d.mailbox, &state, &d.ordering); err != nil {
			return nil, 0, err
		}
		if d.state = mail.State(state); unclaimed(d.state) {
			waiting = append(waiting, d)
		} else {
			others++
		}
	}
	return waiting, others, rows.Err()
}

// sent returns a message that the actor sent, or any message for an operator. Errors: fault.NotFound, and fault.Denied
// for any other agent; what names the action that it may not do.
func sent(q store.Querier, a mail.Actor, ref msgid.Ref, what string) (mail.Message, error) {
	m, err := mail.FindMessage(q, a.Session.ID, ref)
	if err != nil {
		return m, err
	}
	if !a.System() && a.Name != m.Sender {
		return m, fault.New(fault.Denied, "NOT_THE_SENDER", "message %s was sent by %q: only its sender or an operator may %s",
			ref.Text, m.Sender, what)
	}
	return m, nil
}

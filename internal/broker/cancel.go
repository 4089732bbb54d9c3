package broker

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

// A Cancellation counts what became of the deliveries of a withdrawn message.
type Cancellation struct {
	Cancelled int
	Kept      int // claimed or finished
	Revision  int64
}

// Cancel withdraws the deliveries of a message that nobody has claimed. Errors: fault.NotFound, and fault.Denied for anybody
// but the sender and an operator.
func (b *Broker) Cancel(ctx context.Context, c identity.Caller, req idempotency.Request, ref Ref, reason string) (Cancellation, error) {
	var answer Cancellation
	err := b.Change(ctx, req, &answer, func(tx *store.Tx) error {
		a, err := b.Acting(tx, c)
		if err != nil {
			return err
		}
		m, err := a.Sent(tx, ref, "cancel it")
		if err != nil {
			return err
		}
		s := b.NewSettleTx(tx, a)
		waiting, kept, err := unclaimed(tx, m.Revision)
		if err != nil {
			return err
		}
		question, err := b.questions.Open(tx, m.Revision, false)
		if err != nil {
			return err
		}
		answer = Cancellation{Cancelled: len(waiting), Kept: kept, Revision: b.store.Revision()}
		if len(waiting) == 0 && question == nil {
			return nil
		}
		entry := a.Event("message.cancelled")
		entry.Summary = fmt.Sprintf("message %d cancelled for %s", m.Revision, counted(len(waiting), "recipient"))
		entry.Related = []string{strconv.FormatInt(m.Revision, 10)}
		if reason != "" {
			entry.Summary += ": " + OneLine(reason)
			entry.Details = `{"reason":` + Quote(reason) + `}`
		}
		if s.last, err = b.log.Append(tx, entry); err != nil {
			return err
		}
		if question != nil {
			if err := question.Cancelled(tx, a.Session.ID, s.last); err != nil {
				return err
			}
		}
		for _, h := range waiting {
			tx.Exec(updateFinish, int(Cancelled), tx.Now(), h.message, h.mailbox)
			if h.state.Waits() {
				s.left[h.mailbox]--
			}
			if err := s.promote(h); err != nil {
				return err
			}
		}
		answer.Revision, err = s.Finish()
		return err
	})
	return answer, err
}

// unclaimed returns the deliveries of a message that wait or are unread notices, and how many
// others there are.
func unclaimed(q store.Querier, message int64) (waiting []*held, others int, err error) {
	rows := q.Query(selectMessageStates, message)
	for rows.Next() {
		h := &held{}
		var state int
		if err := rows.Scan(&h.message, &h.mailbox, &state, &h.ordering); err != nil {
			return nil, 0, err
		}
		if h.state = State(state); h.state.Waits() || h.state == NoticeUnread {
			waiting = append(waiting, h)
		} else {
			others++
		}
	}
	return waiting, others, rows.Err()
}

// heldBy returns claims of an agent, of whichever consumer, that it made before a time: at most limit.
func heldBy(q store.Querier, agent int64, until time.Time, limit int) ([]*held, error) {
	rows := q.Query(selectHeldBy, agent, until, limit)
	defer rows.Close()
	var found []*held
	for rows.Next() {
		h := &held{state: Claimed, holder: agent}
		if err := rows.Scan(&h.message, &h.mailbox, &h.rank, &h.claims, &h.attempts, &h.maxAttempts, &h.consumer,
			&h.claimedAt, &h.claimFor, &h.expiresAt, &h.ordering, &h.queue); err != nil {
			return nil, err
		}
		found = append(found, h)
	}
	return found, rows.Err()
}

// Sent returns a message that the actor sent, or any for an operator. Errors: fault.NotFound, and fault.Denied for everybody else, who
// may not do what is to be done with it.
func (a Actor) Sent(q store.Querier, ref Ref, what string) (Message, error) {
	m, err := FindMessage(q, a.Session.ID, ref)
	if err != nil {
		return m, err
	}
	if !a.System() && a.Name != m.Sender {
		return m, fault.New(fault.Denied, "NOT_THE_SENDER", "message %s was sent by %q: only its sender or an operator may %s", ref.Text, m.Sender, what)
	}
	return m, nil
}

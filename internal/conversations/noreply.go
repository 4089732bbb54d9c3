package conversations

import (
	"errors"

	"brokerd/internal/mail"
	"brokerd/internal/store"
)

// A NoReplyReason is why no reply to a question can come any more. The numbers are those of the API.
type NoReplyReason int

// The reasons. StillOpen: the wait was over before.
const (
	StillOpen NoReplyReason = iota
	QuestionDead
	QuestionExpired
	QuestionCancelled
	QuestionAcked // without a reply
	QuestionResolved
)

// A NoReply says why no reply to a question can come any more.
type NoReply struct {
	Reason  NoReplyReason
	Mailbox string // whose copy ended last; empty if the question itself has ended
	Error   string // of the last attempt, if the copy is a dead letter
}

// Unanswered implements broker.Questions. It ends the calls of Ask for a message of which a copy has just ended, if no
// copy is open any more. The same function may still send the reply, so the calls end after the commit.
func (r *Registry) Unanswered(tx *store.Tx, message int64) error {
	if len(r.calls.Get(message)) == 0 {
		return nil
	}
	none, err := noReplyTo(tx, message)
	if err != nil || none.Reason == StillOpen {
		return err
	}
	tx.OnCommit(func() {
		if waiting := r.waitingFor(message); len(waiting) > 0 {
			r.calls.Forget(message)
			verdict{none: none}.send(waiting)
		}
	})
	return nil
}

// noReplyTo returns why no reply to a question can come any more: how the last of its copies ended. It reads one row
// per recipient.
func noReplyTo(q store.Querier, message int64) (NoReply, error) {
	open, err := isOpen(q, message)
	if err != nil || !open {
		return NoReply{}, err
	}
	var state, mailbox int64
	err = q.QueryRow(selectLastEnded, message).Scan(&state, &mailbox)
	if errors.Is(err, store.ErrNoRows) {
		return NoReply{}, nil
	}
	if err != nil {
		return NoReply{}, err
	}
	var none NoReply
	switch mail.State(state) {
	case mail.Acked:
		none.Reason = QuestionAcked
	case mail.Dead:
		none.Reason = QuestionDead
		err = q.QueryRow(selectLastError, message, mailbox).Scan(&none.Error)
		if errors.Is(err, store.ErrNoRows) {
			err = nil
		}
	case mail.Expired:
		none.Reason = QuestionExpired
	case mail.Cancelled:
		none.Reason = QuestionCancelled
	default: // a copy is open
		return NoReply{}, nil
	}
	if err == nil {
		none.Mailbox, err = mail.MailboxName(q, mailbox)
	}
	return none, err
}

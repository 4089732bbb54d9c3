package broker

import (
	"brokerd/internal/events"
	"brokerd/internal/mail"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// NoteDelivered records that an agent has received messages in its own mailbox, and finishes those that are notices.
func (b *Broker) NoteDelivered(tx *store.Tx, a mail.Actor, messages, notices []int64) error {
	received := 0
	for _, message := range messages {
		n, err := tx.ExecCount(updateDelivered, tx.Now(), message, a.Mailbox)
		if err != nil {
			return err
		}
		if n == 0 {
			continue
		}
		received++
		if err := b.Counters.count(tx, a.Session, isDelivered, message); err != nil {
			return err
		}
	}
	FinishNotices(tx, a.Mailbox, notices)
	if len(messages) > 0 {
		tx.OnCommit(func() { b.Counters.Worked(a, 0, received, 0) })
	}
	return nil
}

// NoteRead records that an agent has read messages in its own mailbox, and finishes those that are notices. fresh are
// those that it had not received before.
func (b *Broker) NoteRead(tx *store.Tx, a mail.Actor, messages, fresh, notices []int64) error {
	for _, message := range messages {
		tx.Exec(updateRead, tx.Now(), tx.Now(), message, a.Mailbox)
	}
	FinishNotices(tx, a.Mailbox, notices)
	tx.OnCommit(func() { b.Counters.Worked(a, 0, len(fresh), 0) })
	return b.Counters.count(tx, a.Session, isDelivered, fresh...)
}

// ReadNotices returns the oldest unread notices in an agent's mailbox, at most MostNotices, and marks them read.
func ReadNotices(tx *store.Tx, log *events.Log, a mail.Actor) ([]work.UnreadNotice, error) {
	unread, revisions, err := mail.ScanNotices(tx.Query(selectNotices, a.Mailbox, mail.MostNotices))
	if err != nil || len(unread) == 0 {
		return nil, err
	}
	FinishNotices(tx, a.Mailbox, revisions)
	entry := a.Event("message.read")
	entry.Severity = events.Debug
	entry.Summary = events.Counted(len(unread), "notice") + " read"
	entry.Details = events.RevisionsJSON("messages", revisions)
	_, err = log.Append(tx, entry)
	return unread, err
}

// FinishNotices finishes those of the messages in an agent's mailbox that are unread notices.
func FinishNotices(tx *store.Tx, mailbox int64, messages []int64) {
	for _, message := range messages {
		tx.Exec(updateNoticeRead, mailbox, tx.Now(), message)
	}
}

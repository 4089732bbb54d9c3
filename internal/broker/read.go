package broker

import "brokerd/internal/store"

// NoteDelivered records that an agent has received messages in its own mailbox, and finishes those that are notices.
func (b *Broker) NoteDelivered(tx *store.Tx, a Actor, messages, notices []int64) error {
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
		tx.OnCommit(func() { b.Counters.worked(a, 0, received, 0) })
	}
	return nil
}

// NoteRead records that an agent has read messages in its own mailbox, and finishes those that are notices. fresh are
// those that it had not received before.
func (b *Broker) NoteRead(tx *store.Tx, a Actor, messages, fresh, notices []int64) error {
	for _, message := range messages {
		tx.Exec(updateRead, tx.Now(), tx.Now(), message, a.Mailbox)
	}
	FinishNotices(tx, a.Mailbox, notices)
	tx.OnCommit(func() { b.Counters.worked(a, 0, len(fresh), 0) })
	return b.Counters.count(tx, a.Session, isDelivered, fresh...)
}

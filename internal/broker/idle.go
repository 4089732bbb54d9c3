package broker

import (
	"strconv"

	"brokerd/internal/mail"
	"brokerd/internal/store"
)

// An Idle is a consumer that waits for work from a mailbox. The check of sleeping mailboxes asks it what it lacks.
type Idle struct {
	waiters  *Waiters
	consumer *consumer
	agent    string
	box      mail.Mailbox
}

// Idle returns the consumers that wait, once for each mailbox that they take from.
func (w *Waiters) Idle() []Idle {
	w.mu.Lock()
	defer w.mu.Unlock()
	var idle []Idle
	for mailbox, l := range w.lines {
		for _, c := range l.consumers {
			if !c.gone.Load() {
				idle = append(idle, Idle{w, c, c.actor.Name, c.boxes[indexID(c.boxes, mailbox)]})
			}
		}
	}
	return idle
}

// Mailbox returns the mailbox.
func (i Idle) Mailbox() mail.Mailbox { return i.box }

// String names the consumer.
func (i Idle) String() string {
	return "agent " + strconv.Quote(i.agent) + consumerNote(i.consumer.name)
}

// First returns the message of the first ready delivery in the mailbox that the consumer takes, 0 if there is none
// among the first 1,000.
func (i Idle) First(q store.Querier) (message int64, err error) {
	self := ""
	if i.box.Ref.Kind != mail.AgentMailbox {
		self = i.agent // never its own ONE messages
	}
	rows := q.Query(selectFirstReady, i.consumer.filter.args([]any{i.box.ID}, self, 1)...)
	for rows.Next() {
		if err := rows.Scan(&message); err != nil {
			return 0, err
		}
	}
	return message, rows.Err()
}

// Lacks reports whether the delivery of a message that First has returned is ready, and the consumer may have it, but
// does not. It leaves out an agent whose gate allows one probe, because the time of a probe comes before dispatch gives
// it. It finds nothing while a dispatch is to run again, because it has failed: that gives the delivery.
func (i Idle) Lacks(tx *store.Tx, message int64) (bool, error) {
	w, c := i.waiters, i.consumer
	w.mu.Lock() // no stream writes meanwhile
	waits := c.entered && indexID(c.boxes, i.box.ID) >= 0 && c.capacity() > 0
	w.mu.Unlock()
	if !waits || w.changes.Owed() || w.retry.Get() != nil {
		return false, nil
	}
	var ready bool
	at := place{message: message}
	if err := tx.QueryRow(selectIsReady, message, i.box.ID, tx.Now()).Scan(&ready, &at.rank); err != nil || !ready {
		return false, err
	}
	p, err := w.gates.Pass(tx, c.actor.Mailbox)
	return p == Everything || at.directive(), err
}

const (
	selectFirstReady = `
		SELECT d.message
		FROM (
			SELECT rank, message FROM deliveries WHERE mailbox = ? AND state = 1 ORDER BY rank, message LIMIT 1000) AS d
			JOIN messages m ON m.revision = d.message
		WHERE ` + filtered + `
		ORDER BY d.rank, d.message
		LIMIT ?`
	selectIsReady = `
		SELECT COUNT(*), COALESCE(MIN(rank), 0) FROM deliveries
		WHERE message = ? AND mailbox = ? AND state = 1 AND (expires_at IS NULL OR expires_at > ?)`
)

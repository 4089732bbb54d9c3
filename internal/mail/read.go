package mail

import (
	"errors"
	"math"
	"time"

	"brokerd/internal/fault"
	"brokerd/internal/msgid"
	"brokerd/internal/store"
)

// Limits of requests and answers that the rules of the broker need too.
const (
	MaxBatch  = 1000                 // items of one call
	MaxTypes  = 100                  // types, of a filter and of a summary
	MaxTTL    = 365 * 24 * time.Hour // how far ahead a message may expire, become due, or need its response
	MaxAnswer = 3 << 20              // bytes of messages in one answer

	// maxDeliveries is how many deliveries one answer names.
	maxDeliveries = 10_000
)

// FindMessage returns a message of the session; fault.NotFound if there is none.
func FindMessage(q store.Querier, session int64, ref msgid.Ref) (Message, error) {
	m := Message{Revision: ref.Revision}
	var id []byte
	var in int64
	err := q.QueryRow(selectMessage, ref.Revision).Scan(&in, &id, &m.Sender, &m.SenderRole, &m.CreatedAt, &m.ExpiresAt,
		&m.Thread, &m.Content)
	copy(m.ID[:], id)
	if errors.Is(err, store.ErrNoRows) || err == nil && (in != session || !ref.Names(m.ID)) {
		return Message{}, fault.Missing("message", ref.Text, "there is no message %s in this session", ref.Text)
	}
	return m, err
}

// DeliveriesOf returns the deliveries of a message with their history and offers: all (only is 0), or that in one
// mailbox.
func DeliveriesOf(q store.Querier, message, only int64) ([]Delivery, error) {
	first, last := only, only
	if only == 0 {
		last = math.MaxInt64
	}
	rows := q.Query(selectDeliveries, message, first, last, maxDeliveries)
	var found []Delivery
	at := map[int64]int{}
	for rows.Next() {
		var d Delivery
		var mailbox int64
		var ref MailboxRef
		var kind, state int
		if err := rows.Scan(&mailbox, &kind, &ref.Name, &state, &d.Arrival, &d.Claims, &d.Attempts, &d.MaxAttempts,
			&d.Holder, &d.Consumer, &d.ClaimedAt, &d.DeliveredAt, &d.ReadAt, &d.FinishedAt, &d.DueAt); err != nil {
			return nil, err
		}
		ref.Kind = MailboxKind(kind)
		d.Mailbox, d.State = ref.String(), State(state)
		at[mailbox] = len(found)
		found = append(found, d)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	rows = q.Query(selectAttempts, message, first, last)
	for rows.Next() {
		var mailbox int64
		var t Attempt
		if err := rows.Scan(&mailbox, &t.Number, &t.Agent, &t.Consumer, &t.ClaimedAt, &t.EndedAt, &t.Error); err != nil {
			return nil, err
		}
		if i, ok := at[mailbox]; ok {
			found[i].History = append(found[i].History, t)
		}
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	return found, offersOf(q, message, first, last, at, found)
}

// FindItems returns given messages of the actor's own mailbox, finished ones too. It stops before MaxAnswer bytes of
// messages, unless the first alone has more. Errors: fault.NotFound for a message that is not in this mailbox.
func FindItems(q store.Querier, a Actor, given []msgid.Ref) ([]Item, error) {
	var items []Item
	bytes := 0
	for _, ref := range given {
		m, err := FindMessage(q, a.Session.ID, ref)
		if err != nil {
			return nil, err
		}
		var found []Delivery
		if a.Mailbox != 0 {
			if found, err = DeliveriesOf(q, m.Revision, a.Mailbox); err != nil {
				return nil, err
			}
		}
		if len(found) == 0 {
			return nil, fault.Missing("message", ref.Text, "message %s is not in the mailbox of agent %q", ref.Text, a.Name)
		}
		if bytes += len(m.Content); bytes > MaxAnswer && len(items) > 0 {
			break
		}
		items = append(items, Item{Message: m, Delivery: found[0]})
	}
	return items, nil
}

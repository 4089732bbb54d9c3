package broker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

// mostResends is how often a delivery that nobody notices arrives anew by itself.
const mostResends = 5

// remind has a delivery arrive anew if nobody notices it in time.
func (s *sending) remind(r *room, d *Draft, m *Message) {
	due := m.CreatedAt
	if d.NotBefore.After(due) {
		due = d.NotBefore
	}
	due = due.Add(d.ResendAfter)
	s.due = Earliest(s.due, due)
	s.tx.Exec(insertResend, m.Revision, r.id, d.ResendAfter, due)
}

// A resend is a delivery whose time to arrive anew has come, as its row and its delivery say.
type resend struct {
	key
	after   time.Duration
	times   int
	session int64
	state   State
	claims  int
	readAt  time.Time
	arrival int64
}

// sendAgain has deliveries arrive anew that were neither read nor claimed in time.
func (b *Broker) sendAgain(tx *store.Tx, ready *readied) error {
	var found []resend
	rows := tx.Query(selectResends, tx.Now(), calendarPage)
	for rows.Next() {
		var r resend
		var state int
		if err := rows.Scan(&r.message, &r.mailbox, &r.after, &r.times, &r.session, &state, &r.claims, &r.readAt, &r.arrival); err != nil {
			return err
		}
		r.state = State(state)
		found = append(found, r)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	for i := range found {
		r := &found[i]
		noticed, err := b.noticed(tx, r)
		if err != nil {
			return err
		}
		if !noticed && r.arrival > 0 { // otherwise an earlier one of its ordering key still hides it
			if err := b.arriveAnew(tx, r); err != nil {
				return err
			}
			ready.seen(r.mailbox)
			r.times++
		}
		if noticed || r.times == mostResends {
			tx.Exec(deleteResend, r.message, r.mailbox)
		} else {
			tx.Exec(updateResend, tx.Now().Add(r.after), r.times, r.message, r.mailbox)
		}
	}
	return nil
}

// noticed reports whether a delivery need not arrive anew: it was read, claimed or finished, or its session is closed.
func (b *Broker) noticed(tx *store.Tx, r *resend) (bool, error) {
	if !r.state.Waits() || r.claims > 0 || !r.readAt.IsZero() {
		return true, nil
	}
	session, err := b.dir.ByID(tx, r.session)
	if errors.Is(err, store.ErrNoRows) {
		return true, nil
	}
	return session.Closed, err
}

func (b *Broker) arriveAnew(tx *store.Tx, r *resend) error {
	mailbox, err := MailboxName(tx, r.mailbox)
	if err != nil {
		return err
	}
	arrival, err := b.resent(tx, system(r.session), r.message, []string{mailbox})
	if err != nil {
		return err
	}
	tx.Exec(updateArrival, arrival, r.message, r.mailbox)
	return nil
}

// resent appends the event that a message arrives anew in mailboxes, and returns its revision, which is the new arrival.
func (b *Broker) resent(tx *store.Tx, a Actor, message int64, mailboxes []string) (int64, error) {
	entry := a.Event("message.resent")
	entry.Summary = fmt.Sprintf("message %d arrives anew in %s", message, mailboxes[0])
	if more := len(mailboxes) - 1; more > 0 {
		entry.Summary += " and " + counted(more, "other")
	}
	entry.Related = []string{strconv.FormatInt(message, 10)}
	var details strings.Builder
	details.WriteString(`{"mailboxes":[`)
	for i, name := range mailboxes[:min(namedRecipients, len(mailboxes))] {
		if i > 0 {
			details.WriteByte(',')
		}
		writeJSON(&details, name)
	}
	details.WriteByte(']')
	writeNumber(&details, `,"count":`, len(mailboxes))
	details.WriteByte('}')
	entry.Details = details.String()
	return b.log.Append(tx, entry)
}

// Resend has a message arrive anew, as unread, in the mailboxes of the agents that have not finished it and where nobody has claimed
// it: in all of them, or only in those given. It returns in how many. Errors: fault.NotFound for a message that does not exist
// or that a mailbox never got, fault.Denied for anybody but the sender and an operator.
func (b *Broker) Resend(ctx context.Context, c identity.Caller, req idempotency.Request, ref Ref, mailboxes []string) (int, int64, error) {
	var answer struct {
		Resent   int
		Revision int64
	}
	err := b.Change(ctx, req, &answer, func(tx *store.Tx) error {
		a, err := b.Acting(tx, c)
		if err != nil {
			return err
		}
		m, err := a.Sent(tx, ref, "send it again")
		if err != nil {
			return err
		}
		boxes, names, err := unfinishedIn(tx, m.Revision, mailboxes)
		if err != nil {
			return err
		}
		answer.Resent, answer.Revision = len(boxes), b.store.Revision()
		if len(boxes) == 0 {
			return nil
		}
		if answer.Revision, err = b.resent(tx, a, m.Revision, names); err != nil {
			return err
		}
		var ready readied
		for _, mailbox := range boxes {
			tx.Exec(updateUnread, answer.Revision, m.Revision, mailbox)
			ready.seen(mailbox)
		}
		b.wake(tx, ready)
		return nil
	})
	return answer.Resent, answer.Revision, err
}

// unfinishedIn returns the agents' mailboxes in which a message is visible and nobody has claimed it; only those of the names, if
// any are given.
func unfinishedIn(tx *store.Tx, message int64, only []string) (boxes []int64, names []string, err error) {
	wanted := map[MailboxRef]bool{} // true once it was found
	for _, name := range only {
		wanted[ParseMailbox(name)] = false
	}
	rows := tx.Query(selectRecipients, message)
	for rows.Next() {
		var mailbox int64
		var ref MailboxRef
		var kind int
		var open bool
		if err := rows.Scan(&mailbox, &kind, &ref.Name, &open); err != nil {
			return nil, nil, err
		}
		ref.Kind = MailboxKind(kind)
		_, chosen := wanted[ref]
		if len(only) > 0 && !chosen {
			continue
		}
		wanted[ref] = true
		if open {
			boxes, names = append(boxes, mailbox), append(names, ref.String())
		}
	}
	if err := rows.Err(); err != nil {
		return nil, nil, err
	}
	for ref, found := range wanted {
		if !found {
			return nil, nil, fault.Missing("mailbox", ref.String(), "message %d was not sent to %s", message, ref)
		}
	}
	return boxes, names, nil
}

package conversations

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/finding"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/mail"
	"brokerd/internal/msgid"
	"brokerd/internal/store"
)

const (
	// mostResends is how many times the broker resends a delivery that no agent notices.
	mostResends = 5
	// namedMailboxes is how many mailboxes the event of a resend names.
	namedMailboxes = 100
)

// A resend is a delivery that is due to arrive again, with the columns of its row and of the delivery.
type resend struct {
	message int64
	mailbox int64
	after   time.Duration
	times   int
	session int64
	state   mail.State
	claims  int
	readAt  time.Time
	arrival int64
}

// resendDue resends deliveries that no agent has read or claimed in time.
func (r *Registry) resendDue(tx *store.Tx) error {
	found, err := dueResends(tx)
	if err != nil {
		return err
	}
	for i := range found {
		d := &found[i]
		noticed, err := r.noticed(tx, d)
		if err != nil {
			return err
		}
		if !noticed && d.arrival > 0 { // otherwise an earlier one of its ordering key still hides it
			if err := r.resend(tx, d); err != nil {
				return err
			}
			d.times++
		}
		if noticed || d.times == mostResends {
			tx.Exec(deleteResend, d.message, d.mailbox)
		} else {
			tx.Exec(updateResend, tx.Now().Add(d.after), d.times, d.message, d.mailbox)
		}
	}
	return nil
}

// dueResends reads the deliveries that are due to arrive again, a page at most.
func dueResends(tx *store.Tx) ([]resend, error) {
	return store.Collect(tx.Query(selectResends, tx.Now(), remindersPage), func(rows *store.Rows) (d resend, err error) {
		var state int
		err = rows.Scan(&d.message, &d.mailbox, &d.after, &d.times, &d.session, &state, &d.claims, &d.readAt, &d.arrival)
		d.state = mail.State(state)
		return d, err
	})
}

// noticed reports whether a delivery need not arrive again: an agent has read, claimed or finished it, or its session
// is closed.
func (r *Registry) noticed(tx *store.Tx, d *resend) (bool, error) {
	if !d.state.Waits() || d.claims > 0 || !d.readAt.IsZero() {
		return true, nil
	}
	session, err := r.dir.ByID(tx, d.session)
	if errors.Is(err, store.ErrNoRows) {
		return true, nil
	}
	return session.Closed(), err
}

// resend has one delivery arrive again.
func (r *Registry) resend(tx *store.Tx, d *resend) error {
	mailbox, err := mail.MailboxName(tx, d.mailbox)
	if err != nil {
		return err
	}
	arrival, err := r.resent(tx, mail.System(d.session), d.message, []string{mailbox})
	if err != nil {
		return err
	}
	tx.Exec(updateArrival, arrival, d.message, d.mailbox)
	r.broker.Waiters.Arrived(tx, d.mailbox)
	return nil
}

// resent appends the event that a message arrives again in mailboxes. It returns its revision, which is the new
// arrival.
func (r *Registry) resent(tx *store.Tx, a mail.Actor, message int64, mailboxes []string) (int64, error) {
	entry := a.Event("message.resent")
	entry.Summary = fmt.Sprintf("message %d arrives anew in %s", message, mailboxes[0])
	if more := len(mailboxes) - 1; more > 0 {
		entry.Summary += " and " + finding.Count(more, "other")
	}
	entry.Related = []string{strconv.FormatInt(message, 10)}
	var details strings.Builder
	details.WriteString(`{"mailboxes":[`)
	for i, name := range mailboxes[:min(namedMailboxes, len(mailboxes))] {
		if i > 0 {
			details.WriteByte(',')
		}
		details.WriteString(events.Quote(name))
	}
	details.WriteString(`],"count":` + strconv.Itoa(len(mailboxes)) + `}`)
	entry.Details = details.String()
	return r.log.Append(tx, entry)
}

// Resend makes a message arrive again, as unread, in the mailboxes of the agents that have neither finished nor claimed
// it: in all of them, or only in the given ones. It returns in how many. Errors: fault.NotFound for a message that does
// not exist or that a mailbox never received, fault.Denied for a caller other than the sender and an operator.
func (r *Registry) Resend(
	ctx context.Context, c identity.Caller, req idempotency.Request, ref msgid.Ref, mailboxes []string,
) (int, int64, error) {
	var answer struct {
		Resent   int
		Revision int64
	}
	err := req.Drain(ctx, r.store, &answer, func(tx *store.Tx) error {
		a, err := r.broker.Mailboxes.Acting(tx, c)
		if err != nil {
			return err
		}
		m, err := sent(tx, a, ref, "send it again")
		if err != nil {
			return err
		}
		boxes, names, err := unfinishedIn(tx, m.Revision, mailboxes)
		if err != nil {
			return err
		}
		answer.Resent, answer.Revision = len(boxes), r.store.Revision()
		if len(boxes) == 0 {
			return nil
		}
		if answer.Revision, err = r.resent(tx, a, m.Revision, names); err != nil {
			return err
		}
		for _, mailbox := range boxes {
			tx.Exec(updateUnread, answer.Revision, m.Revision, mailbox)
		}
		r.broker.Waiters.Arrived(tx, boxes...)
		return nil
	})
	return answer.Resent, answer.Revision, err
}

// unfinishedIn returns the agents' mailboxes in which a message is visible and not claimed; only those of the names, if
// any are given.
func unfinishedIn(tx *store.Tx, message int64, only []string) (boxes []int64, names []string, err error) {
	wanted := map[mail.MailboxRef]bool{} // true once it was found
	for _, name := range only {
		wanted[mail.ParseMailbox(name)] = false
	}
	rows := tx.Query(selectRecipients, message)
	for rows.Next() {
		var mailbox int64
		var ref mail.MailboxRef
		var kind int
		var open bool
		if err := rows.Scan(&mailbox, &kind, &ref.Name, &open); err != nil {
			return nil, nil, err
		}
		ref.Kind = mail.MailboxKind(kind)
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

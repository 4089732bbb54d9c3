package broker

import (
	"errors"
	"time"

	"brokerd/internal/events"
	"brokerd/internal/mail"
	"brokerd/internal/msgid"
	"brokerd/internal/store"
)

// This file has the steps that a package beside the core takes with deliveries. Such a package writes the rows of the
// deliveries that it changes, and a SettleTx takes care of the rest: the counts of waiting deliveries, what dispatch
// reads, the calendar, the metrics, and questions.

// Wait counts a delivery that waits in a mailbox from now on. If it is Pending, dispatch assigns it.
func (s *SettleTx) Wait(mailbox int64, state mail.State, rank, message int64) {
	s.left[mailbox]++
	if state == mail.Pending {
		s.makeReady(mailbox, place{rank, message})
	} else {
		s.Waiters.Arrived(s.tx, mailbox)
	}
}

// Leave counts n deliveries that wait in a mailbox no longer.
func (s *SettleTx) Leave(mailbox, n int64) { s.left[mailbox] -= n }

// Expire has the calendar end deliveries at a time; zero stands for none.
func (s *SettleTx) Expire(at time.Time) { s.due = Earliest(s.due, at) }

// Append appends an event to the log. Its revision is that of the change, unless another event follows.
func (s *SettleTx) Append(e events.Entry) (revision int64, err error) {
	s.last, err = s.log.Append(s.tx, e)
	return s.last, err
}

// ReleaseAll releases up to limit claims of the actor, uncounted, and reports whether there may be more.
func (s *SettleTx) ReleaseAll(limit int) (more bool, err error) {
	claims, err := heldBy(s.tx, s.actor.Mailbox, s.tx.Latest().Add(1), limit)
	if err != nil {
		return false, err
	}
	for _, h := range claims {
		if _, err := s.release(h); err != nil {
			return false, err
		}
	}
	return len(claims) == limit, nil
}

// AckReady acknowledges a ready delivery in the actor's own mailbox, or an unread notice, and updates the item. done is
// false if the delivery is not ready any more.
func (s *SettleTx) AckReady(item *mail.Item) (done bool, err error) {
	now, d := s.tx.Now(), &item.Delivery
	var ordering string
	err = s.tx.QueryRow(updateAckReady, s.actor.Mailbox, now, item.Revision).Scan(&ordering)
	if errors.Is(err, store.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if d.DeliveredAt.IsZero() {
		s.fresh++
		if err := s.Counters.count(s.tx, s.actor.Session, isDelivered, item.Revision); err != nil {
			return false, err
		}
	}
	if err := s.Counters.count(s.tx, s.actor.Session, isAcked, item.Revision); err != nil {
		return false, err
	}
	if err := s.questions.Unanswered(s.tx, item.Revision); err != nil {
		return false, err
	}
	if d.State == mail.Pending {
		s.left[s.actor.Mailbox]--
	}
	d.State, d.Holder, d.FinishedAt = mail.Acked, s.actor.Name, now
	d.ReadAt, d.DeliveredAt = Earliest(d.ReadAt, now), Earliest(d.DeliveredAt, now)
	h := held{DeliveryID: mail.DeliveryID{Message: item.Revision, Mailbox: s.actor.Mailbox}, claims: d.Claims}
	s.noted[Ack] = append(s.noted[Ack], h.claimID())
	if ordering == "" {
		return true, nil
	}
	return true, s.PromoteNext(s.actor.Mailbox, ordering)
}

// AckOwn acknowledges the actor's claim, which must be in force, or mail in the actor's own mailbox that is not
// claimed. Errors: as Settle.
func (s *SettleTx) AckOwn(ref msgid.Ref) error {
	h, err := s.locate(&Settlement{Verb: Release, Ref: ref}) // not Ack, which may come late
	if err != nil && ref.Claim == 0 {
		own, err2 := s.locate(&Settlement{Verb: Ack, Ref: ref})
		if err2 == nil && own.Mailbox == s.actor.Mailbox && own.state == mail.Pending {
			h, err = own, nil
		}
	}
	if err != nil {
		return err
	}
	_, err = s.ack(h)
	return err
}

// MadeReady reports whether a step has made deliveries ready.
func (s *SettleTx) MadeReady() bool { return s.readied }

// makeReady has dispatch assign a delivery that has become Pending.
func (s *SettleTx) makeReady(mailbox int64, at place) {
	s.readied = true
	s.Waiters.ready(s.tx, mailbox, at)
}

// End ends an unfinished delivery in the given state, which may have an ordering key: one that waits is CANCELLED with
// an event, as an unread notice is, and a claim is acknowledged in the name of its holder.
func (s *SettleTx) End(d mail.DeliveryID, state mail.State, ordering string) error {
	if state != mail.Claimed {
		return s.finishWaiting(&held{DeliveryID: d, state: state, ordering: ordering}, mail.Cancelled, "message.cancelled")
	}
	h, _, err := claimedDelivery(s.tx, d)
	if err != nil {
		return err
	}
	s.actor.Mailbox = h.holder
	_, err = s.ack(h)
	return err
}

// NoteDead counts deliveries that have become dead letters, and ends the calls that wait for replies to them.
func (s *SettleTx) NoteDead(messages ...int64) error {
	if err := s.Counters.count(s.tx, s.actor.Session, isDead, messages...); err != nil {
		return err
	}
	for _, message := range messages {
		if err := s.questions.Unanswered(s.tx, message); err != nil {
			return err
		}
	}
	return nil
}

// promote makes the next delivery of the ordering key ready after h was finished, if h was the head of the key. A
// delivery that was blocked, or finished before, held back no other one: then the head is another delivery, which need
// not be the oldest after a redrive.
func (s *SettleTx) promote(h *held) error {
	if h.ordering == "" || h.state == mail.Blocked || !h.state.Unfinished() {
		return nil
	}
	return s.PromoteNext(h.Mailbox, h.ordering)
}

func (s *SettleTx) promoteAfter(k mail.DeliveryID) error {
	var ordering string
	if err := s.tx.QueryRow(selectOrdering, k.Message, k.Mailbox).Scan(&ordering); err != nil {
		return err
	}
	return s.PromoteNext(k.Mailbox, ordering)
}

// HasOrdered reports whether a mailbox has an unfinished delivery with an ordering key. Another delivery with that key
// is then Blocked until its turn comes.
func HasOrdered(q store.Querier, mailbox int64, ordering string) (found bool, err error) {
	err = q.QueryRow(existsOrdered, mailbox, ordering).Scan(&found)
	return found, err
}

// PromoteNext makes the head of an ordering key ready, if it is blocked.
func (s *SettleTx) PromoteNext(mailbox int64, ordering string) error {
	var n struct {
		message, rank, arrival int64
		state                  int
		due                    time.Time
		queue                  bool
	}
	err := s.tx.QueryRow(selectHead, mailbox, ordering).Scan(&n.message, &n.state, &n.rank, &n.arrival, &n.due, &n.queue)
	if errors.Is(err, store.ErrNoRows) || err == nil && mail.State(n.state) != mail.Blocked {
		return nil
	}
	if err != nil {
		return err
	}
	if n.due.After(s.tx.Now()) {
		s.due = Earliest(s.due, n.due)
		s.tx.Exec(updateState, int(mail.Delayed), n.message, mailbox)
		return nil
	}
	s.makeReady(mailbox, place{n.rank, n.message})
	if n.arrival == 0 {
		d := mail.DeliveryID{Message: n.message, Mailbox: mailbox}
		s.last, err = s.Calendar.arrive(s.tx, s.actor.Session.ID, d, n.queue)
		return err
	}
	s.tx.Exec(updateState, int(mail.Pending), n.message, mailbox)
	return nil
}

// ofEvent reports whether a message is that of an event.
func (s *SettleTx) ofEvent(message int64) (is bool, err error) {
	err = s.tx.QueryRow(selectIsEvent, message).Scan(&is)
	return is, err
}

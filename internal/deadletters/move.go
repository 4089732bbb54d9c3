package deadletters

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"brokerd/internal/broker"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/mail"
	"brokerd/internal/msgid"
	"brokerd/internal/store"
	"brokerd/internal/validate"
)

// maxMoved is how many deliveries one call moves.
const maxMoved = 1000

// A Move names the waiting deliveries that are to change their mailbox.
type Move struct {
	From, To string
	IDs      []string // messages, by id or revision; empty = all
	Reason   string
}

// A Moved counts the deliveries that have changed their mailbox.
type Moved struct {
	Moved    int
	Left     int64 // deliveries that still wait in the old mailbox
	Revision int64
}

// A waitingDelivery is a delivery that waits in the old mailbox.
type waitingDelivery struct {
	message, rank, arrival int64
	state                  mail.State
	due                    time.Time
	ordering               string
}

// Move moves waiting deliveries from one mailbox to another, oldest message first, at most 1,000. A delivery keeps its
// rank, its attempts and its times. In the new mailbox it is unread, and it arrives there in this transaction.
// Directives stay, and so does a delivery whose message the new mailbox, or an agent that takes from it, may already
// have. Errors: fault.NotFound for a mailbox or message that does not exist and for a new mailbox that no agent takes
// from, fault.Precondition (NOT_WAITING) for a message that cannot be moved, fault.Invalid.
func (q *Queue) Move(ctx context.Context, c identity.Caller, req idempotency.Request, m Move) (Moved, error) {
	var check validate.Check
	check.Name("from", mail.ParseMailbox(m.From).Name)
	check.Name("to", mail.ParseMailbox(m.To).Name)
	if m.From == m.To {
		check.Fail("to", "is the same mailbox as from")
	}
	check.Line("reason", m.Reason, validate.MaxLine)
	refs := msgid.CheckRefs(&check, "ids", m.IDs, mail.MaxBatch, false)
	if err := check.Err(); err != nil {
		return Moved{}, err
	}
	var answer Moved
	err := req.Drain(ctx, q.store, &answer, func(tx *store.Tx) error {
		a, err := q.broker.Mailboxes.Acting(tx, c)
		if err != nil {
			return err
		}
		from, err := q.broker.Mailboxes.Find(tx, a.Session.ID, mail.ParseMailbox(m.From))
		if err != nil {
			return err
		}
		if from == 0 {
			return fault.Missing("mailbox", m.From, "there is no mailbox %q: nothing was ever sent to it", m.From)
		}
		to, err := q.router.Served(tx, a, mail.ParseMailbox(m.To))
		if err != nil {
			return err
		}
		s := moveTx{q.broker.NewSettleTx(tx, a), tx, a, from, to, &m}
		waiting, err := s.movable(refs)
		if err != nil {
			return err
		}
		var freed []string
		for i := range waiting {
			d := &waiting[i]
			if err := s.move(d); err != nil {
				return err
			}
			if d.ordering != "" && d.state != mail.Blocked {
				freed = append(freed, d.ordering)
			}
		}
		for _, ordering := range freed {
			if err := s.PromoteNext(from, ordering); err != nil {
				return err
			}
		}
		answer.Moved = len(waiting)
		if answer.Revision, err = s.Finish(); err != nil {
			return err
		}
		answer.Left, err = mail.WaitingIn(tx, from)
		return err
	})
	return answer, err
}

// A moveTx moves deliveries in one function of the writer.
type moveTx struct {
	*broker.SettleTx
	tx    *store.Tx
	actor mail.Actor
	from  int64 // the old mailbox
	to    mail.Mailbox
	*Move
}

// movable returns the deliveries that a call moves.
func (s *moveTx) movable(refs []msgid.Ref) ([]waitingDelivery, error) {
	var only any
	if len(refs) > 0 {
		revisions := make([]int64, len(refs))
		for i, ref := range refs {
			if _, err := mail.FindMessage(s.tx, s.actor.Session.ID, ref); err != nil {
				return nil, err
			}
			revisions[i] = ref.Revision
		}
		list, _ := json.Marshal(revisions) // numbers always marshal
		only = string(list)
	}
	var found []waitingDelivery
	moved := map[int64]bool{}
	rows := s.tx.Query(selectMovable,
		s.from, int64(mail.DirectiveRank), only, s.to.Ref.Kind != mail.AgentMailbox, s.to.ID, maxMoved)
	for rows.Next() {
		var d waitingDelivery
		var state int
		if err := rows.Scan(&d.message, &state, &d.rank, &d.arrival, &d.due, &d.ordering); err != nil {
			return nil, err
		}
		d.state = mail.State(state)
		found, moved[d.message] = append(found, d), true
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	for _, ref := range refs {
		if !moved[ref.Revision] {
			return nil, fault.New(fault.Precondition, "NOT_WAITING", "message %s cannot be moved to %s: "+
				"it does not wait in %s, it is a directive, or the recipient has it already", ref.Text, s.to.Ref, s.From)
		}
	}
	return found, nil
}

// move changes the mailbox of one delivery, with an event whose revision is the new arrival.
func (s *moveTx) move(d *waitingDelivery) error {
	state := mail.Pending
	if d.due.After(s.tx.Now()) {
		state = mail.Delayed
	}
	if d.ordering != "" {
		earlier, err := broker.HasOrdered(s.tx, s.to.ID, d.ordering)
		if err != nil {
			return err
		}
		if earlier {
			state = mail.Blocked
		}
	}
	to := s.to.Ref.String()
	entry := s.actor.Event("message.moved")
	entry.Summary = fmt.Sprintf("message %d moved from %s to %s", d.message, s.From, to)
	entry.Details = `{"from":` + events.Quote(s.From) + `,"to":` + events.Quote(to)
	if s.Reason != "" {
		entry.Summary += ": " + events.OneLine(s.Reason)
		entry.Details += `,"reason":` + events.Quote(s.Reason)
	}
	entry.Details += "}"
	entry.Related = []string{strconv.FormatInt(d.message, 10)}
	revision, err := s.Append(entry)
	if err != nil {
		return err
	}
	var arrival any
	switch {
	case d.arrival == 0 && d.due.After(s.tx.Now()): // the calendar gives it one
	case s.to.Ref.Kind == mail.AgentMailbox:
		arrival = revision
	default:
		arrival = -revision
	}
	s.tx.Exec(updateMoved, s.to.ID, int(state), arrival, d.message, s.from)
	s.tx.Exec(updateMovedAttempts, s.to.ID, d.message, s.from)
	s.tx.Exec(updateMovedOffers, s.to.ID, s.tx.Now(), d.message, s.from)
	if s.to.Ref.Kind == mail.AgentMailbox {
		s.tx.Exec(updateMovedResend, s.to.ID, d.message, s.from)
	} else {
		s.tx.Exec(deleteMovedResend, d.message, s.from)
	}
	s.Leave(s.from, 1)
	s.Wait(s.to.ID, state, d.rank, d.message)
	return nil
}

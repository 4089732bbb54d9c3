package broker

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"brokerd/internal/caller"
	"brokerd/internal/fault"
	"brokerd/internal/once"
	"brokerd/internal/store"
	"brokerd/internal/valid"
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

// waitingDelivery is a delivery that is moved.
type waitingDelivery struct {
	message, rank, arrival int64
	state                  State
	due                    time.Time
	ordering               string
}

// Move moves waiting deliveries from one mailbox to another, oldest message first, at most 1,000. A
// delivery keeps its rank, its attempts and its times. In the new mailbox it is unread, and it
// arrives there in this transaction. Directives stay, and so does a delivery whose message the new
// mailbox, or an agent that takes from it, may already have. Errors: fault.NotFound for a mailbox
// or message that does not exist and for a new mailbox that no agent takes from, fault.Precondition
// (NOT_WAITING) for a message that cannot be moved, fault.Invalid.
func (b *Broker) Move(ctx context.Context, c caller.Caller, req once.Request, m Move) (Moved, error) {
	var check valid.Check
	check.Name("from", ParseMailbox(m.From).Name)
	check.Name("to", ParseMailbox(m.To).Name)
	if m.From == m.To {
		check.Fail("to", "is the same mailbox as from")
	}
	check.Line("reason", m.Reason, valid.MaxLine)
	refs := CheckRefs(&check, "ids", m.IDs, false)
	if err := check.Err(); err != nil {
		return Moved{}, err
	}
	var answer Moved
	err := b.Change(ctx, req, &answer, func(tx *store.Tx) error {
		to, err := b.sending(tx, c)
		if err != nil {
			return err
		}
		s := settling{Broker: b, tx: tx, actor: to.actor, left: tally{}}
		from, err := b.FindMailbox(tx, s.actor.Session.ID, ParseMailbox(m.From))
		if err != nil {
			return err
		}
		if from == 0 {
			return fault.Missing("mailbox", m.From, "there is no mailbox %q: nothing was ever sent to it", m.From)
		}
		target, err := to.served(ParseMailbox(m.To))
		if err != nil {
			return err
		}
		waiting, err := s.movable(from, target, refs, m.From)
		if err != nil {
			return err
		}
		var freed []string
		for i := range waiting {
			d := &waiting[i]
			if err := s.move(d, from, target, &m); err != nil {
				return err
			}
			if d.ordering != "" && d.state != Blocked {
				freed = append(freed, d.ordering)
			}
		}
		for _, ordering := range freed {
			if err := s.promoteNext(from, ordering); err != nil {
				return err
			}
		}
		answer.Moved = len(waiting)
		if answer.Revision, err = s.finish(nil); err != nil {
			return err
		}
		answer.Left, err = waitingIn(tx, from)
		return err
	})
	return answer, err
}

// served returns a mailbox that at least one agent takes from. Errors: fault.NotFound with the
// nearest names.
func (s *sending) served(ref MailboxRef) (*room, error) {
	if ref.Kind != AgentMailbox {
		absent, err := s.vacancy(ref)
		if err != nil {
			return nil, err
		}
		if absent != "" {
			return nil, fault.Missing("mailbox", ref.String(), "%s", absent)
		}
		return s.room(ref)
	}
	rooms, err := s.toAgent(ref.Name)
	if err != nil {
		return nil, err
	}
	if len(rooms) != 1 || rooms[0].ref != ref {
		return nil, fault.Missing("agent", ref.Name, "no agent %q is registered in session %q", ref.Name,
			s.actor.Session.Name)
	}
	return rooms[0], nil
}

// movable returns the deliveries that a call moves.
func (s *settling) movable(from int64, to *room, refs []Ref, name string) ([]waitingDelivery, error) {
	var only any
	if len(refs) > 0 {
		revisions := make([]int64, len(refs))
		for i, ref := range refs {
			if _, err := FindMessage(s.tx, s.actor.Session.ID, ref); err != nil {
				return nil, err
			}
			revisions[i] = ref.Revision
		}
		list, _ := json.Marshal(revisions) // numbers always marshal
		only = string(list)
	}
	var found []waitingDelivery
	moved := map[int64]bool{}
	rows := s.tx.Query(selectMovable, from, int64(DirectiveRank), only, to.ref.Kind != AgentMailbox, to.id, maxMoved)
	for rows.Next() {
		var d waitingDelivery
		var state int
		if err := rows.Scan(&d.message, &state, &d.rank, &d.arrival, &d.due, &d.ordering); err != nil {
			return nil, err
		}
		d.state = State(state)
		found, moved[d.message] = append(found, d), true
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	for _, ref := range refs {
		if !moved[ref.Revision] {
			return nil, fault.New(fault.Precondition, "NOT_WAITING", "message %s cannot be moved to %s: "+
				"it does not wait in %s, it is a directive, or the recipient has it already", ref.Text, to.name, name)
		}
	}
	return found, nil
}

// move changes the mailbox of one delivery, with an event whose revision is the new arrival.
func (s *settling) move(d *waitingDelivery, from int64, to *room, m *Move) error {
	state := Pending
	if d.due.After(s.tx.Now()) {
		state = Delayed
	}
	if d.ordering != "" {
		var earlier bool
		if err := s.tx.QueryRow(existsOrdered, to.id, d.ordering).Scan(&earlier); err != nil {
			return err
		}
		if earlier {
			state = Blocked
		}
	}
	entry := s.actor.Event("message.moved")
	entry.Summary = fmt.Sprintf("message %d moved from %s to %s", d.message, m.From, to.name)
	entry.Details = `{"from":` + quote(m.From) + `,"to":` + quote(to.name)
	if m.Reason != "" {
		entry.Summary += ": " + oneLine(m.Reason)
		entry.Details += `,"reason":` + quote(m.Reason)
	}
	entry.Details += "}"
	entry.Related = []string{strconv.FormatInt(d.message, 10)}
	var err error
	if s.last, err = s.log.Append(s.tx, entry); err != nil {
		return err
	}
	var arrival any
	switch {
	case d.arrival == 0 && d.due.After(s.tx.Now()): // the calendar gives it one
	case to.ref.Kind == AgentMailbox:
		arrival = s.last
	default:
		arrival = -s.last
	}
	s.tx.Exec(updateMoved, to.id, int(state), arrival, d.message, from)
	s.tx.Exec(updateMovedAttempts, to.id, d.message, from)
	s.tx.Exec(updateMovedOffers, to.id, s.tx.Now(), d.message, from)
	if to.ref.Kind == AgentMailbox {
		s.tx.Exec(updateMovedResend, to.id, d.message, from)
	} else {
		s.tx.Exec(deleteResend, d.message, from)
	}
	s.left[from]--
	s.left[to.id]++
	if state == Pending {
		s.ready.add(to.id, place{d.rank, d.message})
	} else {
		s.ready.seen(to.id)
	}
	return nil
}

package broker

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/store"
)

// departurePage is how many claims of a deregistered agent one function gives back, or how many of its
// messages it dead-letters.
const departurePage = 200

// AgentGone ends what a deregistered agent has: its claims go back uncounted, its streams and
// subscriptions end, and its unfinished mail becomes dead letters. If that is more than a page, the
// backlog does the rest: until then the mail stays in the mailbox, where no agent can claim
// or read it, since AgentRegistered refuses the agent. It is a hook of the deregistration.
func (b *Broker) AgentGone(tx *store.Tx, session Session, agent Agent, reason string) error {
	a := Actor{Agent: agent, Session: session}
	b.vacancies.Clear(tx)
	b.endAsks(tx, session.ID, agent.Name, errGone(agent.Name))
	var err error
	if a.Mailbox, err = b.FindMailbox(tx, session.ID, MailboxRef{AgentMailbox, agent.Name}); err != nil || a.Mailbox == 0 {
		return err
	}
	b.dismiss(tx, a.Mailbox, errGone(a.Name)) // before what it held is delivered again
	s := settling{Broker: b, tx: tx, actor: a, left: tally{}}
	holds, err := s.releaseHeld()
	if err != nil {
		return err
	}
	tx.Exec(deleteSubscriptions, a.Mailbox)
	b.audience.Clear(tx)
	if err := b.ungate(tx, a.Mailbox); err != nil {
		return err
	}
	delete(s.ready, a.Mailbox)
	s.ready.seen(a.Mailbox) // its readers end
	p, more := departure{reason: reason}, holds
	if !holds {
		if more, err = s.deadLetter(&p); err != nil {
			return err
		}
	}
	if more {
		tx.Exec(insertDeparture, a.Mailbox, a.Role, p.reason, p.dead)
		b.later(tx, chore{departChore, a.Mailbox})
	}
	_, err = s.finish(nil)
	return err
}

// releaseHeld gives back the next page of the actor's claims, uncounted, and reports whether there may
// be more.
func (s *settling) releaseHeld() (more bool, err error) {
	held, err := heldBy(s.tx, s.actor.Mailbox, s.tx.Latest().Add(1), departurePage)
	if err != nil {
		return false, err
	}
	for _, h := range held {
		if _, err := s.release(h); err != nil {
			return false, err
		}
	}
	return len(held) == departurePage, nil
}

// A departure is the mail that an agent left when it deregistered.
type departure struct {
	reason string
	dead   int64 // messages that are dead letters by now
}

// deadLetter makes dead letters of the next page of the actor's mail, cancels unread notices once that
// is done, and reports whether there may be more. The last page comes with the event.
func (s *settling) deadLetter(p *departure) (more bool, err error) {
	messages, err := leftMail(s.tx, s.actor.Mailbox)
	if err != nil {
		return false, err
	}
	more = len(messages) == departurePage
	if !more {
		n, err := s.tx.ExecCount(cancelNoticesOf, s.tx.Now(), s.actor.Mailbox, s.actor.Mailbox, departurePage-len(messages))
		if err != nil {
			return false, err
		}
		more = int(n) == departurePage-len(messages)
	}
	if messages, err = s.withdrawVotes(messages); err != nil {
		return false, err
	}
	if len(messages) > 0 {
		list, _ := json.Marshal(messages) // numbers always marshal
		now := s.tx.Now()
		s.tx.Exec(insertGone, now, now, "AGENT_GONE: "+p.reason, s.actor.Mailbox, string(list))
		n, err := s.tx.ExecCount(updateGone, now, s.actor.Mailbox, string(list))
		if err != nil {
			return false, err
		}
		if err := s.count(s.tx, s.actor.Session, isDead, messages...); err != nil {
			return false, err
		}
		if err := s.endUnanswered(s.tx, messages...); err != nil {
			return false, err
		}
		s.left[s.actor.Mailbox] -= n
		p.dead += n
	}
	if more || p.dead == 0 {
		return more, nil
	}
	entry := s.actor.Event("message.dead")
	entry.Severity = events.Warning
	entry.Summary = s.actor.Name + " deregistered: " + counted(int(p.dead), "unfinished message") + " became dead letters"
	s.last, err = s.log.Append(s.tx, entry)
	return false, err
}

// withdrawVotes withdraws those of the actor's messages that ask it to vote, and returns the others: an
// agent that deregisters leaves the electorates.
func (s *settling) withdrawVotes(messages []int64) ([]int64, error) {
	list, err := json.Marshal(messages)
	if err != nil || len(messages) == 0 {
		return nil, err
	}
	found, err := store.Collect(s.tx.Query(selectVoteLetters, string(list), s.actor.Mailbox),
		func(r *store.Rows) (*held, error) {
			h := &held{key: key{mailbox: s.actor.Mailbox}}
			var state int
			err := r.Scan(&h.message, &state)
			h.state = State(state)
			return h, err
		})
	if err != nil {
		return nil, err
	}
	for _, h := range found {
		if err := s.finishWaiting(h, Cancelled, "message.cancelled"); err != nil {
			return nil, err
		}
		messages = slices.DeleteFunc(messages, func(m int64) bool { return m == h.message })
	}
	return messages, nil
}

// leftMail returns up to a page of the unfinished messages in the mailbox of an agent that holds no
// claims.
func leftMail(q store.Querier, mailbox int64) ([]int64, error) {
	var messages []int64
	for _, query := range []string{selectLeftOrdered, selectLeftDelayed, selectLeftReady} {
		if len(messages) == departurePage {
			break
		}
		rows := q.Query(query, mailbox, departurePage-len(messages))
		for rows.Next() {
			var message int64
			if err := rows.Scan(&message); err != nil {
				return nil, err
			}
			messages = append(messages, message)
		}
		if err := rows.Err(); err != nil {
			return nil, err
		}
	}
	return messages, nil
}

// depart dead-letters all that is left in the mailbox of a deregistered agent, one page per
// function, unless the broker stops.
func (b *Broker) depart(ctx context.Context, mailbox int64) error {
	for more := true; more && !b.isStopping(); {
		err := b.store.Drain(ctx, func(tx *store.Tx) (err error) {
			more, err = b.departFurther(tx, mailbox)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// departFurther dead-letters the next page, if the departure is not finished, and reports whether
// there may be more.
func (b *Broker) departFurther(tx *store.Tx, mailbox int64) (more bool, err error) {
	a := Actor{Mailbox: mailbox}
	var p departure
	err = tx.QueryRow(selectDeparture, mailbox).Scan(&a.Session.ID, &a.Name, &a.Role, &p.reason, &p.dead)
	if errors.Is(err, store.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if session, err := b.dir.ByID(tx, a.Session.ID); err != nil || session.Closed { // the closing cancels the mail
		return false, err
	}
	s := settling{Broker: b, tx: tx, actor: a, left: tally{}}
	more, err = s.releaseHeld()
	delete(s.ready, mailbox)
	if err == nil && !more {
		more, err = s.deadLetter(&p)
	}
	if err != nil {
		return false, err
	}
	if more {
		tx.Exec(updateDeparture, p.dead, mailbox)
	} else {
		tx.Exec(deleteDeparture, mailbox)
	}
	_, err = s.finish(nil)
	return more, err
}

// AwaitDeparture dead-letters what is left of the mail of an agent that has deregistered, and
// returns when that is done: the agent may then register again. Errors: as Session of the
// Directory.
func (b *Broker) AwaitDeparture(ctx context.Context, session, agent string) error {
	var mailbox int64
	err := b.store.Drain(ctx, func(tx *store.Tx) error {
		s, err := b.dir.Session(tx, session)
		if err != nil {
			return err
		}
		mailbox, err = b.FindMailbox(tx, s.ID, MailboxRef{AgentMailbox, agent})
		return err
	})
	if err != nil {
		return err
	}
	return b.depart(ctx, mailbox)
}

// errDeparting is the error for an agent that registers again before all of its mail is
// dead-lettered.
func errDeparting(agent string) error {
	e := fault.New(fault.Unavailable, "AGENT_DEPARTING",
		"the broker is still dead-lettering the mail that agent %q left when it deregistered; register again in a moment", agent)
	e.RetryAfter = time.Second
	return e
}

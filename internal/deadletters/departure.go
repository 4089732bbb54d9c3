package deadletters

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"go.uber.org/zap"

	"brokerd/internal/broker"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/finding"
	"brokerd/internal/mail"
	"brokerd/internal/store"
)

// departurePage is how many claims of a deregistered agent one function releases, or how many of its messages it makes
// dead letters.
const departurePage = 200

// AgentGone ends all that a deregistered agent has: the broker releases its claims, uncounted, ends its streams and
// subscriptions, and makes dead letters of its unfinished mail. If that is more than a page, the queue does the rest
// later: until then the mail stays in the mailbox, where no agent can claim or read it, since AgentRegistered refuses
// the agent. It is a hook of the deregistration.
func (q *Queue) AgentGone(tx *store.Tx, agent directory.Agent, reason string) error {
	a, err := q.broker.Dismiss(tx, agent)
	if err != nil || a.Mailbox == 0 {
		return err
	}
	d := departure{SettleTx: q.broker.NewSettleTx(tx, a), tx: tx, agent: a, reason: reason}
	more, err := d.page()
	if err != nil {
		return err
	}
	if more {
		tx.Exec(insertDeparture, a.Mailbox, a.Role, reason, d.dead)
		tx.OnCommit(func() { q.departures.Set(a.Mailbox, q.clock.Now()) })
	}
	_, err = d.Finish()
	return err
}

// AgentRegistered refuses an agent whose mail from an earlier registration is not yet all dead-lettered: see
// AwaitDeparture. It is a hook of the registration.
func (q *Queue) AgentRegistered(tx *store.Tx, agent directory.Agent) error {
	mailbox, err := q.broker.Mailboxes.Find(tx, agent.Session, mail.AgentRef(agent.Name))
	if err != nil || mailbox == 0 {
		return err
	}
	var departing bool
	if err := tx.QueryRow(existsDeparture, mailbox).Scan(&departing); err != nil || !departing {
		return err
	}
	e := fault.New(fault.Unavailable, "AGENT_DEPARTING",
		"the broker is still dead-lettering the mail that agent %q left when it deregistered; register again in a moment",
		agent.Name)
	e.RetryAfter = time.Second
	return e
}

// AwaitDeparture dead-letters the rest of the mail of an agent that has deregistered, and returns when that is done:
// the agent may then register again. Errors: as Session of the Directory.
func (q *Queue) AwaitDeparture(ctx context.Context, session, agent string) error {
	var mailbox int64
	err := q.store.Drain(ctx, func(tx *store.Tx) error {
		s, err := q.dir.Session(tx, session)
		if err != nil {
			return err
		}
		mailbox, err = q.broker.Mailboxes.Find(tx, s.ID, mail.AgentRef(agent))
		return err
	})
	if err != nil {
		return err
	}
	return q.depart(ctx, mailbox)
}

// departuresDue works on departures until they have ended or the broker stops.
func (q *Queue) departuresDue(mailboxes []int64) {
	for _, mailbox := range mailboxes {
		if err := q.depart(context.Background(), mailbox); err != nil {
			q.departures.Set(mailbox, q.clock.Now().Add(time.Second))
			q.zap.Warn("a page of the backlog could not be written; trying again", zap.Error(err))
		}
	}
}

// depart dead-letters all that is left in the mailbox of a deregistered agent, one page per function, unless the broker
// stops.
func (q *Queue) depart(ctx context.Context, mailbox int64) error {
	for more := true; more && !q.isStopping(); {
		err := q.store.Drain(ctx, func(tx *store.Tx) (err error) {
			more, err = q.departFurther(tx, mailbox)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// departFurther dead-letters the next page, if the departure has not ended, and reports whether there may be more.
func (q *Queue) departFurther(tx *store.Tx, mailbox int64) (more bool, err error) {
	a := mail.Actor{Mailbox: mailbox}
	var reason string
	var dead int64
	err = tx.QueryRow(selectDeparture, mailbox).Scan(&a.Session.ID, &a.Name, &a.Role, &reason, &dead)
	if errors.Is(err, store.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if session, err := q.dir.ByID(tx, a.Session.ID); err != nil || session.Closed() { // the closing cancels the mail
		return false, err
	}
	d := departure{SettleTx: q.broker.NewSettleTx(tx, a), tx: tx, agent: a, reason: reason, dead: dead}
	if more, err = d.page(); err != nil {
		return false, err
	}
	if more {
		tx.Exec(updateDeparture, d.dead, mailbox)
	} else {
		tx.Exec(deleteDeparture, mailbox)
	}
	_, err = d.Finish()
	return more, err
}

// A departure is a function's share of ending what an agent has left when it deregistered.
type departure struct {
	*broker.SettleTx
	tx     *store.Tx
	agent  mail.Actor
	reason string
	dead   int64 // messages that are dead letters by now
}

// page releases the next page of claims or, if there are none, dead-letters the next page of mail. It reports whether
// there may be more.
func (d *departure) page() (more bool, err error) {
	more, err = d.ReleaseAll(departurePage)
	d.Waiters.Arrived(d.tx, d.agent.Mailbox) // its readers end
	if err != nil || more {
		return more, err
	}
	return d.deadLetter()
}

// deadLetter makes dead letters of the next page of the agent's mail, cancels unread notices once that is done, and
// reports whether there may be more. With the last page it appends the event.
func (d *departure) deadLetter() (more bool, err error) {
	mailbox := d.agent.Mailbox
	messages, err := leftMail(d.tx, mailbox)
	if err != nil {
		return false, err
	}
	more = len(messages) == departurePage
	if !more {
		n, err := d.tx.ExecCount(cancelNoticesOf, d.tx.Now(), mailbox, mailbox, departurePage-len(messages))
		if err != nil {
			return false, err
		}
		more = int(n) == departurePage-len(messages)
	}
	if messages, err = d.withdrawVotes(messages); err != nil {
		return false, err
	}
	if len(messages) > 0 {
		list, _ := json.Marshal(messages) // numbers always marshal
		now := d.tx.Now()
		d.tx.Exec(insertGone, now, now, "AGENT_GONE: "+d.reason, mailbox, string(list))
		n, err := d.tx.ExecCount(updateGone, now, mailbox, string(list))
		if err != nil {
			return false, err
		}
		if err := d.NoteDead(messages...); err != nil {
			return false, err
		}
		d.Leave(mailbox, n)
		d.dead += n
	}
	if more || d.dead == 0 {
		return more, nil
	}
	entry := d.agent.Event("message.dead")
	entry.Severity = events.Warning
	entry.Summary = d.agent.Name + " deregistered: " + finding.Count(d.dead, "unfinished message") + " became dead letters"
	_, err = d.Append(entry)
	return false, err
}

// withdrawVotes withdraws those of the agent's messages that ask it to vote, and returns the others: an agent that
// deregisters leaves the electorates.
func (d *departure) withdrawVotes(messages []int64) ([]int64, error) {
	list, err := json.Marshal(messages)
	if err != nil || len(messages) == 0 {
		return nil, err
	}
	type letter struct {
		message int64
		state   int
	}
	found, err := store.Collect(d.tx.Query(selectVoteLetters, string(list), d.agent.Mailbox),
		func(r *store.Rows) (l letter, err error) { return l, r.Scan(&l.message, &l.state) })
	if err != nil {
		return nil, err
	}
	for _, l := range found {
		if err := d.End(mail.DeliveryID{Message: l.message, Mailbox: d.agent.Mailbox}, mail.State(l.state), ""); err != nil {
			return nil, err
		}
		messages = slices.DeleteFunc(messages, func(m int64) bool { return m == l.message })
	}
	return messages, nil
}

// leftMail returns up to a page of the unfinished messages in the mailbox of an agent that holds no claims.
func leftMail(q store.Querier, mailbox int64) ([]int64, error) {
	var messages []int64
	for _, query := range []string{selectLeftOrdered, selectLeftDelayed, selectLeftReady} {
		if len(messages) == departurePage {
			break
		}
		found, err := store.Collect(q.Query(query, mailbox, departurePage-len(messages)), readID)
		if err != nil {
			return nil, err
		}
		messages = append(messages, found...)
	}
	return messages, nil
}

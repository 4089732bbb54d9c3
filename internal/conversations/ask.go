package conversations

import (
	"context"
	"errors"
	"slices"
	"time"

	"brokerd/internal/broker"
	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/mail"
	"brokerd/internal/msgid"
	"brokerd/internal/router"
	"brokerd/internal/store"
)

// Asked is the result of a question.
type Asked struct {
	ID       msgid.ID
	Revision int64
	Warnings []string
	Reply    *mail.Message `json:"-"` // nil if none came
	NoReply  NoReply       `json:"-"` // without a reply: whether none can come any more
}

// Ask sends a question and waits for its reply, which goes to this call alone. The same request continues to wait
// for the reply to the same question, or returns it. The wait ends without a reply as soon as none can come.
// Errors: as Send; fault.Precondition (NO_RESPONDERS) if no agent could reply; fault.Exhausted (MAILBOX_FULL) if
// no mailbox took the question.
func (r *Registry) Ask(
	ctx context.Context, c identity.Caller, req idempotency.Request, draft mail.Draft, wait time.Duration,
) (Asked, error) {
	if err := r.router.Admit(ctx, c); err != nil {
		return Asked{}, err
	}
	from := r.router.Origin(ctx)
	var asked Asked
	var waiting *call
	draft.Response, draft.Within = true, wait
	err := r.store.Write(ctx, func(tx *store.Tx) error {
		waiting = nil
		var a mail.Actor
		seen, err := req.Do(tx, &asked, func() (err error) {
			if a, err = r.broker.Mailboxes.Acting(tx, c); err != nil {
				return err
			}
			asked, err = r.ask(tx, a, from, &draft)
			return err
		})
		if err != nil {
			return err
		}
		if seen {
			if a, err = r.broker.Mailboxes.Acting(tx, c); err != nil {
				return err
			}
			var settled bool
			if asked.Reply, settled, err = r.fetch(tx, a, asked.Revision); err != nil || settled {
				return err
			}
			asked.NoReply, err = noReplyTo(tx, asked.Revision)
			if err != nil || asked.NoReply.Reason != StillOpen {
				return err
			}
		}
		waiting = r.list(tx, a, asked.Revision)
		return nil
	})
	if err != nil || waiting == nil {
		return asked, err
	}
	v, err := r.await(ctx, waiting, wait)
	asked.Reply, asked.NoReply = v.reply, v.none
	return asked, err
}

// ask sends the question.
func (r *Registry) ask(tx *store.Tx, a mail.Actor, from *router.Origin, d *mail.Draft) (Asked, error) {
	s := r.router.NewTx(tx, a, from)
	possible, err := r.responders(tx, a, d.Target)
	if err != nil {
		return Asked{}, err
	}
	var out router.Outcome
	if possible {
		if out, err = s.Send(d); err != nil {
			return Asked{}, fault.Within("message", err)
		}
	}
	if out.Count == 0 && !out.Awaited {
		return Asked{}, noResponders(s, d.Target)
	}
	if out.Count > 0 && out.Refused == out.Count {
		return Asked{}, router.MailboxFull(d.Target, a.Session.Settings.GetMailboxLimit())
	}
	return Asked{ID: out.ID, Revision: out.Revision, Warnings: out.Warnings}, s.Finish()
}

// responders reports whether a target means a registered agent other than the actor. It does not check that the agent
// of a target exists: the send does.
func (r *Registry) responders(tx *store.Tx, a mail.Actor, t mail.Target) (bool, error) {
	var role, pattern string
	switch t.Kind {
	case mail.ToAgent:
		return t.Name != a.Name || a.System(), nil
	case mail.ToChannel:
		id, err := r.broker.Mailboxes.Find(tx, a.Session.ID, mail.ChannelRef(t.Name))
		if err != nil {
			return false, err
		}
		names, err := mail.SubscribersOf(tx, id)
		return slices.ContainsFunc(names, func(name string) bool { return name != a.Name }), err
	case mail.ToRole:
		role = t.Name
	case mail.ToPattern:
		pattern = t.Name
	case mail.ToEveryone:
	}
	agents, err := r.dir.Matching(tx, a.Session.ID, directory.Selection{Role: role, Pattern: pattern})
	return slices.ContainsFunc(agents, func(other directory.Agent) bool { return other.Name != a.Name }), err
}

// noResponders returns the error of a question that no agent can reply to.
func noResponders(s *router.Tx, t mail.Target) error {
	var absent string
	var err error
	switch t.Kind {
	case mail.ToRole:
		absent, err = s.Vacancy(mail.RoleRef(t.Name))
	case mail.ToChannel:
		absent, err = s.Vacancy(mail.ChannelRef(t.Name))
	}
	if err != nil {
		return err
	}
	if absent == "" {
		absent = "no other agent is meant by " + t.String()
	}
	return fault.New(fault.Precondition, "NO_RESPONDERS", "no agent can reply: %s", absent)
}

// fetch returns the reply to a question that is asked again, and reports whether the question is settled. It
// finishes a reply that has become ordinary mail, unless a consumer works on it. A reply that is not due yet stays
// mail.
func (r *Registry) fetch(tx *store.Tx, a mail.Actor, question int64) (*mail.Message, bool, error) {
	var settled, reply int64
	err := tx.QueryRow(selectQuestion, question).Scan(&settled, &reply)
	if errors.Is(err, store.ErrNoRows) {
		return nil, true, nil // retention has removed it
	}
	if err != nil || settled == 0 || reply == 0 {
		return nil, settled != 0, err
	}
	m, err := mail.FindMessage(tx, a.Session.ID, msgid.Ref{Revision: reply})
	if fault.KindOf(err) == fault.NotFound {
		return nil, true, nil
	}
	if err != nil {
		return nil, true, err
	}
	own := mail.AgentRef(a.Name)
	if a.Mailbox, err = r.broker.Mailboxes.Find(tx, a.Session.ID, own); err != nil {
		return nil, true, err
	}
	state, err := stateOf(tx, reply, a.Mailbox)
	if err != nil {
		return nil, true, err
	}
	if state == mail.Delayed {
		return nil, true, nil
	}
	tx.Exec(updateFetched, question)
	if !unclaimed(state) {
		return &m, true, nil
	}
	s := r.broker.NewSettleTx(tx, a)
	ref := msgid.Ref{Text: m.ID.String(), Revision: reply}
	if _, err := s.Settle(&broker.Settlement{Verb: broker.Ack, Ref: ref}); err != nil {
		return nil, true, err
	}
	_, err = s.Finish()
	return &m, true, err
}

// unclaimed reports whether a delivery in a state waits or is an unread notice.
func unclaimed(state mail.State) bool { return state.Waits() || state == mail.NoticeUnread }

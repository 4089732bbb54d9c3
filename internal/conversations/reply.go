package conversations

import (
	"context"
	"errors"
	"strconv"

	"brokerd/internal/broker"
	"brokerd/internal/content"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/mail"
	"brokerd/internal/msgid"
	"brokerd/internal/router"
	"brokerd/internal/store"
)

// An Answer is a reply to a message.
type Answer struct {
	To    msgid.Ref // zero = the message of the caller's only open claim
	Ack   bool
	Draft mail.Draft // without target, thread and ReplyTo
}

// Reply answers a message: it goes to the sender, in the same thread, under the same correlation id unless
// another one is given. With Ack the caller's delivery of the message is finished as well. The reply of an
// operator without an agent finishes the message in OperatorMailbox. Errors: as Send and as Settle;
// fault.Precondition (CLAIM_LOST) with Ack unless the claim is in force or the message waits unclaimed in the
// caller's own mailbox; fault.Exhausted (MAILBOX_FULL) if the sender's mailbox is full, but with Ack not if that
// is OperatorMailbox: then the Outcome has Refused; fault.Precondition (NOBODY_WAITS) for a notice or an event of
// the broker.
func (r *Registry) Reply(
	ctx context.Context, c identity.Caller, req idempotency.Request, answer Answer,
) (router.Outcome, error) {
	if err := r.router.Admit(ctx, c); err != nil {
		return router.Outcome{}, err
	}
	from := r.router.Origin(ctx)
	var out router.Outcome
	var seen bool
	err := r.store.Write(ctx, func(tx *store.Tx) (err error) {
		seen, err = req.Do(tx, &out, func() error {
			out, err = r.reply(tx, c, from, answer)
			return err
		})
		return err
	})
	out.Duplicate = seen
	return out, err
}

func (r *Registry) reply(
	tx *store.Tx, c identity.Caller, from *router.Origin, answer Answer,
) (router.Outcome, error) {
	a, err := r.broker.Mailboxes.Acting(tx, c)
	ref := answer.To
	if err == nil && (ref.Revision == 0 || answer.Ack) {
		a, err = r.broker.Mailboxes.Owner(tx, c)
	}
	if err != nil {
		return router.Outcome{}, err
	}
	if ref.Revision == 0 {
		if a.System() {
			return router.Outcome{}, fault.AgentRequired()
		}
		if ref, err = broker.OnlyClaim(tx, a); err != nil {
			return router.Outcome{}, err
		}
	}
	if answer.Ack && !a.System() {
		done := r.broker.NewSettleTx(tx, a)
		if err := done.AckOwn(ref); err != nil {
			return router.Outcome{}, err
		}
		if _, err := done.Finish(); err != nil {
			return router.Outcome{}, err
		}
	}
	to, err := mail.FindMessage(tx, a.Session.ID, ref)
	if err == nil && a.System() {
		err = r.finishOperators(tx, a, to.Revision)
	}
	if err != nil {
		return router.Outcome{}, err
	}
	added := content.Added{Agent: to.Sender, ReplyTo: to.ID.String()}
	d := answer.Draft
	if d.Correlation == "" {
		added.Correlation = content.Text(to.Content, content.Correlation)
		d.Correlation = added.Correlation
	}
	d.Target = mail.Target{Kind: mail.ToAgent, Name: to.Sender}
	d.ReplyTo = msgid.Ref{Text: ref.Text, Revision: to.Revision}
	d.Content = append(d.Content[:len(d.Content):len(d.Content)], added.Marshal()...)
	s := r.router.NewTx(tx, a, from)
	out, err := s.Send(&d)
	if err != nil {
		return router.Outcome{}, fault.Within("message", err)
	}
	// Work of an operator who reads no answers must not fail because of that.
	if out.Refused > 0 && !(answer.Ack && to.Sender == identity.System) {
		return router.Outcome{}, fault.New(fault.Exhausted, "MAILBOX_FULL",
			"the mailbox of %s is full: nothing was done, reply again later", to.Sender)
	}
	return out, s.Finish()
}

// finishOperators finishes a message in the mailbox of operators, which claim nothing, with their reply.
func (r *Registry) finishOperators(tx *store.Tx, a mail.Actor, message int64) error {
	mailbox, err := r.broker.Mailboxes.Find(tx, a.Session.ID, mail.OperatorMailbox)
	if err != nil || mailbox == 0 {
		return err
	}
	state, err := stateOf(tx, message, mailbox)
	if err != nil || !unclaimed(state) {
		return err
	}
	a.Mailbox = mailbox
	done := r.broker.NewSettleTx(tx, a)
	ref := msgid.Ref{Text: strconv.FormatInt(message, 10), Revision: message}
	if _, err := done.Settle(&broker.Settlement{Verb: broker.Ack, Ref: ref}); err != nil {
		return err
	}
	_, err = done.Finish()
	return err
}

// stateOf returns the state of the delivery of a message in one mailbox, 0 if there is none.
func stateOf(q store.Querier, message, mailbox int64) (mail.State, error) {
	var state int
	err := q.QueryRow(selectState, message, mailbox).Scan(&state)
	if errors.Is(err, store.ErrNoRows) {
		return 0, nil
	}
	return mail.State(state), err
}

package broker

import (
	"context"
	"slices"
	"strconv"

	"brokerd/internal/content"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

// An Answer is a reply to a message.
type Answer struct {
	To    Ref // zero = the message of the caller's only open claim
	Ack   bool
	Draft Draft // without target, thread and ReplyTo
}

// Reply answers a message: it goes to the sender, in the same thread, under the same correlation id unless
// another one is given. With Ack the caller's delivery of the message is finished as well. The reply of an
// operator without an agent finishes the message in OperatorMailbox. Errors: as Send and as Settle;
// fault.Precondition (CLAIM_LOST) with Ack unless the claim is in force or the message waits unclaimed in the
// caller's own mailbox; fault.Exhausted (MAILBOX_FULL) if the sender's mailbox is full, but with Ack not if that
// is OperatorMailbox: then the Outcome has Refused; fault.Precondition (NOBODY_WAITS) for a notice or an event of
// the broker.
func (b *Broker) Reply(ctx context.Context, c identity.Caller, req idempotency.Request, answer Answer) (Outcome, error) {
	if err := b.admit(ctx, c, 1); err != nil {
		return Outcome{}, err
	}
	from := b.Origin(ctx)
	var out Outcome
	var seen bool
	err := b.store.Write(ctx, func(tx *store.Tx) (err error) {
		seen, err = req.Do(tx, &out, func() error {
			out, err = b.reply(tx, c, from, answer)
			return err
		})
		return err
	})
	out.Duplicate = seen
	return out, err
}

func (b *Broker) reply(tx *store.Tx, c identity.Caller, from *Origin, answer Answer) (Outcome, error) {
	s, err := b.sending(tx, c)
	if err != nil {
		return Outcome{}, err
	}
	s.origin = from
	ref := answer.To
	if ref.Revision == 0 || answer.Ack {
		if s.actor, err = b.Owner(tx, c); err != nil {
			return Outcome{}, err
		}
	}
	if ref.Revision == 0 {
		if s.actor.System() {
			return Outcome{}, fault.AgentRequired()
		}
		if ref, err = OnlyClaim(tx, s.actor); err != nil {
			return Outcome{}, err
		}
	}
	if answer.Ack && !s.actor.System() {
		if err := s.finishClaim(ref); err != nil {
			return Outcome{}, err
		}
	}
	to, err := FindMessage(tx, s.actor.Session.ID, ref)
	if err == nil && s.actor.System() {
		err = s.finishOperators(to.Revision)
	}
	if err != nil {
		return Outcome{}, err
	}
	added := content.Added{Agent: to.Sender, ReplyTo: to.ID.String()}
	d := answer.Draft
	if d.Correlation == "" {
		added.Correlation = content.Text(to.Content, content.Correlation)
		d.Correlation = added.Correlation
	}
	d.Target, d.ReplyTo = Target{ToAgent, to.Sender}, Ref{Text: ref.Text, Revision: to.Revision}
	d.Content = append(d.Content[:len(d.Content):len(d.Content)], added.Marshal()...)
	out, err := s.sendFitting(&d, 0, 0)
	if err != nil {
		return Outcome{}, Within("message", err)
	}
	// Work of an operator who reads no answers must not fail because of that.
	if out.Refused > 0 && !(answer.Ack && to.Sender == identity.System) {
		return Outcome{}, fault.New(fault.Exhausted, "MAILBOX_FULL", "the mailbox of %s is full: nothing was done, reply again later", to.Sender)
	}
	return out, s.finish()
}

// finishOperators finishes a message in the mailbox of operators, which claim nothing, with their reply.
func (s *sending) finishOperators(message int64) error {
	mailbox, err := s.FindMailbox(s.tx, s.actor.Session.ID, OperatorMailbox)
	if err != nil || mailbox == 0 {
		return err
	}
	waiting, _, err := unclaimed(s.tx, message)
	if err != nil || !slices.ContainsFunc(waiting, func(h *held) bool { return h.mailbox == mailbox }) {
		return err
	}
	done := s.NewSettleTx(s.tx, s.actor)
	done.actor.Mailbox = mailbox
	if _, err := done.Settle(&Settlement{Verb: Ack, Ref: Ref{Text: strconv.FormatInt(message, 10), Revision: message}}); err != nil {
		return err
	}
	_, err = done.Finish()
	return err
}

// finishClaim acknowledges the actor's claim, which must be in force, or mail in the actor's own mailbox that is
// not claimed.
func (s *sending) finishClaim(ref Ref) error {
	done := s.NewSettleTx(s.tx, s.actor)
	h, err := done.locate(&Settlement{Verb: Release, Ref: ref}) // not Ack, which may come late
	if err != nil && ref.Claim == 0 {
		mail, err2 := done.locate(&Settlement{Verb: Ack, Ref: ref})
		if err2 == nil && mail.mailbox == s.actor.Mailbox && mail.state == Pending {
			h, err = mail, nil
		}
	}
	if err != nil {
		return err
	}
	if _, err := done.ack(h); err != nil {
		return err
	}
	_, err = done.Finish()
	return err
}

package router

import (
	"time"

	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/mail"
)

// An answer says what a draft answers. It is nil for a draft that answers nothing.
type answer struct {
	to       mail.Message
	question OpenQuestion // that the draft settles; nil if the message is no open question, or the draft is no reply to it
}

// answers finds out what a draft answers. A reply that is delivered later goes to no call that waits now; a directive
// is no reply.
func (s *Tx) answers(d *mail.Draft) (*answer, error) {
	if d.ReplyTo.Revision == 0 {
		return nil, nil
	}
	m, err := mail.FindMessage(s.tx, s.actor.Session.ID, d.ReplyTo)
	if err != nil {
		return nil, err
	}
	a := &answer{to: m}
	if m.Sender == s.actor.Name || mail.IsDirective(d.Type) {
		return a, nil
	}
	a.question, err = s.questions.Open(s.tx, m.Revision, d.NotBefore.After(s.tx.Now()))
	return a, err
}

// message returns the message that the draft answers; nil if it answers none.
func (a *answer) message() *mail.Message {
	if a == nil {
		return nil
	}
	return &a.to
}

// settles reports whether the draft is the first reply to a question.
func (a *answer) settles() bool { return a != nil && a.question != nil }

// awaited reports whether a call waits for the reply.
func (a *answer) awaited() bool { return a.settles() && a.question.Awaited() }

// awaitedIn reports whether the mailbox is that of an agent whose call waits for the reply.
func (a *answer) awaitedIn(r *recipient) bool {
	return a.awaited() && r.Ref == mail.AgentRef(a.to.Sender)
}

// thread returns the thread that is stored with a draft: the given one, or that of the message that it answers. An
// empty thread means that the message starts one.
func (a *answer) thread(d *mail.Draft) string {
	if a == nil || d.Thread != "" {
		return d.Thread
	}
	return a.to.ThreadID()
}

// recipients is route, but refuses a reply to a message of the broker itself, which no agent would read.
func (s *Tx) recipients(d *mail.Draft, a *answer) ([]*recipient, error) {
	if a != nil && a.to.Sender == identity.System && d.Target == (mail.Target{Kind: mail.ToAgent, Name: identity.System}) {
		var own bool
		if err := s.tx.QueryRow(selectIsBrokers, a.to.Revision).Scan(&own); err != nil {
			return nil, err
		}
		if own {
			return nil, fault.New(fault.Precondition, "NOBODY_WAITS",
				"message %d takes no reply: the broker has sent it to inform its recipients; acknowledge it", a.to.Revision)
		}
	}
	return s.route(d)
}

// checkTimes refuses times that have passed or are too far ahead.
func checkTimes(d *mail.Draft, now time.Time) error {
	switch {
	case d.NotBefore.Sub(now) > mail.MaxTTL:
		return fault.Field("not_before", "is more than 365 days ahead")
	case !d.Response || d.Deadline.IsZero():
		return nil
	case !d.Deadline.After(now):
		return fault.Field("response_deadline", "is not in the future")
	case d.Deadline.Sub(now) > mail.MaxTTL:
		return fault.Field("response_deadline", "is more than 365 days ahead")
	}
	return nil
}

package router

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"brokerd/internal/broker"
	"brokerd/internal/content"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/mail"
	"brokerd/internal/msgid"
	"brokerd/internal/tracing"
)

// A post is one draft on its way to its recipients.
type post struct {
	broker.Post
	answers *answer
	span    *tracing.Span // nil if nothing is traced
	to      []*recipient
	limit   int64 // how many deliveries may wait in a mailbox; 0 = any number
	out     Outcome
}

// send sends one draft. It checks all that could refuse the draft before it changes anything.
func (s *Tx) send(d *mail.Draft, producer, number int64) (Outcome, error) {
	p, err := s.prepare(d)
	if err != nil {
		return Outcome{}, err
	}
	s.insert(p, producer, number)
	if err := s.follow(p); err != nil {
		return Outcome{}, err
	}
	if err := s.deliverAll(p); err != nil {
		return Outcome{}, err
	}
	if mail.IsDirective(d.Type) {
		return p.out, s.direct(p.Draft, p.out.Revision, p.to)
	}
	return p.out, nil
}

// prepare checks all that could refuse a draft: its sender's rights, its times, what it answers, and its recipients.
func (s *Tx) prepare(d *mail.Draft) (p *post, err error) {
	now := s.tx.Now()
	if mail.IsDirective(d.Type) {
		if err := s.directives.MayDirect(&s.actor, d.Type); err != nil {
			return nil, err
		}
	}
	if err := checkTimes(d, now); err != nil {
		return nil, err
	}
	rules := s.actor.Session.Settings
	p = &post{Post: broker.Post{
		Attempts: cmp.Or(d.MaxAttempts, int(rules.GetMaxAttempts())), Notice: s.notice, Part: s.part,
	}}
	if p.answers, err = s.answers(d); err != nil {
		return nil, err
	}
	p.Draft = s.complete(d, p.answers)
	if t := s.tracer; t != nil {
		if p.Draft, p.span, err = t.Begin(s.tx, &s.actor, s.origin, p.Draft, p.answers.message()); err != nil {
			return nil, err
		}
	}
	if p.to, err = s.recipients(p.Draft, p.answers); err != nil {
		return nil, err
	}
	if s.audience == nil && !s.overfull {
		if err := s.fanOut(p.Draft, p.to, p.answers); err != nil {
			return nil, err
		}
	}
	p.Message = mail.Message{
		Sender: s.actor.Name, SenderRole: s.actor.Role, CreatedAt: now,
		Thread: p.answers.thread(p.Draft), Content: p.Draft.Content,
	}
	p.Message.ExpiresAt, err = s.expiry(p.Draft, now)
	p.Rank = mail.Rank(rules.GetAgeing().AsDuration(), d.Priority, s.tx.Latest())
	if mail.IsDirective(d.Type) {
		p.Rank = mail.DirectRank(s.tx.Latest())
	} else if !s.overfull {
		p.limit = rules.GetMailboxLimit() // even an agent with a full mailbox receives orders, and what the broker sends
	}
	return p, err
}

// isFull reports whether a mailbox takes no more.
func (p *post) isFull(r *recipient) bool {
	return p.limit > 0 && r.waiting+r.added >= p.limit && !p.answers.awaitedIn(r)
}

// complete returns the draft with the fields that the broker fills in. A reply without a task gets
// the task of the message that it answers, and a reply without a subject gets that message's
// subject behind "Re: ". A message that requires a response gets its deadline. The given draft
// stays as it is, because the writer can run its function a second time.
func (s *Tx) complete(d *mail.Draft, a *answer) *mail.Draft {
	if a == nil && !d.Response {
		return d
	}
	c := *d
	var f content.Added
	if a != nil && c.Task == "" {
		f.Task = content.Text(a.to.Content, content.Task)
		c.Task = f.Task
	}
	if a != nil && c.Subject == "" {
		f.Subject = content.ReplySubject(content.Text(a.to.Content, content.Subject))
		c.Subject = f.Subject
	}
	if c.Response && c.Deadline.IsZero() {
		within := c.Within
		if within == 0 {
			within = s.actor.Session.Settings.GetResponseTime().AsDuration()
		}
		f.Deadline = s.tx.Now().Add(within)
		c.Deadline = f.Deadline
	}
	c.Content = slices.Concat(d.Content, f.Marshal())
	return &c
}

// insert writes the message, which is also the event that it was sent.
func (s *Tx) insert(p *post, producer, number int64) {
	d, m := p.Draft, &p.Message
	p.out = Outcome{Count: len(p.to), More: s.more, Awaited: p.answers.awaited(), Direct: d.Target.Kind == mail.ToAgent}
	for _, r := range p.to {
		full := p.isFull(r)
		if full {
			p.out.Refused++
		}
		if len(p.to) <= namedRecipients {
			p.out.Recipients = append(p.out.Recipients, Recipient{r.name, full})
		}
	}
	var related any
	if p.answers != nil {
		related = p.answers.to.Revision
	}
	m.Revision = s.log.Sent(s.tx, s.actor.Session.ID)
	m.ID = msgid.New(m.CreatedAt, m.Revision)
	p.out.Revision, p.out.ID = m.Revision, m.ID
	s.tx.Exec(insertMessage, m.Revision, m.ID[:], s.actor.Session.ID, m.Sender, m.SenderRole, m.CreatedAt, m.ExpiresAt,
		d.Type, d.Priority, mail.Null(channelOf(d)), mail.Null(m.Thread), mail.Null(d.Correlation), mail.Null(d.Task),
		nullInt(producer), nullInt(number), m.Content,
		p.out.Count, p.out.Refused, related, events.SentFlags(p.out.More, p.out.Awaited))
	for _, name := range d.Artifacts {
		s.tx.Exec(insertMessageArtifact, s.actor.Session.ID, name, m.Revision)
	}
}

// follow has what follows from the message: metrics, a span, a question that waits for its answer, and one that is
// answered.
func (s *Tx) follow(p *post) error {
	d, session := p.Draft, s.actor.Session
	s.core.Counters.Full(s.tx, p.out.Refused)
	if p.span != nil {
		s.tracer.Sent(s.tx, &s.actor, p.span, d, p.out)
	}
	if d.Response {
		s.due = broker.Earliest(s.due, d.Deadline)
		s.questions.Asked(s.tx, session.ID, &p.Message, d.Deadline)
	}
	if p.answers.settles() && (p.out.Count == 0 || p.out.Refused < p.out.Count) {
		if err := p.answers.question.Answered(s.tx, session.ID, &p.Message); err != nil {
			return err
		}
	}
	return s.core.Counters.Sent(s.tx, session, d.Type)
}

// deliverAll makes a delivery for each recipient whose mailbox is not full.
func (s *Tx) deliverAll(p *post) error {
	written := 0
	for _, r := range p.to {
		if p.isFull(r) {
			continue
		}
		if err := s.deliver(p, r); err != nil {
			return err
		}
		written++
	}
	if want := p.out.Count - p.out.Refused; written != want {
		return fmt.Errorf("%d deliveries were made of a message for %d recipients", written, want)
	}
	return nil
}

// deliver makes the delivery of a message in one mailbox.
func (s *Tx) deliver(p *post, r *recipient) error {
	if p.answers.awaitedIn(r) {
		asker := mail.Actor{Agent: directory.Agent{Name: r.name}, Session: s.actor.Session, Mailbox: r.ID}
		return s.core.DeliverAwaited(s.tx, &p.Post, asker)
	}
	state, err := s.core.Deliver(s.tx, &p.Post, r.Mailbox, r.name)
	if err != nil || state == mail.Claimed {
		return err
	}
	if state.Waits() {
		r.added++
	}
	d := p.Draft
	if state == mail.Delayed {
		s.due = broker.Earliest(s.due, d.NotBefore)
	}
	s.due = broker.Earliest(s.due, p.Message.ExpiresAt)
	if d.ResendAfter > 0 && r.Ref.Kind == mail.AgentMailbox {
		s.remind(p, r)
	}
	return nil
}

// remind records when a delivery is to arrive again, unless an agent notices it before.
func (s *Tx) remind(p *post, r *recipient) {
	due := p.Message.CreatedAt
	if p.Draft.NotBefore.After(due) {
		due = p.Draft.NotBefore
	}
	due = due.Add(p.Draft.ResendAfter)
	s.due = broker.Earliest(s.due, due)
	s.tx.Exec(insertResend, p.Message.Revision, r.ID, p.Draft.ResendAfter, due)
}

// expiry returns when the deliveries of a draft expire, zero for never.
func (s *Tx) expiry(d *mail.Draft, now time.Time) (time.Time, error) {
	ttl := d.TTL
	if channel := channelOf(d); ttl == 0 && channel != "" {
		var err error
		if ttl, err = mail.DefaultTTL(s.tx, s.actor.Session.ID, channel); err != nil {
			return time.Time{}, err
		}
	}
	if ttl == 0 {
		return time.Time{}, nil
	}
	return now.Add(ttl), nil
}

// channelOf returns the channel that a draft goes to or has as its label; empty for none.
func channelOf(d *mail.Draft) string {
	if d.Target.Kind == mail.ToChannel {
		return d.Target.Name
	}
	return d.Channel
}

func nullInt(n int64) any {
	if n == 0 {
		return nil
	}
	return n
}

package broker

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"brokerd/internal/content"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/msgid"
	"brokerd/internal/tracing"
)

// A post is one draft on its way to its recipients.
type post struct {
	draft   *Draft
	answers *answer
	span    *tracing.Span // nil if nothing is traced
	to      []*recipient
	limit   int64 // how many deliveries may wait in a mailbox; 0 = any number
	out     Outcome
	message Message
	rank    int64
	most    int // attempts
}

// send sends one draft. It checks all that could refuse the draft before it changes anything.
func (s *SendTx) send(d *Draft, producer, number int64) (Outcome, error) {
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
	if IsDirective(d.Type) {
		return p.out, s.direct(p.draft, p.out.Revision, p.to)
	}
	return p.out, nil
}

// prepare checks all that could refuse a draft: its sender's rights, its times, what it answers, and its recipients.
func (s *SendTx) prepare(d *Draft) (p *post, err error) {
	now := s.tx.Now()
	if IsDirective(d.Type) {
		if err := s.directives.MayDirect(&s.actor, d.Type); err != nil {
			return nil, err
		}
	}
	if err := d.checkTimes(now); err != nil {
		return nil, err
	}
	p = &post{most: cmp.Or(d.MaxAttempts, s.actor.Session.MaxAttempts)}
	if p.answers, err = s.answers(d); err != nil {
		return nil, err
	}
	p.draft = s.complete(d, p.answers)
	if t := s.Traces.tracer; t != nil {
		if p.draft, p.span, err = t.Begin(s.tx, &s.actor, s.origin, p.draft, p.answers.message()); err != nil {
			return nil, err
		}
	}
	if p.to, err = s.recipients(p.draft, p.answers); err != nil {
		return nil, err
	}
	if s.audience == nil && !s.overfull {
		if err := s.fanOut(p.draft, p.to, p.answers); err != nil {
			return nil, err
		}
	}
	p.message = Message{
		Sender: s.actor.Name, SenderRole: s.actor.Role, CreatedAt: now, Thread: p.answers.thread(p.draft), Content: p.draft.Content,
	}
	p.message.ExpiresAt, err = s.expiry(p.draft, now)
	p.rank = Rank(s.actor.Session.Ageing, d.Priority, s.tx.Latest())
	if IsDirective(d.Type) {
		p.rank = directRank(s.tx.Latest())
	} else if !s.overfull {
		p.limit = s.actor.Session.MailboxLimit // even an agent with a full mailbox receives orders, and what the broker sends
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
func (s *SendTx) complete(d *Draft, a *answer) *Draft {
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
			within = s.actor.Session.ResponseTime
		}
		f.Deadline = s.tx.Now().Add(within)
		c.Deadline = f.Deadline
	}
	c.Content = slices.Concat(d.Content, f.Marshal())
	return &c
}

// insert writes the message, which is also the event that it was sent.
func (s *SendTx) insert(p *post, producer, number int64) {
	d, m := p.draft, &p.message
	p.out = Outcome{Count: len(p.to), More: s.more, Awaited: p.answers.awaited(), Direct: d.Target.Kind == ToAgent}
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
		d.Type, d.Priority, null(d.channel()), null(m.Thread), null(d.Correlation), null(d.Task),
		nullInt(producer), nullInt(number), m.Content,
		p.out.Count, p.out.Refused, related, events.SentFlags(p.out.More, p.out.Awaited))
	for _, name := range d.Artifacts {
		s.tx.Exec(insertMessageArtifact, s.actor.Session.ID, name, m.Revision)
	}
}

// follow has what follows from the message: metrics, a span, a question that waits for its answer, and one that is
// answered.
func (s *SendTx) follow(p *post) error {
	d, session := p.draft, s.actor.Session
	if refused := p.out.Refused; refused > 0 && s.Counters.observer != nil {
		s.tx.OnCommit(func() { s.Counters.observer.Full(refused) })
	}
	if p.span != nil {
		s.Traces.tracer.Sent(s.tx, &s.actor, p.span, d, p.out)
	}
	if d.Response {
		s.due = Earliest(s.due, d.Deadline)
		s.questions.Asked(s.tx, session.ID, &p.message, d.Deadline)
	}
	if p.answers.settles() && (p.out.Count == 0 || p.out.Refused < p.out.Count) {
		if err := p.answers.question.Answered(s.tx, session.ID, &p.message); err != nil {
			return err
		}
	}
	return s.Counters.countOf(s.tx, session, isSent, d.Type)
}

// deliverAll makes a delivery for each recipient whose mailbox is not full.
func (s *SendTx) deliverAll(p *post) error {
	written := 0
	for _, r := range p.to {
		if p.isFull(r) {
			continue
		}
		write := s.deliver
		if p.answers.awaitedIn(r) {
			write = s.deliverAwaited
		}
		if err := write(p, r); err != nil {
			return err
		}
		written++
	}
	if want := p.out.Count - p.out.Refused; written != want {
		return fmt.Errorf("%d deliveries were made of a message for %d recipients", written, want)
	}
	return nil
}

// deliverAwaited makes the delivery of a reply for which a call waits.
func (s *SendTx) deliverAwaited(p *post, r *recipient) error {
	m := &p.message
	s.tx.Exec(insertAwaited, m.Revision, r.id, p.rank, p.most, m.CreatedAt, m.ExpiresAt)
	for _, fate := range []string{isDelivered, isAcked} {
		if err := s.Counters.countOf(s.tx, s.actor.Session, fate, p.draft.Type); err != nil {
			return err
		}
	}
	asker := Actor{Agent: directory.Agent{Name: r.name}, Session: s.actor.Session}
	s.tx.OnCommit(func() { s.Counters.worked(asker, 0, 1, 1) })
	return nil
}

// deliver puts a message into one mailbox, or into the hands of a consumer that waits for it.
func (s *SendTx) deliver(p *post, r *recipient) error {
	d, m := p.draft, &p.message
	state := Pending
	var due any
	if d.NotBefore.After(m.CreatedAt) {
		state, due = Delayed, d.NotBefore
	}
	if d.OrderingKey != "" {
		earlier, err := HasOrdered(s.tx, r.id, d.OrderingKey)
		if err != nil {
			return err
		}
		if earlier {
			state = Blocked
		}
	}
	if s.notice {
		state = NoticeUnread
	}
	var arrival any
	switch {
	case due != nil: // the calendar gives it one
	case r.ref.Kind == AgentMailbox:
		arrival = cmp.Or(s.arrival, m.Revision)
	default:
		arrival = -m.Revision
	}
	if state == Pending && !s.part {
		handed, err := s.handOver(p, r, arrival)
		if err != nil || handed {
			return err
		}
	}
	s.tx.Exec(insertDelivery, m.Revision, r.id, int(state), p.rank, arrival, p.most, due, m.ExpiresAt, null(d.OrderingKey))
	if state.Waits() {
		r.added++
	}
	switch {
	case state == Pending:
		s.Waiters.ready(s.tx, r.id, place{p.rank, m.Revision})
	case state == Delayed:
		s.due = Earliest(s.due, d.NotBefore)
	case due == nil:
		s.Waiters.Arrived(s.tx, r.id)
	}
	s.due = Earliest(s.due, m.ExpiresAt)
	if d.ResendAfter > 0 && r.ref.Kind == AgentMailbox {
		s.remind(p, r)
	}
	return nil
}

// remind records when a delivery is to arrive again, unless an agent notices it before.
func (s *SendTx) remind(p *post, r *recipient) {
	due := p.message.CreatedAt
	if p.draft.NotBefore.After(due) {
		due = p.draft.NotBefore
	}
	due = due.Add(p.draft.ResendAfter)
	s.due = Earliest(s.due, due)
	s.tx.Exec(insertResend, p.message.Revision, r.id, p.draft.ResendAfter, due)
}

// handOver gives a message to a consumer that waits for it, if there is one.
func (s *SendTx) handOver(p *post, r *recipient, arrival any) (bool, error) {
	d, m := p.draft, &p.message
	c, err := s.Waiters.taker(s.tx, r.id, r.ref, &ready{
		Claim: Claim{Message: *m}, place: place{p.rank, m.Revision}, kind: d.Type, priority: d.Priority,
		task: d.Task, correlation: d.Correlation,
	})
	if c == nil || err != nil {
		return false, err
	}
	s.tx.Exec(insertHanded, m.Revision, r.id, p.rank, arrival, p.most, m.ExpiresAt, null(d.OrderingKey),
		c.actor.Mailbox, c.name, m.CreatedAt, c.claimFor)
	s.Waiters.give(s.tx, c, &Claim{
		Message: *m, Mailbox: r.name, Number: 1, Attempt: 1, MaxAttempts: p.most, ExpiresIn: c.claimFor,
		key: key{m.Revision, r.id}, ordered: d.OrderingKey != "", fresh: true,
	})
	if r.ref.Kind == AgentMailbox {
		s.Waiters.Arrived(s.tx, r.id)
	}
	return true, nil
}

// expiry returns when the deliveries of a draft expire, zero for never.
func (s *SendTx) expiry(d *Draft, now time.Time) (time.Time, error) {
	ttl := d.TTL
	if channel := d.channel(); ttl == 0 && channel != "" {
		var err error
		if ttl, err = DefaultTTL(s.tx, s.actor.Session.ID, channel); err != nil {
			return time.Time{}, err
		}
	}
	if ttl == 0 {
		return time.Time{}, nil
	}
	return now.Add(ttl), nil
}

package broker

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"time"

	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/store"
	"brokerd/internal/tracing"
)

// namedRecipients is up to how many recipients an answer names.
const namedRecipients = 100

// draftSize is about how many bytes a draft takes beside its content.
const draftSize = 512

// An Outcome is what became of one message that was to be sent.
type Outcome struct {
	ID         ID
	Revision   int64
	Recipients []Recipient // at most namedRecipients
	Count      int
	Refused    int
	More       bool // more recipients follow: see copyFurther
	Duplicate  bool
	Awaited    bool // a call that waited for it has it
	Direct     bool // the target is an agent
	Warnings   []string
	Fault      error `json:"-"` // why it was refused as a whole
}

// A Recipient is one mailbox that a message was sent to.
type Recipient struct {
	Mailbox string
	Refused bool // the mailbox is full
}

// A Batch is a row of drafts from one producer.
type Batch struct {
	Drafts   []Draft
	Producer string // empty = none
	First    int64  // the number of the first draft, with a producer
	At       int    // the index of the first draft in the request, for errors
}

// size is about how many bytes the batch keeps in memory.
func (b *Batch) size() int {
	n := 0
	for i := range b.Drafts {
		n += draftSize + len(b.Drafts[i].Content)
	}
	return n
}

// Send sends drafts, all or none, in the name of the caller. Errors: fault.NotFound for a
// session, agent, pattern, role or message that does not exist, fault.Precondition for an agent that is not registered,
// fault.Exists for a request id that was used for something else, fault.Exhausted beyond the rate and the sizes that the session allows.
func (b *Broker) Send(ctx context.Context, c identity.Caller, req idempotency.Request, drafts []Draft) ([]Outcome, error) {
	if err := b.admission.Admit(ctx, c, len(drafts)); err != nil {
		return nil, err
	}
	from := b.Traces.Origin(ctx)
	var outcomes []Outcome
	var seen bool
	err := b.store.Write(ctx, func(tx *store.Tx) (err error) {
		seen, err = req.Do(tx, &outcomes, func() error {
			a, err := b.Acting(tx, c)
			if err != nil {
				return err
			}
			s := b.NewSendTx(tx, a, from)
			outcomes = make([]Outcome, len(drafts))
			for i := range drafts {
				if outcomes[i], err = s.Send(&drafts[i]); err != nil {
					return Indexed(err, i, len(drafts))
				}
			}
			return s.Finish()
		})
		return err
	})
	if seen {
		for i := range outcomes {
			outcomes[i].Duplicate = true
		}
	}
	return outcomes, err
}

// Submit sends a batch without waiting: done is called with an outcome for every draft once they are on
// disk or refused. A refused draft leaves the others alone. Batches submitted one after the other
// are sent in that order. done must not block. Submit blocks while the caller has too much queued.
func (b *Broker) Submit(ctx context.Context, c identity.Caller, batch Batch, done func([]Outcome)) {
	from := b.Traces.Origin(ctx)
	var outcomes []Outcome
	b.store.Submit(ctx, store.LaneFill, batch.size(), func(tx *store.Tx) error {
		outcomes = make([]Outcome, len(batch.Drafts))
		a, err := b.Acting(tx, c)
		if err != nil {
			return err
		}
		s := b.NewSendTx(tx, a, from)
		p, err := b.Producers.open(tx, s.actor, batch.Producer)
		if err != nil {
			return err
		}
		for i := range batch.Drafts {
			draft := &batch.Drafts[i]
			if draft.Fault != nil {
				outcomes[i].Fault = draft.Fault
				continue
			}
			number := int64(0)
			if p.id != 0 {
				number = batch.First + int64(i)
				if number <= p.number {
					outcomes[i], err = p.duplicate(tx, number)
					if err := kept(err, batch.At+i, &outcomes[i]); err != nil {
						return err
					}
					continue
				}
			}
			outcomes[i], err = s.sendFitting(draft, p.id, number)
			if err := kept(err, batch.At+i, &outcomes[i]); err != nil {
				return err
			}
			if p.id != 0 && outcomes[i].Fault == nil {
				p.number, p.last, p.used = number, outcomes[i].Revision, true
			}
		}
		b.Producers.save(tx, &p)
		return s.Finish()
	}, func(err error) {
		if err != nil {
			outcomes = make([]Outcome, len(batch.Drafts))
			for i := range outcomes {
				outcomes[i].Fault = err
			}
		}
		done(outcomes)
	})
}

// kept keeps a refusal as the outcome of item i of the request and passes on what went wrong with the broker.
func kept(err error, i int, o *Outcome) error {
	switch fault.KindOf(err) {
	case fault.Internal, fault.Unavailable:
		return err
	default:
		o.Fault = Indexed(err, i, 1)
		return nil
	}
}

// A SendTx sends messages of one actor in one function of the writer. It keeps what is looked up or written once for all
// of them. Its methods may be called until Finish.
type SendTx struct {
	*Broker
	tx       *store.Tx
	actor    Actor
	known    map[MailboxRef]*recipient
	audience []string  // the agents that receive the message, in place of its target; nil = the target's
	part     bool      // the message is part of another change: dispatch delivers it, not this function
	overfull bool      // full mailboxes take the message
	notice   bool      // the message is a notice: it is not work
	more     bool      // the audience has more agents, whose copies follow
	arrival  int64     // of copies that follow their message; 0 = they come with it
	sent     int       // drafts of the caller that were sent
	copies   int       // of the messages so far: see fanOut
	due      time.Time // the earliest that the calendar must know of
	doubtful []Doubtful
	origin   *Origin // of the call; nil if there is none, or nothing is traced
}

// A recipient is what one function knows of a mailbox that it sends to.
type recipient struct {
	id      int64
	ref     MailboxRef
	name    string // ref as a person writes it
	waiting int64
	added   int64
	counted bool // by fanOut
}

// NewSendTx returns a SendTx for messages of an actor. from is their origin, nil if nothing is traced.
func (b *Broker) NewSendTx(tx *store.Tx, actor Actor, from *Origin) *SendTx {
	return &SendTx{Broker: b, tx: tx, actor: actor, known: map[MailboxRef]*recipient{}, origin: from}
}

// Send sends a message, which must not be larger than its session allows. Errors: as Broker.Send.
func (s *SendTx) Send(d *Draft) (Outcome, error) { return s.sendFitting(d, 0, 0) }

// sendFitting sends one draft of a client, which must not be larger than its session allows. What the broker itself has to say is
// never too large: it would fail the change that it is about.
func (s *SendTx) sendFitting(d *Draft, producer, number int64) (Outcome, error) {
	doubts, err := s.admission.Judge(&s.actor.Session, d)
	if err != nil {
		return Outcome{}, err
	}
	out, err := s.send(d, producer, number)
	if err != nil {
		return out, err
	}
	s.sent++
	if out.Warnings, err = s.advisor.Warnings(s.tx, &s.actor, d, out); err != nil {
		return out, err
	}
	if len(doubts) > 0 {
		out.Warnings = append(out.Warnings, doubts...)
		s.doubtful = append(s.doubtful, Doubtful{out.Revision, d.Doubt})
	}
	return out, nil
}

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

// send sends one draft. It changes nothing before all that could refuse it has been looked at.
func (s *SendTx) send(d *Draft, producer, number int64) (Outcome, error) {
	p, err := s.prepare(d)
	if err != nil {
		return Outcome{}, err
	}
	if err := s.insert(p, producer, number); err != nil {
		return Outcome{}, err
	}
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

// prepare looks at all that could refuse a draft: its sender's rights, its times, what it answers, and its recipients.
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

// insert writes the message, and the event that it was sent.
func (s *SendTx) insert(p *post, producer, number int64) (err error) {
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
	entry := s.actor.Event("message.sent")
	entry.Summary = d.summary()
	entry.Details = d.details(p.out)
	entry.TaskID = d.Task
	if p.answers != nil {
		entry.Related = []string{strconv.FormatInt(p.answers.to.Revision, 10)}
	}
	if m.Revision, err = s.log.Append(s.tx, entry); err != nil {
		return err
	}
	m.ID = newID(m.CreatedAt, m.Revision)
	p.out.Revision, p.out.ID = m.Revision, m.ID
	s.tx.Exec(insertMessage, m.Revision, m.ID[:], s.actor.Session.ID, m.Sender, m.SenderRole, m.CreatedAt, m.ExpiresAt,
		d.Type, d.Priority, null(d.channel()), null(m.Thread), null(d.Correlation), null(d.Task), nullInt(producer), nullInt(number), m.Content)
	for _, name := range d.Artifacts {
		s.tx.Exec(insertMessageArtifact, s.actor.Session.ID, name, m.Revision)
	}
	return nil
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
	if c == nil {
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

// Finish writes what the messages have in common.
func (s *SendTx) Finish() error {
	for _, r := range s.known {
		if r.added == 0 {
			continue
		}
		s.tx.Exec(addWaiting, r.added, r.id)
	}
	s.Calendar.Expect(s.tx, s.due)
	if len(s.doubtful) > 0 {
		if err := s.admission.Report(s.tx, &s.actor, s.doubtful); err != nil {
			return err
		}
	}
	if s.sent > 0 {
		s.tx.OnCommit(func() { s.Counters.worked(s.actor, s.sent, 0, 0) })
	}
	return nil
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

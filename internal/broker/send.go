package broker

import (
	"cmp"
	"context"
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
		p.save(tx)
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
	ready    readied
	audience []string  // the agents that receive the message, in place of its target; nil = the target's
	part     bool      // the message is part of another change: dispatch delivers it, not this function
	overfull bool      // full mailboxes take the message
	notice   bool      // the message is a notice: it is not work
	more     bool      // the audience has more agents, whose copies follow
	arrival  int64     // of copies that follow their message; 0 = they come with it
	sent     int       // drafts of the caller that were sent
	copies   int       // of the messages so far: see fanOut
	seen     []int64   // mailboxes whose readers have something to see, although nothing is ready in them
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

// send sends one draft. It changes nothing before all that could refuse it has been looked at.
func (s *SendTx) send(d *Draft, producer, number int64) (Outcome, error) {
	now := s.tx.Now()
	directive := IsDirective(d.Type)
	if directive {
		if err := s.directives.MayDirect(&s.actor, d.Type); err != nil {
			return Outcome{}, err
		}
	}
	if d.NotBefore.Sub(now) > MaxTTL {
		return Outcome{}, fault.Field("not_before", "is more than 365 days ahead")
	}
	if d.Response {
		if err := d.checkDeadline(now); err != nil {
			return Outcome{}, err
		}
	}
	answers, err := s.answers(d)
	if err != nil {
		return Outcome{}, err
	}
	d = s.complete(d, answers)
	var span *tracing.Span
	tracer := s.Traces.tracer
	if tracer != nil {
		if d, span, err = tracer.Begin(s.tx, &s.actor, s.origin, d, answers.message()); err != nil {
			return Outcome{}, err
		}
	}
	to, err := s.recipients(d, answers)
	if err == nil && s.audience == nil && !s.overfull {
		err = s.fanOut(d, to, answers)
	}
	if err != nil {
		return Outcome{}, err
	}
	expires, err := s.expiry(d, now)
	if err != nil {
		return Outcome{}, err
	}
	out := Outcome{Count: len(to), More: s.more, Awaited: answers.awaited(), Direct: d.Target.Kind == ToAgent}
	limit := s.actor.Session.MailboxLimit
	if directive || s.overfull {
		limit = 0 // an agent with a full mailbox must still receive orders, and what the broker sends
	}
	for _, r := range to {
		full := limit > 0 && r.waiting+r.added >= limit && !answers.awaitedIn(r)
		if full {
			out.Refused++
		}
		if len(to) <= namedRecipients {
			out.Recipients = append(out.Recipients, Recipient{r.name, full})
		}
	}
	if refused := out.Refused; refused > 0 && s.Counters.observer != nil {
		s.tx.OnCommit(func() { s.Counters.observer.Full(refused) })
	}
	entry := s.actor.Event("message.sent")
	entry.Summary = d.summary()
	entry.Details = d.details(out)
	entry.TaskID = d.Task
	if answers != nil {
		entry.Related = []string{strconv.FormatInt(answers.to.Revision, 10)}
	}
	if out.Revision, err = s.log.Append(s.tx, entry); err != nil {
		return Outcome{}, err
	}
	out.ID = newID(now, out.Revision)
	m := Message{
		Revision: out.Revision, ID: out.ID, Sender: s.actor.Name, SenderRole: s.actor.Role, CreatedAt: now, ExpiresAt: expires,
		Thread: answers.thread(d), Content: d.Content,
	}
	s.tx.Exec(insertMessage, out.Revision, out.ID[:], s.actor.Session.ID, s.actor.Name, s.actor.Role, now, expires,
		d.Type, d.Priority, null(d.channel()), null(m.Thread), null(d.Correlation), null(d.Task), nullInt(producer), nullInt(number), d.Content)
	if span != nil {
		tracer.Sent(s.tx, &s.actor, span, d, out)
	}
	if err := s.Counters.countOf(s.tx, s.actor.Session, isSent, d.Type); err != nil {
		return Outcome{}, err
	}
	for _, name := range d.Artifacts {
		s.tx.Exec(insertMessageArtifact, s.actor.Session.ID, name, out.Revision)
	}
	if d.Response {
		s.due = Earliest(s.due, d.Deadline)
		s.questions.Asked(s.tx, s.actor.Session.ID, &m, d.Deadline)
	}
	if answers.settles() && (out.Count == 0 || out.Refused < out.Count) {
		if err := answers.question.Answered(s.tx, s.actor.Session.ID, &m); err != nil {
			return Outcome{}, err
		}
	}
	rank := Rank(s.actor.Session.Ageing, d.Priority, s.tx.Latest())
	if directive {
		rank = directRank(s.tx.Latest())
	}
	most := d.MaxAttempts
	if most == 0 {
		most = s.actor.Session.MaxAttempts
	}
	for _, r := range to {
		if answers.awaitedIn(r) {
			s.tx.Exec(insertAwaited, m.Revision, r.id, rank, most, now, expires)
			for _, fate := range []string{isDelivered, isAcked} {
				if err := s.Counters.countOf(s.tx, s.actor.Session, fate, d.Type); err != nil {
					return Outcome{}, err
				}
			}
			asker := Actor{Agent: directory.Agent{Name: r.name}, Session: s.actor.Session}
			s.tx.OnCommit(func() { s.Counters.worked(asker, 0, 1, 1) })
			continue
		}
		if limit > 0 && r.waiting+r.added >= limit {
			continue
		}
		if err := s.deliver(r, d, &m, rank, most); err != nil {
			return Outcome{}, err
		}
	}
	if directive {
		return out, s.direct(d, out.Revision, to)
	}
	return out, nil
}

// deliver puts a message into one mailbox, or into the hands of a consumer that waits for it.
func (s *SendTx) deliver(r *recipient, d *Draft, m *Message, rank int64, most int) error {
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
		if _, ready := s.ready[r.id]; !ready {
			handed, err := s.handOff(r, d, m, rank, most, arrival)
			if err != nil || handed {
				return err
			}
		}
	}
	s.tx.Exec(insertDelivery, m.Revision, r.id, int(state), rank, arrival, most, due, m.ExpiresAt, null(d.OrderingKey))
	if state.Waits() {
		r.added++
	}
	switch {
	case state == Pending:
		s.ready.add(r.id, place{rank, m.Revision})
	case state == Delayed:
		s.due = Earliest(s.due, d.NotBefore)
	case due == nil:
		s.ready.seen(r.id)
	}
	s.due = Earliest(s.due, m.ExpiresAt)
	if d.ResendAfter > 0 && r.ref.Kind == AgentMailbox {
		s.remind(r, d, m)
	}
	return nil
}

// remind records when a delivery is to arrive again, unless an agent notices it before.
func (s *SendTx) remind(r *recipient, d *Draft, m *Message) {
	due := m.CreatedAt
	if d.NotBefore.After(due) {
		due = d.NotBefore
	}
	due = due.Add(d.ResendAfter)
	s.due = Earliest(s.due, due)
	s.tx.Exec(insertResend, m.Revision, r.id, d.ResendAfter, due)
}

// handOff gives a message to a consumer that waits for it, if there is one.
func (s *SendTx) handOff(r *recipient, d *Draft, m *Message, rank int64, most int, arrival any) (bool, error) {
	c, err := s.Waiters.waiting(s.tx, r.id, r.ref, &ready{
		Claim: Claim{Message: *m}, place: place{rank, m.Revision}, kind: d.Type, priority: d.Priority,
		task: d.Task, correlation: d.Correlation,
	})
	if c == nil {
		return false, err
	}
	s.tx.Exec(insertHanded, m.Revision, r.id, rank, arrival, most, m.ExpiresAt, null(d.OrderingKey),
		c.actor.Mailbox, c.name, m.CreatedAt, c.claimFor)
	s.Waiters.grant(s.tx, c, Claim{
		Message: *m, Mailbox: r.name, Number: 1, Attempt: 1, MaxAttempts: most, ExpiresIn: c.claimFor,
		key: key{m.Revision, r.id}, ordered: d.OrderingKey != "", fresh: true,
	})
	if r.ref.Kind == AgentMailbox {
		s.seen = append(s.seen, r.id)
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
	for _, mailbox := range s.seen {
		if _, ok := s.ready[mailbox]; !ok {
			s.ready.seen(mailbox)
		}
	}
	s.Waiters.wake(s.tx, s.ready)
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

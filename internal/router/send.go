package router

import (
	"context"
	"time"

	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/mail"
	"brokerd/internal/msgid"
	"brokerd/internal/producers"
	"brokerd/internal/store"
)

// namedRecipients is up to how many recipients an answer names.
const namedRecipients = 100

// draftSize is about how many bytes a draft takes beside its content.
const draftSize = 512

// An Outcome is what became of one message that was to be sent.
type Outcome struct {
	ID         msgid.ID
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
	Drafts   []mail.Draft
	Producer string // empty = none
	First    int64  // the number of the first draft, with a producer
	At       int    // the index of the first draft in the request, for errors

	// Of a stream with a producer: a number above those of a lost batch would have the broker refuse these for good.
	Sequence *Sequence
	Place    int // in the sequence, from 0
}

// A Sequence is batches of which each is accepted only after the one before. It belongs to the writer.
type Sequence struct {
	accepted store.Value[int]
}

// follow takes note of the next batch. Errors: fault.Unavailable (EARLIER_FAILED) if one before it was not accepted.
func (q *Sequence) follow(tx *store.Tx, place int) error {
	if q == nil {
		return nil
	}
	if q.accepted.Get() != place {
		return fault.New(fault.Unavailable, "EARLIER_FAILED",
			"earlier messages of the stream could not be accepted: send them again, and then this one, on another stream")
	}
	q.accepted.Set(tx, place+1)
	return nil
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
func (r *Router) Send(
	ctx context.Context, c identity.Caller, req idempotency.Request, drafts []mail.Draft,
) ([]Outcome, error) {
	if err := r.admission.Admit(ctx, c, len(drafts)); err != nil {
		return nil, err
	}
	from := r.Origin(ctx)
	var outcomes []Outcome
	var seen bool
	err := r.store.Write(ctx, func(tx *store.Tx) (err error) {
		seen, err = req.Do(tx, &outcomes, func() error {
			a, err := r.core.Mailboxes.Acting(tx, c)
			if err != nil {
				return err
			}
			s := r.NewTx(tx, a, from)
			outcomes = make([]Outcome, len(drafts))
			for i := range drafts {
				if outcomes[i], err = s.Send(&drafts[i]); err != nil {
					return fault.Indexed(err, i, len(drafts))
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
func (r *Router) Submit(ctx context.Context, c identity.Caller, batch Batch, done func([]Outcome)) {
	from := r.Origin(ctx)
	var outcomes []Outcome
	r.store.Submit(ctx, store.LaneFill, batch.size(), func(tx *store.Tx) error {
		outcomes = make([]Outcome, len(batch.Drafts))
		if err := batch.Sequence.follow(tx, batch.Place); err != nil {
			return err
		}
		a, err := r.core.Mailboxes.Acting(tx, c)
		if err != nil {
			return refuse(outcomes, err)
		}
		s := r.NewTx(tx, a, from)
		p, err := r.Producers.Open(tx, producers.Name{Session: a.Session.ID, Sender: a.Name, Name: batch.Producer})
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
			if p.ID() != 0 {
				number = batch.First + int64(i)
				if p.Has(number) {
					m, err := p.Duplicate(tx, number)
					outcomes[i] = Outcome{ID: m.ID, Revision: m.Revision, Count: m.Count, Duplicate: err == nil}
					if err := kept(err, batch.At+i, &outcomes[i]); err != nil {
						return err
					}
					continue
				}
			}
			outcomes[i], err = s.sendFitting(draft, p.ID(), number)
			if err := kept(err, batch.At+i, &outcomes[i]); err != nil {
				return err
			}
			if p.ID() != 0 && outcomes[i].Fault == nil {
				p.Accept(number, outcomes[i].Revision)
			}
		}
		r.Producers.Save(tx, &p)
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

// refuse makes a refusal the outcome of all drafts, and passes on what went wrong with the broker.
func refuse(all []Outcome, err error) error {
	switch fault.KindOf(err) {
	case fault.Internal, fault.Unavailable:
		return err
	}
	for i := range all {
		all[i].Fault = err
	}
	return nil
}

// kept keeps a refusal as the outcome of item i of the request and passes on what went wrong with the broker.
func kept(err error, i int, o *Outcome) error {
	switch fault.KindOf(err) {
	case fault.Internal, fault.Unavailable:
		return err
	default:
		o.Fault = fault.Indexed(err, i, 1)
		return nil
	}
}

// A Tx sends messages of one actor in one function of the writer. It keeps what is looked up or written once for all
// of them. Its methods may be called until Finish.
type Tx struct {
	*Router
	tx       *store.Tx
	actor    mail.Actor
	known    map[mail.MailboxRef]*recipient
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
	mail.Mailbox
	name    string // as a person writes it
	waiting int64
	added   int64
	counted bool // by fanOut
}

// NewTx returns a Tx for messages of an actor. from is their origin, nil if nothing is traced.
func (r *Router) NewTx(tx *store.Tx, actor mail.Actor, from *Origin) *Tx {
	return &Tx{Router: r, tx: tx, actor: actor, known: map[mail.MailboxRef]*recipient{}, origin: from}
}

// Send sends a message, which must not be larger than its session allows. Errors: as Router.Send.
func (s *Tx) Send(d *mail.Draft) (Outcome, error) { return s.sendFitting(d, 0, 0) }

// sendFitting sends one draft of a client, which must not be larger than its session allows. What the broker itself has to say is
// never too large: it would fail the change that it is about.
func (s *Tx) sendFitting(d *mail.Draft, producer, number int64) (Outcome, error) {
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

// Finish writes what the messages have in common.
func (s *Tx) Finish() error {
	for _, r := range s.known {
		mail.AddWaiting(s.tx, r.ID, r.added)
	}
	s.core.Calendar.Expect(s.tx, s.due)
	if len(s.doubtful) > 0 {
		if err := s.admission.Report(s.tx, &s.actor, s.doubtful); err != nil {
			return err
		}
	}
	if s.sent > 0 {
		s.tx.OnCommit(func() { s.core.Counters.Worked(s.actor, s.sent, 0, 0) })
	}
	return nil
}

package broker

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

// The writer function that sends a reply assigns it to the waiting call: it notes the reply as finished and
// removes the call from the list. A call whose wait has ended removes itself from the list in the writer, and then
// checks again for a reply. So a reply is either the call's or ordinary mail, and the writer's order decides which.
//
// A cancelled call cannot return a reply. If the writer has already assigned a reply to it, the call delivers that
// reply to the asking agent's mailbox, unless the agent has retried the question.

// Asked is the result of a question.
type Asked struct {
	ID       ID
	Revision int64
	Warnings []string
	Reply    *Message `json:"-"` // nil if none came
	NoReply  NoReply  `json:"-"` // without a reply: whether none can come any more
}

// An asking is a call that waits for the reply to a question.
type asking struct {
	question int64
	session  int64
	agent    string
	told     chan verdict // capacity 1
	over     atomic.Bool  // its wait has ended
}

// A verdict ends a wait: with a reply, or without one, because none can come any more or the asker has failed or
// deregistered.
type verdict struct {
	reply *Message
	none  NoReply
	err   error
	share *sharedReply
}

// send sends the verdict to the calls of waits, which are no longer on the list.
func (v verdict) send(waits []*asking) {
	v.share = &sharedReply{}
	v.share.left.Store(int32(len(waits)))
	for _, w := range waits {
		w.told <- v
	}
}

// A sharedReply counts the calls that have received the same reply.
type sharedReply struct {
	left     atomic.Int32 // that have not yet returned
	returned atomic.Bool  // one of them has returned the reply
}

// leave notes that a call returns, with the reply or without it. It reports whether the call is the last one and
// no call has returned the reply.
func (s *sharedReply) leave(withReply bool) (lost bool) {
	if withReply {
		s.returned.Store(true)
	}
	return s.left.Add(-1) == 0 && !s.returned.Load()
}

// Ask sends a question and waits for its reply, which goes to this call alone. The same request continues to wait
// for the reply to the same question, or returns it. The wait ends without a reply as soon as none can come.
// Errors: as Send; fault.Precondition (NO_RESPONDERS) if no agent could reply; fault.Exhausted (MAILBOX_FULL) if
// no mailbox took the question.
func (b *Broker) Ask(ctx context.Context, c identity.Caller, req idempotency.Request, draft Draft, wait time.Duration) (Asked, error) {
	if err := b.admit(ctx, c, 1); err != nil {
		return Asked{}, err
	}
	from := b.Origin(ctx)
	var asked Asked
	var w *asking
	draft.Response, draft.Within = true, wait
	err := b.store.Write(ctx, func(tx *store.Tx) error {
		w = nil
		var s *sending
		seen, err := req.Do(tx, &asked, func() (err error) {
			if s, err = b.sending(tx, c); err != nil {
				return err
			}
			s.origin = from
			asked, err = s.ask(&draft)
			return err
		})
		if err != nil {
			return err
		}
		var a Actor
		if seen {
			if a, err = b.Acting(tx, c); err != nil {
				return err
			}
			var settled bool
			if asked.Reply, settled, err = b.fetch(tx, a, asked.Revision); err != nil || settled {
				return err
			}
			if asked.NoReply, err = noReplyTo(tx, asked.Revision); err != nil || asked.NoReply.Reason != StillOpen {
				return err
			}
		} else {
			a = s.actor
		}
		w = b.waitFor(tx, a, asked.Revision)
		return nil
	})
	if err != nil || w == nil {
		return asked, err
	}
	v, err := b.awaitReply(ctx, w, wait)
	asked.Reply, asked.NoReply = v.reply, v.none
	return asked, err
}

// ask sends the question.
func (s *sending) ask(d *Draft) (Asked, error) {
	somebody, err := s.responders(d.Target)
	if err != nil {
		return Asked{}, err
	}
	var out Outcome
	if somebody {
		if out, err = s.sendFitting(d, 0, 0); err != nil {
			return Asked{}, Within("message", err)
		}
	}
	if out.Count == 0 && !out.Awaited {
		return Asked{}, s.noResponders(d.Target)
	}
	if out.Count > 0 && out.Refused == out.Count {
		return Asked{}, MailboxFull(d.Target, s.actor.Session.MailboxLimit)
	}
	return Asked{ID: out.ID, Revision: out.Revision, Warnings: out.Warnings}, s.finish()
}

// responders reports whether a target means a registered agent other than the one that asks. An agent that does
// not exist is left to the sending.
func (s *sending) responders(t Target) (bool, error) {
	var role, pattern string
	switch t.Kind {
	case ToAgent:
		return t.Name != s.actor.Name || s.actor.System(), nil
	case ToChannel:
		id, err := s.FindMailbox(s.tx, s.actor.Session.ID, MailboxRef{ChannelMailbox, t.Name})
		if err != nil {
			return false, err
		}
		names, err := SubscribersOf(s.tx, id)
		return slices.ContainsFunc(names, func(name string) bool { return name != s.actor.Name }), err
	case ToRole:
		role = t.Name
	case ToPattern:
		pattern = t.Name
	case ToEveryone:
	}
	agents, err := s.dir.Matching(s.tx, s.actor.Session.ID, Selection{Role: role, Pattern: pattern})
	return slices.ContainsFunc(agents, func(a Agent) bool { return a.Name != s.actor.Name }), err
}

// noResponders returns the error of a question that no agent can reply to.
func (s *sending) noResponders(t Target) error {
	var absent string
	var err error
	switch t.Kind {
	case ToRole:
		absent, err = s.vacancy(MailboxRef{RoleMailbox, t.Name})
	case ToChannel:
		absent, err = s.vacancy(MailboxRef{ChannelMailbox, t.Name})
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
func (b *Broker) fetch(tx *store.Tx, a Actor, question int64) (*Message, bool, error) {
	var settled, reply int64
	err := tx.QueryRow(selectQuestion, question).Scan(&settled, &reply)
	if errors.Is(err, store.ErrNoRows) {
		return nil, true, nil // so long ago that it was removed
	}
	if err != nil || settled == 0 || reply == 0 {
		return nil, settled != 0, err
	}
	m, err := FindMessage(tx, a.Session.ID, Ref{Revision: reply})
	if fault.KindOf(err) == fault.NotFound {
		return nil, true, nil
	}
	if err != nil {
		return nil, true, err
	}
	if a.Mailbox, err = b.FindMailbox(tx, a.Session.ID, MailboxRef{AgentMailbox, a.Name}); err != nil {
		return nil, true, err
	}
	waiting, _, err := unclaimed(tx, reply)
	if err != nil {
		return nil, true, err
	}
	i := slices.IndexFunc(waiting, func(h *held) bool { return h.mailbox == a.Mailbox })
	if i >= 0 && waiting[i].state == Delayed {
		return nil, true, nil
	}
	tx.Exec(updateFetched, question)
	if i < 0 {
		return &m, true, nil
	}
	s := b.NewSettleTx(tx, a)
	if _, err := s.Settle(&Settlement{Verb: Ack, Ref: Ref{Text: m.ID.String(), Revision: reply}}); err != nil {
		return nil, true, err
	}
	_, err = s.Finish()
	return &m, true, err
}

// waitFor adds a call to the list of those that wait for the reply to a question.
func (b *Broker) waitFor(tx *store.Tx, a Actor, question int64) *asking {
	w := &asking{question: question, session: a.Session.ID, agent: a.Name, told: make(chan verdict, 1)}
	b.asks.Set(tx, question, append(slices.Clip(b.asks.Get(question)), w))
	return w
}

// waitingFor returns the calls that wait for the reply to a question.
func (b *Broker) waitingFor(question int64) []*asking {
	var waits []*asking
	for _, w := range b.asks.Get(question) {
		if !w.over.Load() {
			waits = append(waits, w)
		}
	}
	return waits
}

// unlist removes a call from the list.
func (b *Broker) unlist(tx *store.Tx, w *asking) {
	rest := slices.DeleteFunc(slices.Clone(b.asks.Get(w.question)), func(o *asking) bool { return o == w })
	if len(rest) == 0 {
		b.asks.Delete(tx, w.question)
	} else {
		b.asks.Set(tx, w.question, rest)
	}
}

// endWaits removes the calls that wait for the reply to a question from the list, and sends them v after the
// commit. waits are the calls that waitingFor has found. The wait of some of them may have ended since; they check
// again for a verdict.
func (b *Broker) endWaits(tx *store.Tx, question int64, waits []*asking, v verdict) {
	if len(waits) == 0 {
		return
	}
	b.asks.Delete(tx, question)
	tx.OnCommit(func() { v.send(waits) })
}

// endAsks ends what the calls of an agent, or of a whole session, wait for, with an error.
func (b *Broker) endAsks(tx *store.Tx, session int64, agent string, err error) {
	for question, waits := range b.asks.All() {
		w := waits[0] // all of one question are the asker's
		if w.session == session && (agent == "" || w.agent == agent) {
			b.endWaits(tx, question, b.waitingFor(question), verdict{err: err})
		}
	}
}

// awaitReply waits until the question is settled, or for as long as the caller wants to.
func (b *Broker) awaitReply(ctx context.Context, w *asking, wait time.Duration) (verdict, error) {
	timer := b.clock.NewTimer(wait)
	defer timer.Stop()
	var v verdict
	var err error
	select {
	case v = <-w.told:
	case <-timer.Chan():
	case <-b.stopping:
		err = ErrStopping()
	case <-ctx.Done():
	}
	if v.share == nil {
		w.over.Store(true)
		drained := b.store.Drain(context.WithoutCancel(ctx), func(tx *store.Tx) error {
			b.unlist(tx, w)
			return nil
		})
		// A reply that was sent before has reached w.told. A later reply finds no call on the list.
		select {
		case v = <-w.told:
		default:
			if err == nil {
				err = drained
			}
		}
	}
	broken := ctx.Err()
	if v.share != nil {
		err = v.err
		if lost := v.share.leave(v.reply != nil && broken == nil); lost && v.reply != nil {
			b.putBack(w, v.reply)
		}
	}
	if broken != nil {
		return verdict{}, broken
	}
	return v, err
}

// putBack turns a reply into ordinary mail that was assigned to a call that was cancelled.
func (b *Broker) putBack(w *asking, reply *Message) {
	err := b.store.Drain(context.Background(), func(tx *store.Tx) error {
		session, err := b.dir.ByID(tx, w.session)
		if err != nil || session.Closed {
			return err
		}
		agent, found, err := b.dir.Find(tx, w.session, w.agent)
		if w.agent == identity.System {
			agent, found = Agent{Name: identity.System}, true
		}
		if err != nil || !found {
			return err
		}
		a := Actor{Agent: agent, Session: session}
		if a.Mailbox, err = b.FindMailbox(tx, w.session, MailboxRef{AgentMailbox, w.agent}); err != nil {
			return err
		}
		at := place{message: reply.Revision}
		var expires time.Time
		err = tx.QueryRow(selectAwaited, w.question, reply.Revision, a.Mailbox).Scan(&at.rank, &expires)
		if errors.Is(err, store.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		arrival, err := b.resent(tx, system(w.session), reply.Revision, []string{w.agent})
		if err != nil {
			return err
		}
		tx.Exec(updateUnawaited, arrival, reply.Revision, a.Mailbox)
		tx.Exec(addWaiting, 1, a.Mailbox)
		var ready readied
		ready.add(a.Mailbox, at)
		b.wake(tx, ready)
		b.Calendar.Expect(tx, expires)
		return nil
	})
	if err != nil {
		b.zap.Warn("a reply whose asker broke off was not put into its mailbox; asking again under the same request id returns it",
			zap.Int64("reply", reply.Revision), zap.Error(err))
	}
}

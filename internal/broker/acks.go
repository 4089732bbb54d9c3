package broker

import (
	"context"

	"brokerd/internal/fault"
	"brokerd/internal/mail"
	"brokerd/internal/store"
)

// This file has what streams settle. Most settlements are acks of a stream's own claims. These are notes, which one round
// applies for all streams.

// Settle hands settlements to the writer; their results come out of Next, in order. It blocks while too many are
// unanswered.
func (s *ClaimStream) Settle(ctx context.Context, items []Settlement) error {
	s.mu.Lock()
	for s.unanswered > maxUnanswered {
		s.mu.Unlock()
		select {
		case <-s.settled:
		case <-ctx.Done():
			return ctx.Err()
		}
		s.mu.Lock()
	}
	s.unanswered += len(items)
	acks := s.broker.tracer == nil
	for i := range items {
		o, held := s.open[items[i].Ref.Text]
		if held {
			items[i].key, items[i].class, items[i].ordered, items[i].bytes = o.key, o.class, o.ordered, o.bytes
		}
		acks = acks && held && items[i].Verb == Ack && items[i].Fault == nil
	}
	s.mu.Unlock()
	results := make([]Settled, len(items))
	done := func(err error) {
		if err != nil {
			for i := range results {
				results[i] = Settled{ClaimID: items[i].Ref.Text, Fault: err}
			}
		}
		s.answer(items, results)
	}
	settle := func(tx *store.Tx) error {
		a, err := s.broker.Mailboxes.ActingAgent(tx, s.caller)
		switch {
		case err != nil:
			return err
		case acks:
			return s.noteAcks(tx, streamItems{s, a, items, results})
		}
		return s.settleAll(tx, streamItems{s, a, items, results})
	}
	if st := s.broker.store; acks {
		st.SubmitNotes(ctx, store.LaneDrain, settlementsSize(items), settle, done)
	} else {
		st.Submit(ctx, store.LaneDrain, settlementsSize(items), settle, done)
	}
	return nil
}

// noteAcks leaves acks to settleAcks.
func (s *ClaimStream) noteAcks(tx *store.Tx, n streamItems) error {
	if !s.broker.Waiters.mayHave(s.consumer) {
		tx.Patient() // nothing waits for the capacity that they free
	}
	s.broker.acks.Note(tx, n, len(n.items))
	return nil
}

// settleAll applies settlements of any kind.
func (s *ClaimStream) settleAll(tx *store.Tx, n streamItems) error {
	c := s.broker.NewSettleTx(tx, n.actor)
	for i := range n.items {
		var err error
		if n.results[i], err = c.outcome(&n.items[i]); err != nil {
			return err
		}
	}
	c.items = []streamItems{n}
	_, err := c.finish(s.consumer)
	return err
}

// settlementsSize is about how many bytes settlements take.
func settlementsSize(items []Settlement) int {
	n := 0
	for i := range items {
		n += settlementSize + len(items[i].Error)
	}
	return n
}

// ended reports whether a settlement has ended its claim.
func (item *Settlement) ended(result *Settled) bool {
	return result.Fault == nil && item.Verb != Extend
}

// release returns to the consumer the capacity of the claims that it has settled. It runs in the writer.
func (s *ClaimStream) release(items []Settlement, results []Settled) {
	claims, bytes := 0, 0
	s.mu.Lock()
	for i := range items {
		o, held := s.open[items[i].Ref.Text]
		if !held || o.released || !items[i].ended(&results[i]) {
			continue
		}
		o.released = true
		s.open[items[i].Ref.Text] = o
		if !items[i].applied {
			claims++
			bytes += o.bytes
		}
	}
	s.mu.Unlock()
	if claims > 0 {
		s.broker.Waiters.release(nil, s.consumer, claims, bytes)
	}
}

// answer queues results, and forgets the claims that have ended.
func (s *ClaimStream) answer(items []Settlement, results []Settled) {
	observer, now := s.broker.Counters.observer, s.broker.clock.Now()
	s.mu.Lock()
	for i := range items {
		o, held := s.open[items[i].Ref.Text]
		if !held || !items[i].ended(&results[i]) {
			continue
		}
		delete(s.open, items[i].Ref.Text)
		if observer != nil && items[i].Verb == Ack {
			observer.Acked(now.Sub(o.since))
		}
	}
	s.frame.Results = append(s.frame.Results, results...)
	s.mu.Unlock()
	signal(s.wake)
}

// A streamItems is a row of settlements by a stream.
type streamItems struct {
	stream  *ClaimStream
	actor   mail.Actor
	items   []Settlement
	results []Settled
}

// settleAcks applies the acks that streams have noted, those of all streams together.
func (b *Broker) settleAcks(tx *store.Tx, noted []streamItems) error {
	type ack struct {
		item  *Settlement
		agent int64
	}
	var direct []ack
	for _, n := range noted {
		n.stream.change = nil
		has := b.Streams.has(n.stream.consumer)
		for i := range n.items {
			n.items[i].applied = false
			if has {
				direct = append(direct, ack{&n.items[i], n.actor.Mailbox})
			}
		}
	}
	args := []any{tx.Now(), nil, nil, nil, nil}
	changed, err := tx.ExecEach(updateAckClaimed, len(direct), func(i int) []any {
		a := &direct[i]
		args[1], args[2], args[3], args[4] = a.item.key.Message, a.item.key.Mailbox, a.item.Ref.Claim, a.agent
		return args
	})
	if err != nil {
		return err
	}
	for i := range direct {
		direct[i].item.applied = changed[i] > 0
	}
	for _, n := range noted {
		if n.stream.change == nil {
			n.stream.change = b.NewSettleTx(tx, n.actor)
		}
		if err := n.stream.change.ackAll(n); err != nil {
			return err
		}
	}
	for _, n := range noted {
		if s := n.stream.change; s != nil {
			n.stream.change = nil
			if _, err := s.finish(n.stream.consumer); err != nil {
				return err
			}
		}
	}
	return nil
}

// ackAll completes the acks of a stream: those whose rows have changed, and those that need a closer look.
func (s *SettleTx) ackAll(n streamItems) error {
	claims, bytes := 0, 0
	for i := range n.items {
		item := &n.items[i]
		var err error
		if item.applied {
			claims++
			bytes += item.bytes
			n.results[i], err = Settled{ClaimID: item.Ref.Text, State: mail.Acked}, s.acked(item)
		} else {
			n.results[i], err = s.outcome(item)
		}
		if err != nil {
			return err
		}
	}
	if claims > 0 {
		s.Waiters.release(s.tx, n.stream.consumer, claims, bytes)
	}
	s.items = append(s.items, n)
	return nil
}

// outcome applies a settlement of a stream. Its error says that something is wrong with the broker.
func (s *SettleTx) outcome(item *Settlement) (Settled, error) {
	done, err := Settled{}, item.Fault
	if err == nil {
		done, err = s.Settle(item)
	}
	if err != nil {
		if kind := fault.KindOf(err); kind == fault.Internal || kind == fault.Unavailable {
			return done, err
		}
		done = Settled{Fault: err}
	}
	done.ClaimID = item.Ref.Text
	return done, nil
}

// acked notes what follows from the ack of a claim that was still in force.
func (s *SettleTx) acked(item *Settlement) error {
	s.noted[Ack] = append(s.noted[Ack], item.Ref.Text)
	s.ended = append(s.ended, heldClaim{key: item.key})
	if err := s.Counters.countOne(s.tx, s.actor.Session, isAcked, item.key.Message, item.class); err != nil {
		return err
	}
	if err := s.questions.Unanswered(s.tx, item.key.Message); err != nil {
		return err
	}
	if err := s.breakers.Succeeded(s.tx, s.actor.Session.ID, s.actor.Mailbox, item.key); err != nil {
		return err
	}
	if item.ordered {
		return s.promoteAfter(item.key)
	}
	return nil
}

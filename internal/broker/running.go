package broker

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"

	"brokerd/internal/deadline"
	"brokerd/internal/fault"
	"brokerd/internal/mail"
	"brokerd/internal/msgid"
	"brokerd/internal/store"
)

// restartGrace is what every claim gets on top of its full time when the broker starts again.
const restartGrace = 30 * time.Second

// RunningClaims has the times at which the running claims end. It fails the claims that run out. Its methods may be
// called concurrently.
type RunningClaims struct {
	broker *Broker
	ends   *deadline.Queue[mail.DeliveryID]
}

func newRunningClaims(b *Broker) *RunningClaims {
	r := &RunningClaims{broker: b}
	r.ends = deadline.New(b.clock, r.due)
	return r
}

// resume gives the claims that were running when the broker stopped their full time again, and a grace.
func (r *RunningClaims) resume(s *store.Snapshot) error {
	rows := s.Query(selectRunningClaims)
	now := r.broker.clock.Now()
	for rows.Next() {
		var k mail.DeliveryID
		var lasts time.Duration
		if err := rows.Scan(&k.Message, &k.Mailbox, &lasts); err != nil {
			return err
		}
		r.ends.Set(k, now.Add(lasts+restartGrace))
	}
	return rows.Err()
}

// open returns claims that an agent's consumer holds, of one of the selectHeld queries: at most so many bytes
// of content, or one claim.
func (r *RunningClaims) open(tx *store.Tx, a mail.Actor, bytes int, query string, args ...any) ([]Claim, error) {
	claims, err := r.held(tx, a, query, args...)
	if err != nil {
		return nil, err
	}
	for i := range claims {
		c := &claims[i]
		if bytes -= c.unread; bytes < 0 && i > 0 {
			return claims[:i], nil
		}
		if err := tx.QueryRow(selectContent, c.Revision).Scan(&c.Content); err != nil {
			return nil, err
		}
		c.unread = 0
	}
	return claims, nil
}

// held returns claims that an agent's consumer holds, of one of the selectHeld queries, oldest first and
// without their contents.
func (r *RunningClaims) held(tx *store.Tx, a mail.Actor, query string, args ...any) ([]Claim, error) {
	if r.broker.Failures.unfinished(a.Mailbox) {
		return nil, nil // later functions end what the agent held when it failed
	}
	return store.Collect(tx.Query(query, args...), func(rows *store.Rows) (c Claim, err error) {
		var id []byte
		var ref mail.MailboxRef
		var kind, attempts int
		if err := rows.Scan(&c.key.Message, &c.key.Mailbox, &kind, &ref.Name, &c.Number, &attempts,
			&c.MaxAttempts, &c.ExpiresIn, &c.ordered, &id, &c.Sender, &c.SenderRole, &c.CreatedAt, &c.ExpiresAt,
			&c.Thread, &c.unread); err != nil {
			return c, err
		}
		copy(c.Message.ID[:], id)
		c.Revision = c.key.Message
		ref.Kind = mail.MailboxKind(kind)
		c.Mailbox, c.Attempt, c.Resumed = ref.String(), attempts+1, true
		if at, ok := r.ends.Deadline(c.key); ok {
			c.ExpiresIn = max(0, at.Sub(r.broker.clock.Now()))
		}
		return c, nil
	})
}

// End returns when the running claim of a delivery ends; false if no claim of it runs.
func (r *RunningClaims) End(message, mailbox int64) (time.Time, bool) {
	return r.ends.Deadline(mail.DeliveryID{Message: message, Mailbox: mailbox})
}

// Forget traces claims of a session that the caller ends, and forgets when they would have ended.
func (r *RunningClaims) Forget(tx *store.Tx, session int64, claims []mail.DeliveryID) error {
	if err := r.broker.NewSettleTx(tx, mail.System(session)).traceClosed(claims); err != nil {
		return err
	}
	tx.OnCommit(func() {
		for _, k := range claims {
			r.ends.Remove(k)
		}
	})
	return nil
}

// giveBack releases claims that never reached their consumer, without counting an attempt.
func (r *RunningClaims) giveBack(a mail.Actor, claims []Claim) {
	items := make([]Settlement, len(claims))
	for i := range claims {
		ref, _ := msgid.ParseRef(claims[i].ClaimID())
		items[i] = Settlement{Verb: Release, Ref: ref}
	}
	r.broker.store.Submit(context.Background(), store.LaneDrain, 0, func(tx *store.Tx) error {
		s := r.broker.NewSettleTx(tx, a)
		for i := range items {
			if _, err := s.Settle(&items[i]); err != nil && fault.KindOf(err) != fault.Precondition {
				return err
			}
		}
		_, err := s.Finish()
		return err
	}, func(err error) {
		if err != nil {
			r.broker.zap.Warn("claims were not given back and will run out", zap.Int("claims", len(items)), zap.Error(err))
		}
	})
}

// due fails claims that have run out. The writer checks the time again, because its order decides between an ack and
// the end.
func (r *RunningClaims) due(keys []mail.DeliveryID) {
	for page := range slices.Chunk(keys, failurePage) {
		r.ranOut(page)
	}
}

// ranOut is due for a page of claims.
func (r *RunningClaims) ranOut(keys []mail.DeliveryID) {
	err := r.broker.store.Drain(context.Background(), func(tx *store.Tx) error {
		bySession := map[int64]*SettleTx{}
		for _, k := range keys {
			if _, renewed := r.ends.Deadline(k); renewed {
				continue
			}
			h, session, err := claimedDelivery(tx, k)
			if err != nil {
				return err
			}
			if h == nil {
				continue
			}
			s := bySession[session]
			if s == nil {
				s = &SettleTx{Broker: r.broker, tx: tx, actor: mail.System(session), left: mail.Tally{}, why: RanOut}
				bySession[session] = s
			}
			lasted := tx.Now().Sub(h.claimedAt).Round(time.Millisecond)
			if _, _, err := s.fail(h, "the claim ran out after "+lasted.String(), false, nil); err != nil {
				return err
			}
			if err := r.broker.breakers.Failed(tx, session, h.holder, k); err != nil {
				return err
			}
		}
		for _, s := range bySession {
			if _, err := s.Finish(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		for _, k := range keys {
			r.ends.Set(k, r.broker.clock.Now().Add(time.Second))
		}
		r.broker.zap.Warn("claims that ran out could not be put back; trying again", zap.Error(err))
	}
}

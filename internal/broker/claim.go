package broker

import (
	"context"
	"math"
	"slices"
	"strconv"
	"time"

	"go.uber.org/zap"

	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

const (
	// MaxAnswer is how many bytes of messages one answer has at most.
	MaxAnswer = 3 << 20
	noLimit   = math.MaxInt32
)

// A Wish is what a consumer wants to take.
type Wish struct {
	Consumer  string
	Mailboxes []string // empty = all that the agent may take from
	Types     []string
	Priority  int   // this or higher
	Topic     Topic // unary calls
	IDs       []Ref // unary calls: just these messages, all or none
	Max       int
	MaxBytes  int
	ClaimFor  time.Duration
	MaxTotal  time.Duration // streams
	Wait      time.Duration // unary calls
	Notices   bool          // unary calls: return unread notices too
	Offer     *Offering     // unary calls: to whom notices are offered; nil = they are marked read
}

// Empty says why there was nothing to claim. The numbers are those of the API.
type Empty int

// Why there was nothing to claim.
const (
	Something Empty = iota
	Nothing
	AllDelayed
	BlockedByOrder
	BreakerOpen
	AgentHalted
	Draining
)

// Claims is the answer to a unary claim.
type Claims struct {
	Claims  []Claim
	Empty   Empty
	NextDue time.Time
	Notices []UnreadNotice
}

// Claim returns what the caller and consumer hold already, marked resumed, and new claims up to
// w.Max; if there are none it waits up to w.Wait. With w.Topic only messages of the topic count.
// With w.IDs it returns the claims on these messages and no others, and does not wait. With
// w.Notices it also returns the caller's unread notices, which end the wait. Errors: fault.Denied
// for a mailbox that is not the caller's, fault.Precondition without a registered agent; with w.IDs
// fault.NotFound for a message that is in none of the mailboxes, and fault.Precondition for one
// that is not ready. With either, fault.Exhausted (TOO_MANY_CLAIMS) if the consumer holds maxHeld.
func (b *Broker) Claim(ctx context.Context, c identity.Caller, w Wish) (Claims, error) {
	var answer Claims
	var waiter *consumer
	taken := make(chan []Claim, 2) // what it is given, and nil when it was dismissed
	err := b.store.Drain(ctx, func(tx *store.Tx) error {
		answer, waiter = Claims{}, nil
		a, err := b.ActingAgent(tx, c)
		if err != nil {
			return err
		}
		boxes, err := b.Mailboxes.Choose(tx, a, w.Mailboxes)
		if err != nil {
			return err
		}
		if w.Notices {
			if answer.Notices, err = b.receiveNotices(tx, a, w.Offer); err != nil {
				return err
			}
		}
		if len(w.IDs) > 0 {
			answer.Claims, err = b.claimGiven(tx, a, boxes, &w)
			return err
		}
		if w.Topic.Empty() {
			answer.Claims, err = b.open(tx, a, MaxAnswer, selectHeldClaims, a.Mailbox, w.Consumer, w.Max)
		} else if err = mayHold(tx, a, w.Consumer); err == nil {
			topic := filter{topic: w.Topic}
			answer.Claims, err = b.open(tx, a, MaxAnswer, selectHeldOfTopic,
				topic.args([]any{a.Mailbox, w.Consumer}, "", w.Max)...)
		}
		if err != nil || len(answer.Claims) >= w.Max {
			return err
		}
		k := &consumer{actor: a, name: w.Consumer, boxes: boxes, implicit: len(w.Mailboxes) == 0, filter: filter{w.Types, w.Priority, w.Topic},
			max: w.Max, maxBytes: MaxAnswer - 1<<20, claimFor: w.ClaimFor, lasts: w.ClaimFor}
		for i := range answer.Claims {
			k.inFlight++
			k.bytes += len(answer.Claims[i].Content)
		}
		d := dispatching{Broker: b, tx: tx, shares: map[*consumer]*share{}, left: tally{}}
		if err := d.run([]*consumer{k}, nil); err != nil {
			return err
		}
		if s := d.shares[k]; s != nil && len(s.claims) > 0 {
			answer.Claims = append(answer.Claims, s.claims...)
			tx.OnCommit(func() { d.begin(k, s.claims) })
		}
		if len(answer.Claims) > 0 {
			return nil
		}
		if answer.Empty, answer.NextDue, err = b.whyEmpty(tx, k); err != nil || w.Wait == 0 || len(answer.Notices) > 0 {
			return err
		}
		waiter = k
		k.dismissed = func(why error) { k.ended = why; taken <- nil }
		k.deliver = func(claims []Claim) {
			b.Waiters.leave(k) // it asked once
			taken <- claims
		}
		tx.OnCommit(func() { b.Waiters.enter(k) })
		return nil
	})
	if err != nil || waiter == nil {
		return answer, err
	}
	return b.await(ctx, &w, answer, waiter, taken)
}

// await waits for a claim, or with w.Notices for a notice, for as long as the caller wants to.
func (b *Broker) await(ctx context.Context, w *Wish, empty Claims, k *consumer, taken chan []Claim) (Claims, error) {
	claims, err := b.awaitMail(ctx, w, k, taken)
	if claims != nil {
		return Claims{Claims: claims}, nil
	}
	b.Waiters.leave(k)
	// Nothing is handed out to it by a later batch; an earlier one has told by the time this function has run.
	drained := b.store.Drain(context.WithoutCancel(ctx), func(tx *store.Tx) (failed error) {
		if err != nil {
			return nil
		}
		if empty.Empty, empty.NextDue, failed = b.whyEmpty(tx, k); failed == nil && w.Notices {
			empty.Notices, failed = b.receiveNotices(tx, k.actor, w.Offer)
		}
		return failed
	})
	select {
	case claims := <-taken:
		if err == nil && claims != nil {
			return Claims{Claims: claims, Notices: empty.Notices}, nil
		}
		b.giveBack(k.actor, claims)
	default:
	}
	if err == nil {
		err = drained
	}
	return empty, err
}

// awaitMail returns the claims that the consumer receives. It returns none, without an error, when
// the wait has ended or, with w.Notices, when there is an unread notice.
func (b *Broker) awaitMail(ctx context.Context, w *Wish, k *consumer, taken chan []Claim) ([]Claim, error) {
	timer := b.clock.NewTimer(w.Wait)
	defer timer.Stop()
	var arrived <-chan struct{} // nil unless the caller wants notices
	if w.Notices {
		var stop func()
		arrived, stop = b.Waiters.Listen(k.actor.Mailbox)
		defer stop()
	}
	for {
		if w.Notices {
			if found, err := b.findsNotice(ctx, k.actor.Mailbox, w.Offer); found || err != nil {
				return nil, err
			}
		}
		select {
		case claims := <-taken:
			if claims == nil {
				return nil, k.ended
			}
			return claims, nil
		case <-timer.Chan():
			return nil, nil
		case <-b.stopping:
			return nil, ErrStopping()
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-arrived:
		}
	}
}

// findsNotice reports whether there is an unread notice in an agent's mailbox; with an offering, one that is not offered
// otherwise.
func (b *Broker) findsNotice(ctx context.Context, mailbox int64, to *Offering) (found bool, err error) {
	mark := ""
	if to != nil {
		mark = to.Mark
	}
	err = b.store.Read(ctx, func(s *store.Snapshot) error {
		n, err := CountNotices(s, mailbox, mark, 1)
		found = n > 0
		return err
	})
	return found, err
}

// ErrGone is the error for what an agent has waiting while it deregisters.
func ErrGone(agent string) error {
	return fault.New(fault.Precondition, "AGENT_NOT_REGISTERED", "agent %q is not registered any more; register it to go on", agent)
}

// ErrFailed is the error for what an agent that has failed still has waiting.
func ErrFailed(agent string) error {
	return fault.New(fault.Precondition, "STALE_INCARNATION",
		"agent %q has failed: its lease is over, and what it held is lost; a call without an incarnation brings it back", agent)
}

// ErrStopping is the error of a call that the broker ends because it stops.
func ErrStopping() error {
	e := fault.New(fault.Unavailable, "SHUTTING_DOWN", "the broker stops; connect again in a moment")
	e.RetryAfter = time.Second
	return e
}

// maxHeld is the number of claims of a consumer at which mayHold refuses more. A new stream takes over at
// most twice as many; the deadlines of the others end them.
const maxHeld = 1000

// mayHold refuses claims of given messages and of topics to a consumer that holds maxHeld.
func mayHold(tx *store.Tx, a Actor, consumer string) error {
	var held int
	if err := tx.QueryRow(countHeldClaims, a.Mailbox, consumer).Scan(&held); err != nil || held < maxHeld {
		return err
	}
	return fault.New(fault.Exhausted, "TOO_MANY_CLAIMS",
		"agent %q%s holds %d claims: acknowledge or release some before it claims more", a.Name, consumerNote(consumer), held).
		With("limit", strconv.Itoa(maxHeld))
}

// open returns claims that an agent's consumer holds, of one of the selectHeld queries: at most so many bytes
// of content, or one claim.
func (b *Broker) open(tx *store.Tx, a Actor, bytes int, query string, args ...any) ([]Claim, error) {
	claims, err := b.held(tx, a, query, args...)
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
func (b *Broker) held(tx *store.Tx, a Actor, query string, args ...any) ([]Claim, error) {
	if _, failed := b.failures[a.Mailbox]; failed {
		return nil, nil // the backlog ends what the agent held when it failed
	}
	return store.Collect(tx.Query(query, args...), func(rows *store.Rows) (c Claim, err error) {
		var id []byte
		var ref MailboxRef
		var kind, attempts int
		if err := rows.Scan(&c.key.message, &c.key.mailbox, &kind, &ref.Name, &c.Number, &attempts,
			&c.MaxAttempts, &c.ExpiresIn, &c.ordered, &id, &c.Sender, &c.SenderRole, &c.CreatedAt, &c.ExpiresAt, &c.Thread, &c.unread); err != nil {
			return c, err
		}
		copy(c.Message.ID[:], id)
		c.Revision = c.key.message
		ref.Kind = MailboxKind(kind)
		c.Mailbox, c.Attempt, c.Resumed = ref.String(), attempts+1, true
		if at, ok := b.claims.Deadline(c.key); ok {
			c.ExpiresIn = max(0, at.Sub(b.clock.Now()))
		}
		return c, nil
	})
}

// ClaimEnds returns when the running claim of a delivery ends; false if no claim of it runs.
func (b *Broker) ClaimEnds(message, mailbox int64) (time.Time, bool) {
	return b.claims.Deadline(key{message, mailbox})
}

// whyEmpty says why nothing can be claimed by a consumer now.
func (b *Broker) whyEmpty(tx *store.Tx, k *consumer) (Empty, time.Time, error) {
	why, next, err := b.gates.Barrier(tx, k.actor.Mailbox)
	if err != nil || why != Nothing {
		return why, next, err
	}
	blocked := false
	for _, box := range k.boxes {
		var due time.Time
		var held bool
		if err := tx.QueryRow(selectWhyEmpty, box.ID, box.ID).Scan(&due, &held); err != nil {
			return Nothing, next, err
		}
		next = Earliest(next, due)
		blocked = blocked || held
	}
	switch {
	case blocked:
		return BlockedByOrder, next, nil
	case !next.IsZero():
		return AllDelayed, next, nil
	}
	return Nothing, next, nil
}

// giveBack puts claims back uncounted that never reached their consumer.
func (b *Broker) giveBack(a Actor, claims []Claim) {
	items := make([]Settlement, len(claims))
	for i := range claims {
		ref, _ := ParseRef(claims[i].ClaimID())
		items[i] = Settlement{Verb: Release, Ref: ref}
	}
	b.store.Submit(context.Background(), store.LaneDrain, 0, func(tx *store.Tx) error {
		s := b.NewSettleTx(tx, a)
		for i := range items {
			if _, err := s.Settle(&items[i]); err != nil && fault.KindOf(err) != fault.Precondition {
				return err
			}
		}
		_, err := s.Finish()
		return err
	}, func(err error) {
		if err != nil {
			b.zap.Warn("claims were not given back and will run out", zap.Int("claims", len(items)), zap.Error(err))
		}
	})
}

// claimsDue fails claims that have run out. Whether they have is looked at again in the writer, whose
// order decides between an ack and the end.
func (b *Broker) claimsDue(keys []key) {
	for page := range slices.Chunk(keys, failurePage) {
		b.claimsRanOut(page)
	}
}

// claimsRanOut is claimsDue for a page of claims.
func (b *Broker) claimsRanOut(keys []key) {
	err := b.store.Drain(context.Background(), func(tx *store.Tx) error {
		bySession := map[int64]*SettleTx{}
		for _, k := range keys {
			if _, renewed := b.claims.Deadline(k); renewed {
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
				s = &SettleTx{Broker: b, tx: tx, actor: system(session), left: tally{}, why: RanOut}
				bySession[session] = s
			}
			if _, _, err := s.fail(h, "the claim ran out after "+tx.Now().Sub(h.claimedAt).Round(time.Millisecond).String(), false, nil); err != nil {
				return err
			}
			if err := b.breakers.Failed(tx, session, h.holder, k.id()); err != nil {
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
			b.claims.Set(k, b.clock.Now().Add(time.Second))
		}
		b.zap.Warn("claims that ran out could not be put back; trying again", zap.Error(err))
	}
}

// system is the broker itself, acting in a session.
func system(session int64) Actor {
	return Actor{Agent: Agent{Name: identity.System}, Session: Session{ID: session}}
}

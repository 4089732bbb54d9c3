package broker

import (
	"context"
	"math"
	"strconv"
	"sync"
	"time"

	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/mail"
	"brokerd/internal/msgid"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// noLimit stands for any number of deliveries.
const noLimit = math.MaxInt32

// Offers puts unread messages before the models of coding agents.
type Offers interface {
	// OfferNotices offers the oldest unread notices of an agent that are not offered, at most MostNotices, and returns
	// them. With the mark of open offers it returns these.
	OfferNotices(tx *store.Tx, a mail.Actor, to mail.Offering) ([]work.UnreadNotice, error)
	// AgentEnded returns the open offers to an agent that has ended.
	AgentEnded(tx *store.Tx, session, mailbox int64, agent, why string) error
}

// UseOffers gives the broker the offers to models. Call it before Start.
func (b *Broker) UseOffers(o Offers) { b.offers = o }

// A Wish is what a consumer wants to take.
type Wish struct {
	Consumer  string
	Mailboxes []string // empty = all that the agent may take from
	Types     []string
	Priority  int         // this or higher
	Topic     Topic       // unary calls
	IDs       []msgid.Ref // unary calls: just these messages, all or none
	Max       int
	MaxBytes  int
	ClaimFor  time.Duration
	MaxTotal  time.Duration  // streams
	Wait      time.Duration  // unary calls
	Notices   bool           // unary calls: return unread notices too
	Offer     *mail.Offering // unary calls: to whom notices are offered; nil = they are marked read
}

// A Claim is a delivery that an agent works on.
type Claim struct {
	mail.Message
	Mailbox     string
	Number      int // counts the claims of this delivery
	Attempt     int // which attempt this is, from 1
	MaxAttempts int
	ExpiresIn   time.Duration
	Resumed     bool

	key     mail.DeliveryID
	ordered bool   // it has an ordering key, so finishing it promotes another
	fresh   bool   // the first delivery to any agent
	class   string // see classOf; empty for a resumed claim
	unread  int    // bytes of a content that is only in the database; else 0
	id      string // ClaimID, once it was asked for
}

// size returns the bytes of the content.
func (c *Claim) size() int { return len(c.Content) + c.unread }

// ClaimID returns the claim's id: the message's revision and the claim's number.
func (c *Claim) ClaimID() string {
	if c.id == "" {
		c.id = msgid.ClaimID(c.Revision, c.Number)
	}
	return c.id
}

// DeliveryID returns the name of the delivery.
func (c *Claim) DeliveryID() mail.DeliveryID { return c.key }

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
	Notices []work.UnreadNotice
}

// Claim returns what the caller and consumer hold already, marked resumed, and new claims up to
// w.Max; if there are none it waits up to w.Wait. With w.Topic only messages of the topic count.
// With w.IDs it returns the claims on these messages and no others, and does not wait. With
// w.Notices it also returns the caller's unread notices, which end the wait. Errors: fault.Denied
// for a mailbox that is not the caller's, fault.Precondition without a registered agent; with w.IDs
// fault.NotFound for a message that is in none of the mailboxes, and fault.Precondition for one
// that is not ready. With either, fault.Exhausted (TOO_MANY_CLAIMS) if the consumer holds maxHeld.
func (b *Broker) Claim(ctx context.Context, c identity.Caller, w Wish) (Claims, error) {
	call := claimCall{Broker: b, wish: &w, taken: make(chan []Claim, 2)}
	var answer Claims
	err := b.store.Drain(ctx, func(tx *store.Tx) (err error) {
		answer, err = call.claim(tx, c)
		return err
	})
	if err != nil || call.waiter == nil {
		return answer, err
	}
	return call.await(ctx, answer)
}

// A claimCall is one call of Claim.
type claimCall struct {
	*Broker
	wish   *Wish
	waiter *consumer    // nil unless the call waits
	taken  chan []Claim // the claims that the waiter receives, and nil when it is dismissed

	mu   sync.Mutex // guards left
	left bool       // the call does not read taken any more
}

// claim claims what is ready. If nothing is, and the call wants to wait, it makes the call wait.
func (call *claimCall) claim(tx *store.Tx, c identity.Caller) (answer Claims, err error) {
	b, w := call.Broker, call.wish
	call.waiter = nil
	a, err := b.Mailboxes.ActingAgent(tx, c)
	if err != nil {
		return answer, err
	}
	boxes, err := b.Mailboxes.Choose(tx, a, w.Mailboxes)
	if err != nil {
		return answer, err
	}
	if w.Notices {
		if answer.Notices, err = call.notices(tx, a); err != nil {
			return answer, err
		}
	}
	if len(w.IDs) > 0 {
		answer.Claims, err = call.given(tx, a, boxes)
		return answer, err
	}
	if w.Topic.Empty() {
		answer.Claims, err = b.Running.open(tx, a, mail.MaxAnswer, selectHeldClaims, a.Mailbox, w.Consumer, w.Max)
	} else if err = mayHold(tx, a, w.Consumer); err == nil {
		topic := filter{topic: w.Topic}
		answer.Claims, err = b.Running.open(tx, a, mail.MaxAnswer, selectHeldOfTopic,
			topic.args([]any{a.Mailbox, w.Consumer}, "", w.Max)...)
	}
	if err != nil || len(answer.Claims) >= w.Max {
		return answer, err
	}
	k := &consumer{actor: a, name: w.Consumer, boxes: boxes,
		filter: filter{w.Types, w.Priority, w.Topic}, max: w.Max, maxBytes: mail.MaxAnswer - 1<<20,
		claimFor: w.ClaimFor, lasts: w.ClaimFor}
	held := load{claims: len(answer.Claims)}
	for i := range answer.Claims {
		held.bytes += len(answer.Claims[i].Content)
	}
	k.load.Put(held)
	fresh, err := call.fill(tx, k)
	if err != nil {
		return answer, err
	}
	answer.Claims = append(answer.Claims, fresh...)
	if len(answer.Claims) > 0 {
		return answer, nil
	}
	answer.Empty, answer.NextDue, err = call.whyEmpty(tx, k)
	if err != nil || w.Wait == 0 || len(answer.Notices) > 0 {
		return answer, err
	}
	call.waiter = k
	k.dismissed = func(why error) { k.ended = why; call.taken <- nil }
	k.deliver = func(claims []Claim) {
		b.Waiters.remove(k) // the call takes claims once
		call.mu.Lock()
		defer call.mu.Unlock()
		if call.left { // a dispatch that has failed before gives them only now
			b.Running.giveBack(k.actor, claims)
			return
		}
		call.taken <- claims
	}
	tx.OnCommit(func() { b.Waiters.enter(k) })
	return answer, nil
}

// fill claims as much as a consumer has capacity for.
func (call *claimCall) fill(tx *store.Tx, k *consumer) ([]Claim, error) {
	d := dispatchRun{Broker: call.Broker, tx: tx, left: mail.Tally{}}
	if err := d.fill(k); err != nil {
		return nil, err
	}
	return d.claim(k)
}

// notices returns the oldest unread notices of an agent, at most MostNotices. It marks them read, or offers those that
// are not offered.
func (call *claimCall) notices(tx *store.Tx, a mail.Actor) ([]work.UnreadNotice, error) {
	if to := call.wish.Offer; to != nil {
		return call.offers.OfferNotices(tx, a, *to)
	}
	return ReadNotices(tx, call.log, a)
}

// await waits for a claim, or with Wish.Notices for a notice, for as long as the caller wants to.
func (call *claimCall) await(ctx context.Context, empty Claims) (Claims, error) {
	k := call.waiter
	claims, err := call.awaitMail(ctx)
	if claims != nil {
		return Claims{Claims: claims}, nil
	}
	k.gone.Store(true)
	// The batch of this function, and earlier ones, have delivered by the time at which it is answered. Later ones
	// deliver nothing to the consumer.
	drained := call.store.Drain(context.WithoutCancel(ctx), func(tx *store.Tx) (failed error) {
		tx.OnCommit(func() { call.Waiters.remove(k) })
		if err != nil {
			return nil
		}
		if empty.Empty, empty.NextDue, failed = call.whyEmpty(tx, k); failed == nil && call.wish.Notices {
			empty.Notices, failed = call.notices(tx, k.actor)
		}
		return failed
	})
	claims = call.leave()
	if err == nil && claims != nil {
		return Claims{Claims: claims, Notices: empty.Notices}, nil
	}
	if claims != nil {
		call.Running.giveBack(k.actor, claims)
	}
	if err == nil {
		err = drained
	}
	return empty, err
}

// leave has the writer give nothing more to the call, and returns the claims that it was given before.
func (call *claimCall) leave() []Claim {
	call.mu.Lock()
	defer call.mu.Unlock()
	call.left = true
	select {
	case claims := <-call.taken:
		return claims
	default:
		return nil
	}
}

// awaitMail returns the claims that the consumer receives. It returns none, without an error, when
// the wait has ended or, with Wish.Notices, when there is an unread notice.
func (call *claimCall) awaitMail(ctx context.Context) ([]Claim, error) {
	k := call.waiter
	timer := call.clock.NewTimer(call.wish.Wait)
	defer timer.Stop()
	var arrived <-chan struct{} // nil unless the caller wants notices
	if call.wish.Notices {
		var stop func()
		arrived, stop = call.Waiters.Listen(k.actor.Mailbox)
		defer stop()
	}
	for {
		if call.wish.Notices {
			if found, err := call.findsNotice(ctx); found || err != nil {
				return nil, err
			}
		}
		select {
		case claims := <-call.taken:
			if claims == nil {
				return nil, k.ended
			}
			return claims, nil
		case <-timer.Chan():
			return nil, nil
		case <-call.stopping:
			return nil, fault.Stopping()
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-arrived:
		}
	}
}

// findsNotice reports whether there is an unread notice in the agent's mailbox; with an offering, one that is not
// offered otherwise.
func (call *claimCall) findsNotice(ctx context.Context) (found bool, err error) {
	mark := ""
	if to := call.wish.Offer; to != nil {
		mark = to.Mark
	}
	err = call.store.Read(ctx, func(s *store.Snapshot) error {
		n, err := mail.CountNotices(s, call.waiter.actor.Mailbox, mark, 1)
		found = n > 0
		return err
	})
	return found, err
}

// maxHeld is the number of claims of a consumer at which mayHold refuses more. A new stream takes over at
// most twice as many; the deadlines of the others end them.
const maxHeld = 1000

// mayHold refuses claims of given messages and of topics to a consumer that holds maxHeld.
func mayHold(tx *store.Tx, a mail.Actor, consumer string) error {
	var held int
	if err := tx.QueryRow(countHeldClaims, a.Mailbox, consumer).Scan(&held); err != nil || held < maxHeld {
		return err
	}
	return fault.New(fault.Exhausted, "TOO_MANY_CLAIMS",
		"agent %q%s holds %d claims: acknowledge or release some before it claims more",
		a.Name, consumerNote(consumer), held).
		With("limit", strconv.Itoa(maxHeld))
}

// whyEmpty says why nothing can be claimed by a consumer now.
func (call *claimCall) whyEmpty(tx *store.Tx, k *consumer) (Empty, time.Time, error) {
	why, next, err := call.gates.Barrier(tx, k.actor.Mailbox)
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

package broker

import (
	"context"
	"slices"
	"sync"
	"time"

	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/mail"
	"brokerd/internal/store"
)

const (
	// claimGrace is how long consumers have to settle after the broker has told them to go away.
	claimGrace = 5 * time.Second
	// maxUnanswered is how many settlements of one stream may wait for their answer before it is read on.
	maxUnanswered = 8192
	// settlementSize is about how many bytes a settlement takes beside its error.
	settlementSize = 256
)

// Reason says why a claim is no longer the consumer's. The numbers are those of the API.
type Reason int

// Why a claim is lost. The zero value, in a SettleTx, stands for SettledElsewhere.
const (
	RanOut Reason = iota + 1
	TakenOver
	SettledElsewhere
)

// A Frame is what a stream of claims has to say next. One of its parts is set, or several, to be sent in the order
// of the fields.
type Frame struct {
	Results []Settled
	Revoked map[Reason][]string
	Deliver []Claim
	GoAway  time.Duration // > 0: the broker stops; how long settlements are still taken
}

// A ClaimStream is one consumer's open stream. Settle and Next may be called from different goroutines, each
// from one at a time.
type ClaimStream struct {
	broker   *Broker
	consumer *consumer
	caller   identity.Caller
	wake     chan struct{} // capacity 1: a frame is ready for Next
	settled  chan struct{} // capacity 1: Settle may continue

	mailboxes []string

	change *SettleTx // of its acks, while the writer applies them

	mu         sync.Mutex // guards the fields below
	open       map[string]openClaim
	frame      Frame
	unanswered int
	away       bool  // no more claims are delivered
	left       bool  // the client settles nothing more: what was not sent stays unsent
	over       bool  // closed: claims that still reach it are released
	ended      error // why nothing more comes: another stream has taken over, or the agent is gone
}

// An openClaim is what a stream keeps of a claim.
type openClaim struct {
	key      mail.DeliveryID
	bytes    int
	class    string
	ordered  bool
	sent     bool
	released bool      // the consumer has its capacity back
	since    time.Time // when the stream got it
}

// consumerKey names a consumer of which there is only one at a time.
type consumerKey struct {
	agent int64
	name  string
}

// Streams has the open streams of claims, by consumer. Its exported method may be called concurrently.
type Streams struct {
	broker *Broker

	mu   sync.Mutex
	open map[consumerKey]*consumer
}

// Open opens a stream of claims for the caller's consumer. An earlier stream of the same agent and consumer is
// ended; what it held, or was left by calls, is returned and counts as in flight. Errors: as Claim.
func (o *Streams) Open(ctx context.Context, c identity.Caller, w Wish) (*ClaimStream, []Claim, error) {
	b := o.broker
	s := &ClaimStream{
		broker: b, caller: c, wake: make(chan struct{}, 1), settled: make(chan struct{}, 1), open: map[string]openClaim{},
	}
	var resumed []Claim
	err := b.store.Drain(ctx, func(tx *store.Tx) error {
		a, err := b.Mailboxes.ActingAgent(tx, c)
		if err != nil {
			return err
		}
		boxes, err := b.Mailboxes.Choose(tx, a, w.Mailboxes)
		if err != nil {
			return err
		}
		s.consumer = &consumer{actor: a, name: w.Consumer, boxes: boxes, implicit: len(w.Mailboxes) == 0,
			filter: filter{types: w.Types, priority: w.Priority}, max: w.Max, maxBytes: w.MaxBytes, claimFor: w.ClaimFor,
			lasts: max(w.ClaimFor, w.MaxTotal), deliver: s.deliver, stream: s}
		s.mailboxes = nil
		for _, box := range boxes {
			s.mailboxes = append(s.mailboxes, box.Ref.String())
		}
		o.replace(tx, s.consumer)
		if resumed, err = b.Running.held(tx, a, selectHeldClaims, a.Mailbox, w.Consumer, 2*maxHeld); err != nil {
			return err
		}
		tx.OnCommit(func() { s.begin(resumed) })
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	first := resumed[:fitting(resumed)]
	if err := readContents(ctx, b.store, first); err != nil {
		s.Close(ctx)
		return nil, nil, err
	}
	return s, first, nil
}

// replace ends the earlier stream of the consumer when the transaction is committed.
func (o *Streams) replace(tx *store.Tx, c *consumer) {
	if old := o.of(c.key()); old != nil {
		old.leaving.Set(tx, true)
	}
	tx.OnCommit(func() { o.takeOver(c.key()) })
}

func (o *Streams) takeOver(k consumerKey) {
	old := o.of(k) // it may have opened in this batch
	if old == nil {
		return
	}
	o.broker.Waiters.remove(old)
	old.stream.end(
		fault.New(fault.Conflict, "TAKEN_OVER", "another stream of the same agent and consumer has taken over"), TakenOver)
}

// of returns the consumer that has an open stream under a name, nil if there is none.
func (o *Streams) of(k consumerKey) *consumer {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.open[k]
}

// add gives a consumer its name. The consumer keeps it until its stream is closed, so that the next stream of that name
// takes over from it.
func (o *Streams) add(c *consumer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.open[c.key()] = c
}

// remove releases a consumer's name, if the consumer still has it.
func (o *Streams) remove(c *consumer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if k := c.key(); o.open[k] == c {
		delete(o.open, k)
	}
}

// move gives those of an agent's streams that take from all its mailboxes a new set of them.
func (o *Streams) move(a mail.Actor, boxes []mail.Mailbox) {
	o.mu.Lock()
	var moved []*consumer
	for k, c := range o.open {
		if k.agent == a.Mailbox && c.implicit {
			moved = append(moved, c)
		}
	}
	o.mu.Unlock()
	for _, c := range moved {
		o.broker.Waiters.move(c, a, boxes)
	}
}

// revoke takes the ended claims from the streams that held them, except self, which has ended its own.
func (o *Streams) revoke(ended []heldClaim, self *consumer, why Reason) {
	if why == 0 {
		why = SettledElsewhere
	}
	for _, e := range ended {
		if e.holder == (consumerKey{}) {
			continue // settled by its own stream
		}
		if c := o.of(e.holder); c != nil && c != self {
			c.stream.lose(e.key, why)
		}
	}
}

// has reports whether a consumer has its name, and no other stream takes it in this batch.
func (o *Streams) has(c *consumer) bool { return !c.leaving.Get() && o.of(c.key()) == c }

// hold reports whether a consumer's open stream holds the claim.
func (o *Streams) hold(holder consumerKey, id string) bool {
	c := o.of(holder)
	if c == nil || c.gone.Load() {
		return false
	}
	c.stream.mu.Lock()
	defer c.stream.mu.Unlock()
	_, ok := c.stream.open[id]
	return ok
}

// end ends the stream, whose claims belong to another stream now, or have ended.
func (s *ClaimStream) end(err error, why Reason) {
	s.mu.Lock()
	if s.ended == nil {
		s.ended = err
	}
	for id := range s.open {
		s.revoke(id, why)
	}
	s.mu.Unlock()
	signal(s.wake)
}

// begin takes over the claims that the consumer holds, and adds it to the waiters. Those that do not fit into the first
// answer follow as deliveries. It runs in the writer.
func (s *ClaimStream) begin(resumed []Claim) {
	b, c := s.broker, s.consumer
	now := b.clock.Now()
	end := now.Add(c.lasts)
	held := load{claims: len(resumed)}
	s.mu.Lock()
	for i := range resumed {
		r := &resumed[i]
		b.Running.ends.Set(r.key, end)
		r.ExpiresIn = c.claimFor
		s.open[r.ClaimID()] = openClaim{key: r.key, bytes: r.size(), ordered: r.ordered, sent: true, since: now}
		held.bytes += r.size()
	}
	s.frame.Deliver = slices.Clone(resumed[fitting(resumed):])
	for i := range s.frame.Deliver {
		held.given += int64(s.frame.Deliver[i].size())
	}
	s.mu.Unlock()
	c.load.Put(held)
	b.Streams.add(c)
	b.Waiters.enter(c)
}

// Mailboxes returns the mailboxes that the stream takes from at first.
func (s *ClaimStream) Mailboxes() []string {
	return s.mailboxes
}

// deliver takes claims from dispatch.
func (s *ClaimStream) deliver(claims []Claim) {
	now := s.broker.clock.Now()
	s.mu.Lock()
	if s.over { // closed in the batch that gave them
		s.mu.Unlock()
		s.broker.Running.giveBack(s.consumer.actor, claims)
		return
	}
	for i := range claims {
		c := &claims[i]
		s.open[c.ClaimID()] = openClaim{key: c.key, bytes: c.size(), class: c.class, ordered: c.ordered, since: now}
	}
	if s.frame.Deliver == nil {
		s.frame.Deliver = claims
	} else {
		s.frame.Deliver = append(s.frame.Deliver, claims...)
	}
	s.mu.Unlock()
	signal(s.wake)
}

// lose takes a claim from the stream. It runs in the writer.
func (s *ClaimStream) lose(k mail.DeliveryID, why Reason) {
	s.mu.Lock()
	lost, held, bytes, unsent := 0, 0, 0, 0
	for id, o := range s.open {
		if o.key == k {
			unsent += s.revoke(id, why)
			lost++
			if !o.released {
				held++
				bytes += o.bytes
			}
		}
	}
	s.mu.Unlock()
	if lost > 0 {
		s.broker.Waiters.release(nil, s.consumer, held, bytes)
		s.broker.Waiters.wrote(s.consumer, unsent)
		signal(s.wake)
	}
}

// revoke forgets a claim, and reports that to a client that has received it. It returns the bytes that need not
// be written any more. The caller holds the mutex.
func (s *ClaimStream) revoke(id string, why Reason) (unsent int) {
	if s.open[id].sent {
		if s.frame.Revoked == nil {
			s.frame.Revoked = map[Reason][]string{}
		}
		s.frame.Revoked[why] = append(s.frame.Revoked[why], id)
	}
	if len(s.frame.Deliver) > 0 {
		s.frame.Deliver = slices.DeleteFunc(slices.Clone(s.frame.Deliver), func(c Claim) bool {
			if c.ClaimID() != id {
				return false
			}
			unsent += c.size()
			return true
		})
	}
	delete(s.open, id)
	return unsent
}

// Leave says that the client settles nothing more. Next continues with the answers that are left; claims that were not
// written to the client by now go back when the stream is closed.
func (s *ClaimStream) Leave() {
	s.consumer.gone.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = true
}

// Ended returns why nothing more comes, if it is not because the broker stops: fault.Conflict if another stream
// has taken over, fault.Precondition if the agent is not registered any more.
func (s *ClaimStream) Ended() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

// Close ends the stream. Claims that were never written to it go back uncounted; the others last for
// claim_for again.
func (s *ClaimStream) Close(ctx context.Context) {
	b := s.broker
	s.consumer.gone.Store(true)
	// In the writer: by then no claims are delivered to this stream any more.
	b.store.Submit(context.WithoutCancel(ctx), store.LaneDrain, 0, func(tx *store.Tx) error {
		tx.OnCommit(s.closed)
		return nil
	}, func(error) {})
}

// closed gives the claims of the client their last time, and releases those that it never got. It runs in the writer.
func (s *ClaimStream) closed() {
	b := s.broker
	b.Waiters.remove(s.consumer)
	b.Streams.remove(s.consumer)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil {
		return
	}
	s.over = true
	end := b.clock.Now().Add(s.consumer.claimFor)
	for _, o := range s.open {
		if _, running := b.Running.ends.Deadline(o.key); running && o.sent {
			b.Running.ends.Set(o.key, end)
		}
	}
	var unsent []Claim
	for _, c := range s.frame.Deliver {
		if o, ok := s.open[c.ClaimID()]; ok && !o.sent {
			unsent = append(unsent, c)
		}
	}
	if len(unsent) > 0 {
		b.Running.giveBack(s.consumer.actor, unsent)
	}
}

// signal leaves a signal in a channel of capacity 1.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Unanswered reports whether settlements wait for their result.
func (s *ClaimStream) Unanswered() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unanswered > 0
}

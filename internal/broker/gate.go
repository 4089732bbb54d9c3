package broker

import (
	"time"

	"brokerd/internal/store"
)

// A Pass says which work an agent may be given now.
type Pass int

// The work that an agent may be given.
const (
	Everything     Pass = iota
	OneProbe            // one delivery, and directives
	OnlyDirectives      // nothing else
)

// Gates knows which agents may be given work. An agent is known by its mailbox.
type Gates interface {
	// Pass returns what an agent may be given.
	Pass(tx *store.Tx, agent int64) (Pass, error)
	// Barrier returns why an agent is given only directives: AgentHalted, Draining or BreakerOpen. It returns Nothing if
	// the agent is given more. The time is when an open circuit breaker allows a probe, zero if that is not known.
	Barrier(tx *store.Tx, agent int64) (why Empty, until time.Time, err error)
	// Probed takes note of the delivery that an agent with the pass OneProbe was given.
	Probed(tx *store.Tx, agent int64, d DeliveryID)
}

// Breakers takes note of how the claims of agents end. An agent is known by its mailbox.
type Breakers interface {
	// Failed counts one failure of an agent, for all of these claims together.
	Failed(tx *store.Tx, session, agent int64, claims ...DeliveryID) error
	// Succeeded takes note that an agent has finished a claim.
	Succeeded(tx *store.Tx, session, agent int64, claim DeliveryID) error
	// Released takes note that an agent's claim was put back, uncounted.
	Released(tx *store.Tx, agent int64, claim DeliveryID) error
}

// A DeliveryID names a delivery.
type DeliveryID struct{ Message, Mailbox int64 }

// id returns the name of the delivery for packages beside the core.
func (k key) id() DeliveryID { return DeliveryID{k.message, k.mailbox} }

// UseGates sets who decides which agents are given work, and who takes note of how claims end. Call it before the broker
// is used.
func (b *Broker) UseGates(g Gates, t Breakers) { b.gates, b.breakers = g, t }

// passes reports whether a consumer's agent may be given a ready delivery.
func (b *Broker) passes(tx *store.Tx, c *consumer, r *ready) (bool, error) {
	p, err := b.gates.Pass(tx, c.actor.Mailbox)
	return err == nil && (p != OnlyDirectives || r.directive()), err
}

// pass returns what a consumer's agent may be given.
func (d *dispatching) pass(c *consumer) (Pass, error) { return d.gates.Pass(d.tx, c.actor.Mailbox) }

// rooms is how much may still be given to all of these of what lies behind a place.
func (d *dispatching) rooms(waiting []*consumer, at place) (int, error) {
	n := 0
	for _, c := range waiting {
		room := d.room(c)
		if room > 0 && !at.directive() {
			p, err := d.pass(c)
			if err != nil {
				return 0, err
			}
			switch p {
			case OneProbe:
				room = 1
			case OnlyDirectives:
				room = 0
			}
		}
		n += room
	}
	return n, nil
}

// fillGated gives a consumer what its agent's gate allows: directives, and a probe if one is due.
func (d *dispatching) fillGated(c *consumer, p Pass) error {
	below := func(bound int64) func(Mailbox, int) ([]ready, error) {
		return func(box Mailbox, want int) ([]ready, error) { return d.below(c, box, bound, want) }
	}
	if err := d.merge(c, noLimit, below(DirectiveRank)); err != nil || p != OneProbe {
		return err
	}
	return d.merge(c, 1, below(back.rank))
}

// below reads the first deliveries of a mailbox, of a rank under the bound, that a consumer takes.
func (d *dispatching) below(c *consumer, box Mailbox, bound int64, want int) ([]ready, error) {
	self := ""
	if box.Ref.Kind != AgentMailbox {
		self = c.actor.Name // never its own ONE messages
	}
	return readReady(d.tx.Query(selectReadyBelow, c.filter.args([]any{box.ID, bound, d.tx.Now()}, self, want)...), box)
}

// probed takes note of what a consumer was given while its agent's gate allows one probe.
func (d *dispatching) probed(c *consumer, r *ready) error {
	p, err := d.pass(c)
	if err == nil && p == OneProbe && !r.directive() {
		d.gates.Probed(d.tx, c.actor.Mailbox, r.key.id())
	}
	return err
}

// Reconsider has dispatch examine all that an agent's consumers may take, at the end of this batch: its gate allows more
// than before. Nothing new is given to them before that, because it would overtake older deliveries.
func (b *Broker) Reconsider(tx *store.Tx, agent int64) {
	b.lookAgain(tx, func(c *consumer) bool { return c.actor.Mailbox == agent })
}

// DrainEnded has dispatch examine all that consumers may take. It is a hook of the end of a drain.
func (b *Broker) DrainEnded(tx *store.Tx) error {
	b.lookAgain(tx, func(*consumer) bool { return true })
	return nil
}

// lookAgain has dispatch examine all that some consumers may take.
func (b *Broker) lookAgain(tx *store.Tx, who func(*consumer) bool) {
	h := b.Waiters
	h.mu.Lock()
	for _, c := range h.those(who) {
		if !c.eager {
			h.lookAt(c)
		}
	}
	h.mu.Unlock()
	tx.AtEnd(dispatchKey{}, b.dispatch)
}

package broker

import (
	"time"

	"brokerd/internal/mail"
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
	Probed(tx *store.Tx, agent int64, d mail.DeliveryID)
}

// Breakers takes note of how the claims of agents end. An agent is known by its mailbox.
type Breakers interface {
	// Failed counts one failure of an agent, for all of these claims together.
	Failed(tx *store.Tx, session, agent int64, claims ...mail.DeliveryID) error
	// Succeeded takes note that an agent has finished a claim.
	Succeeded(tx *store.Tx, session, agent int64, claim mail.DeliveryID) error
	// Released takes note that an agent's claim was put back, uncounted.
	Released(tx *store.Tx, agent int64, claim mail.DeliveryID) error
}

// UseGates sets who decides which agents are given work, and who takes note of how claims end. Call it before the
// broker is used.
func (b *Broker) UseGates(g Gates, t Breakers) { b.Waiters.gates, b.gates, b.breakers = g, g, t }

// pass returns what a consumer's agent may be given.
func (d *dispatchRun) pass(c *consumer) (Pass, error) { return d.gates.Pass(d.tx, c.actor.Mailbox) }

// capacityOf is how many of the deliveries behind a place may still be given to all of these.
func (d *dispatchRun) capacityOf(waiting []*consumer, at place) (int, error) {
	n := 0
	for _, c := range waiting {
		capacity := d.Waiters.capacity(c)
		if capacity > 0 && !at.directive() {
			p, err := d.pass(c)
			if err != nil {
				return 0, err
			}
			switch p {
			case OneProbe:
				capacity = 1
			case OnlyDirectives:
				capacity = 0
			}
		}
		n += capacity
	}
	return n, nil
}

// fillGated gives a consumer what its agent's gate allows: directives, and a probe if one is due.
func (d *dispatchRun) fillGated(c *consumer, p Pass) error {
	below := func(bound int64) func(mail.Mailbox, int) ([]ready, error) {
		return func(box mail.Mailbox, want int) ([]ready, error) { return d.below(c, box, bound, want) }
	}
	if err := d.merge(c, noLimit, below(mail.DirectiveRank)); err != nil || p != OneProbe {
		return err
	}
	return d.merge(c, 1, below(back.rank))
}

// below reads the first deliveries of a mailbox, of a rank under the bound, that a consumer takes.
func (d *dispatchRun) below(c *consumer, box mail.Mailbox, bound int64, want int) ([]ready, error) {
	self := ""
	if box.Ref.Kind != mail.AgentMailbox {
		self = c.actor.Name // never its own ONE messages
	}
	return readReady(d.tx.Query(selectReadyBelow, c.filter.args([]any{box.ID, bound, d.tx.Now()}, self, want)...), box)
}

// probed takes note of what a consumer was given while its agent's gate allows one probe.
func (d *dispatchRun) probed(c *consumer, r *ready) error {
	p, err := d.pass(c)
	if err == nil && p == OneProbe && !r.directive() {
		d.gates.Probed(d.tx, c.actor.Mailbox, r.key)
	}
	return err
}

// directive reports whether a delivery is of a directive.
func (p place) directive() bool { return p.rank < mail.DirectiveRank }

const (
	selectReadyBelow = readyColumns + `
		WHERE d.mailbox = ? AND d.state = 1 AND d.rank < ? AND (d.expires_at IS NULL OR d.expires_at > ?)
			AND ` + filtered + `
		ORDER BY d.rank, d.message
		LIMIT ?`
	// SelectDirectiveKeys selects the unfinished directives in an agent's own mailbox (?1), which have a rank below ?2.
	// The agent itself holds a claimed one. A delayed one was nacked, and is among the first that are due.
	SelectDirectiveKeys = `
			SELECT message, arrival FROM deliveries WHERE mailbox = ?1 AND state = 1 AND rank < ?2
			UNION ALL
			SELECT message, arrival FROM deliveries WHERE holder = ?1 AND mailbox = ?1 AND state = 2 AND rank < ?2
			UNION ALL
			SELECT message, arrival
			FROM (SELECT message, arrival, rank FROM deliveries WHERE mailbox = ?1 AND state = 3 ORDER BY due_at LIMIT 1000) AS x
			WHERE rank < ?2`
)

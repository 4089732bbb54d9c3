package broker

import (
	"time"

	"brokerd/internal/store"
)

// A gate is what stands between an agent and its work: a halt, a drain of the broker, or its circuit breaker. The zero
// gate lets everything through. It is read from rows; what functions have read is kept for those after them, so that an
// agent without a gate costs two looks into maps.
type gate struct {
	halted   bool
	draining bool      // the broker is drained; readGate leaves it out
	failures int       // of its claims, in a row
	until    time.Time // when the breaker, which is open, lets a probe through; zero = closed
	probe    key       // the claim that decides about the breaker, if one is out
}

// A pass is what a gate lets through.
type pass int

const (
	everything pass = iota
	oneProbe        // and directives
	directives
)

func (g *gate) pass(now time.Time) pass {
	switch {
	case g.closed():
		return directives
	case g.until.IsZero():
		return everything
	case g.probe != key{} || g.until.After(now):
		return directives
	}
	return oneProbe
}

// closed reports whether a halt or a drain lets nothing but directives through.
func (g *gate) closed() bool { return g.halted || g.draining }

// gate returns an agent's gate.
func (b *Broker) gate(tx *store.Tx, agent int64) (gate, error) {
	g, err := b.gates.Get(tx, agent, func() (gate, error) { return readGate(tx, agent) })
	if err == nil {
		g.draining, err = b.Draining(tx)
	}
	return g, err
}

// Drains knows whether a drain is in force.
type Drains interface {
	// Draining reports whether the broker delivers no new work.
	Draining(tx *store.Tx) (bool, error)
}

// UseDrains sets the source of drains. Call it before the broker is used.
func (b *Broker) UseDrains(d Drains) { b.drains = d }

// Draining reports whether the broker delivers no new work.
func (b *Broker) Draining(tx *store.Tx) (bool, error) {
	if b.drains == nil {
		return false, nil
	}
	return b.drains.Draining(tx)
}

// DrainEnded has dispatch look at all that consumers may take. It is a hook of the end of a drain.
func (b *Broker) DrainEnded(tx *store.Tx) error {
	b.lookAgain(tx, func(*consumer) bool { return true })
	return nil
}

// Halted reports whether a halt is in force for an agent.
func (b *Broker) Halted(tx *store.Tx, session int64, agent string) (bool, error) {
	id, err := b.Mailboxes.Find(tx, session, MailboxRef{AgentMailbox, agent})
	if err != nil || id == 0 {
		return false, err
	}
	g, err := b.gate(tx, id)
	return g.halted, err
}

func readGate(q store.Querier, agent int64) (g gate, err error) {
	err = q.QueryRow(selectGate, agent).Scan(&g.halted, &g.failures, &g.until, &g.probe.message, &g.probe.mailbox)
	return g, err
}

// HaltAndBreaker reports whether a halt is in force for an agent, by its mailbox, and until when its circuit breaker is
// open; zero stands for a closed one.
func HaltAndBreaker(q store.Querier, agent int64) (halted bool, open time.Time, err error) {
	g, err := readGate(q, agent)
	return g.halted, g.until, err
}

// DirectivesOnly reports whether a halt or a drain lets nothing but directives through to an agent, by its mailbox.
func (b *Broker) DirectivesOnly(tx *store.Tx, agent int64) (bool, error) {
	g, err := b.gate(tx, agent)
	return g.closed(), err
}

// passes reports whether a consumer's agent may be given a ready delivery.
func (b *Broker) passes(tx *store.Tx, c *consumer, r *ready) (bool, error) {
	g, err := b.gate(tx, c.actor.Mailbox)
	if err != nil || g == (gate{}) {
		return err == nil, err
	}
	return r.directive() || g.pass(tx.Now()) != directives, nil
}

// pass returns what a consumer's agent may be given.
func (d *dispatching) pass(c *consumer) (pass, error) {
	g, err := d.gate(d.tx, c.actor.Mailbox)
	if err != nil || g == (gate{}) {
		return everything, err
	}
	return g.pass(d.tx.Now()), nil
}

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
			case oneProbe:
				room = 1
			case directives:
				room = 0
			}
		}
		n += room
	}
	return n, nil
}

// fillGated gives a consumer what its agent's gate lets through: directives, and a probe if one is due.
func (d *dispatching) fillGated(c *consumer, p pass) error {
	err := d.merge(c, noLimit, func(box Mailbox, want int) ([]ready, error) { return d.below(c, box, DirectiveRank, want) })
	if err != nil || p != oneProbe {
		return err
	}
	return d.merge(c, 1, func(box Mailbox, want int) ([]ready, error) { return d.below(c, box, back.rank, want) })
}

// below reads the first deliveries of a mailbox, of a rank under the bound, that a consumer takes.
func (d *dispatching) below(c *consumer, box Mailbox, bound int64, want int) ([]ready, error) {
	self := ""
	if box.Ref.Kind != AgentMailbox {
		self = c.actor.Name // never its own ONE messages
	}
	return readReady(d.tx.Query(selectReadyBelow, c.filter.args([]any{box.ID, bound, d.tx.Now()}, self, want)...), box)
}

// reconsider has dispatch look at all that an agent's consumers may take, at the end of this batch: its gate lets more
// through than before. They are looked at before anything new is handed to them, or that would overtake what waits.
func (b *Broker) reconsider(tx *store.Tx, agent int64) {
	b.lookAgain(tx, func(c *consumer) bool { return c.actor.Mailbox == agent })
}

// lookAgain is reconsider for the consumers that are meant.
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

// ungate takes away all that stands between an agent and its work: its registration has ended.
func (b *Broker) ungate(tx *store.Tx, agent int64) error {
	g, err := b.gate(tx, agent)
	if err != nil || g == (gate{}) {
		return err
	}
	for _, query := range []string{deleteHalt, deleteBreaker} {
		tx.Exec(query, agent)
	}
	b.gates.Clear(tx)
	tx.OnCommit(func() { b.breakers.Remove(agent) })
	return nil
}

// A Gate is what stands in the way of an agent.
type Gate struct {
	Halted   bool // between a halt and a resume
	Degraded bool // its circuit breaker is open
}

// Claimants returns the names of the agents of a session that hold a claim. A name restricts it to
// that agent.
func (b *Broker) Claimants(q store.Querier, session int64, name string) (map[string]bool, error) {
	names := map[string]bool{}
	rows := q.Query(selectClaimants, session, name, name)
	for rows.Next() {
		var found string
		if err := rows.Scan(&found); err != nil {
			return nil, err
		}
		names[found] = true
	}
	return names, rows.Err()
}

// Gated returns the agents of a session that something stands in the way of, by name.
func (b *Broker) Gated(q store.Querier, session int64) (map[string]Gate, error) {
	gated := map[string]Gate{}
	rows := q.Query(selectGated, session)
	for rows.Next() {
		var name string
		var g Gate
		if err := rows.Scan(&name, &g.Halted, &g.Degraded); err != nil {
			return nil, err
		}
		gated[name] = g
	}
	return gated, rows.Err()
}

// A Held counts the claims that an agent of a session holds.
type Held struct {
	Session int64
	Agent   string
	Claims  int64
	Since   time.Time // the time of the oldest claim
}

// Held returns the open claims of all sessions.
func (b *Broker) Held(q store.Querier) (all []Held, err error) {
	rows := q.Query(selectClaimsHeld)
	for rows.Next() {
		var h Held
		if err := rows.Scan(&h.Session, &h.Agent, &h.Claims, &h.Since); err != nil {
			return nil, err
		}
		all = append(all, h)
	}
	return all, rows.Err()
}

package admission

import (
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/broker"
	"brokerd/internal/deadline"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/mail"
	"brokerd/internal/store"
)

// Gates has what stands between agents and their work: halts, the drain of the broker, and circuit breakers. An agent
// is known by its mailbox. The methods of Gates may be called concurrently.
type Gates struct {
	store    *store.Store
	log      *events.Log
	dir      *directory.Directory
	broker   *broker.Broker
	clock    clockwork.Clock
	zap      *zap.Logger
	drains   Drains // nil = the broker is never drained
	kept     store.Cache[int64, gate]
	breakers *deadline.Queue[int64] // when open breakers allow a probe, by agent
}

// A gate is what stands between one agent and its work. The zero gate allows everything. It is read from rows.
// Gates keeps what the functions of the writer have read for those after them, so a message to an agent without a gate
// costs one look-up in a map.
type gate struct {
	halted   bool
	draining bool            // the broker is drained; readGate leaves it out
	failures int             // of its claims, in a row
	until    time.Time       // when the breaker, which is open, allows a probe; zero = closed
	probe    mail.DeliveryID // the claim that decides about the breaker, if there is one
}

// pass returns what a gate allows.
func (g *gate) pass(now time.Time) broker.Pass {
	switch {
	case g.closed():
		return broker.OnlyDirectives
	case g.until.IsZero():
		return broker.Everything
	case g.probe != mail.DeliveryID{} || g.until.After(now):
		return broker.OnlyDirectives
	}
	return broker.OneProbe
}

// closed reports whether a halt or a drain allows nothing but directives.
func (g *gate) closed() bool { return g.halted || g.draining }

// gate returns an agent's gate.
func (g *Gates) gate(tx *store.Tx, agent int64) (gate, error) {
	found, err := g.kept.Get(tx, agent, func() (gate, error) { return readGate(tx, agent) })
	if err == nil {
		found.draining, err = g.Draining(tx)
	}
	return found, err
}

func readGate(q store.Querier, agent int64) (g gate, err error) {
	err = q.QueryRow(selectGate, agent).Scan(&g.halted, &g.failures, &g.until, &g.probe.Message, &g.probe.Mailbox)
	return g, err
}

// Pass implements broker.Gates.
func (g *Gates) Pass(tx *store.Tx, agent int64) (broker.Pass, error) {
	found, err := g.gate(tx, agent)
	if err != nil || found == (gate{}) {
		return broker.Everything, err
	}
	return found.pass(tx.Now()), nil
}

// Barrier implements broker.Gates.
func (g *Gates) Barrier(tx *store.Tx, agent int64) (why broker.Empty, until time.Time, err error) {
	found, err := g.gate(tx, agent)
	switch {
	case err != nil:
	case found.halted:
		return broker.AgentHalted, until, nil
	case found.draining:
		return broker.Draining, until, nil
	case found.pass(tx.Now()) == broker.OnlyDirectives:
		if found.probe == (mail.DeliveryID{}) {
			until = found.until
		}
		return broker.BreakerOpen, until, nil
	}
	return broker.Nothing, until, err
}

// Drains knows whether a drain is in force.
type Drains interface {
	// Draining reports whether the broker delivers no new work.
	Draining(tx *store.Tx) (bool, error)
}

// UseDrains sets the source of drains. Call it before the gates are used.
func (g *Gates) UseDrains(d Drains) { g.drains = d }

// Draining reports whether the broker delivers no new work.
func (g *Gates) Draining(tx *store.Tx) (bool, error) {
	if g.drains == nil {
		return false, nil
	}
	return g.drains.Draining(tx)
}

// Halted reports whether a halt is in force for an agent.
func (g *Gates) Halted(tx *store.Tx, session int64, agent string) (bool, error) {
	id, err := g.broker.Mailboxes.Find(tx, session, mail.AgentRef(agent))
	if err != nil || id == 0 {
		return false, err
	}
	found, err := g.gate(tx, id)
	return found.halted, err
}

// HaltAndBreaker reports whether a halt is in force for an agent, and until when its circuit breaker is open; zero
// stands for a closed one.
func (g *Gates) HaltAndBreaker(q store.Querier, agent int64) (halted bool, open time.Time, err error) {
	found, err := readGate(q, agent)
	return found.halted, found.until, err
}

// DirectivesOnly reports whether a halt or a drain allows an agent nothing but directives.
func (g *Gates) DirectivesOnly(tx *store.Tx, agent int64) (bool, error) {
	found, err := g.gate(tx, agent)
	return found.closed(), err
}

// remove takes away all that stands between an agent and its work: its registration has ended.
func (g *Gates) remove(tx *store.Tx, agent int64) error {
	found, err := g.gate(tx, agent)
	if err != nil || found == (gate{}) {
		return err
	}
	for _, query := range []string{deleteHalt, deleteBreaker} {
		tx.Exec(query, agent)
	}
	g.kept.Clear(tx)
	tx.OnCommit(func() { g.breakers.Remove(agent) })
	return nil
}

// Gated returns the agents of a session that something stands in the way of, by name.
func (g *Gates) Gated(q store.Querier, session int64) (map[string]directory.Gate, error) {
	gated := map[string]directory.Gate{}
	rows := q.Query(selectGated, session)
	for rows.Next() {
		var name string
		var found directory.Gate
		if err := rows.Scan(&name, &found.Halted, &found.Degraded); err != nil {
			return nil, err
		}
		gated[name] = found
	}
	return gated, rows.Err()
}

package broker

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"brokerd/internal/events"
	"brokerd/internal/store"
)

// The circuit breaker of an agent keeps work from one that fails at everything:
//
//	CLOSED ── failures in a row (session setting) ──► OPEN ── its time is over ──► one PROBE is handed out
//	   ▲                                               ▲                              │
//	   └── ack of the probe; registering again         └──────── probe fails ─────────┘
//
// A released probe is replaced by another. Claims that the agent held before decide nothing while it is open. All
// of it is rows; the time is one on the calendar, which the queue of breakers waits for.

// strike counts one failure of an agent, whichever of its claims it is about.
func (b *Broker) strike(tx *store.Tx, session, agent int64, claims ...key) error {
	g, err := b.gate(tx, agent)
	if err != nil {
		return err
	}
	open := !g.until.IsZero()
	if open && !slices.Contains(claims, g.probe) {
		return nil // handed out before it opened
	}
	rules, err := b.dir.ByID(tx, session)
	if err != nil || rules.BreakerLimit == 0 {
		return err
	}
	g.failures++
	var opened, until time.Time // zero = it stays closed
	if open || g.failures >= rules.BreakerLimit {
		opened = tx.Now()
		until = opened.Add(rules.BreakerTime)
	}
	tx.Exec(upsertBreaker, agent, g.failures, until, opened)
	b.gates.Clear(tx)
	if until.IsZero() {
		return nil
	}
	name, err := MailboxName(tx, agent)
	if err != nil {
		return err
	}
	entry := system(session).Event("agent.degraded")
	entry.Category, entry.Severity = events.Agent, events.Warning
	entry.Summary = fmt.Sprintf("%s gets no work for %v: %s in a row", name, rules.BreakerTime, counted(g.failures, "failure"))
	entry.Details = fmt.Sprintf(`{"agent":%s,"failures":%d,"until":%q}`, Quote(name), g.failures, until.UTC().Format(time.RFC3339Nano))
	entry.Related = []string{name}
	if _, err := b.log.Append(tx, entry); err != nil {
		return err
	}
	tx.OnCommit(func() { b.breakers.Set(agent, until) })
	return nil
}

// succeeded takes note that the actor has finished a claim: nothing in a row any more, and a breaker that waits for this
// probe closes.
func (s *SettleTx) succeeded(k key) error {
	g, err := s.gate(s.tx, s.actor.Mailbox)
	if err != nil || g.failures == 0 || !g.until.IsZero() && g.probe != k {
		return err
	}
	return s.closeBreaker(s.tx, s.actor.Session.ID, s.actor.Mailbox)
}

// unprobed lets another probe through after one was released.
func (s *SettleTx) unprobed(h *held) error {
	g, err := s.gate(s.tx, h.holder)
	if err != nil || g.probe != h.key {
		return err
	}
	s.tx.Exec(updateProbe, nil, nil, h.holder)
	s.gates.Clear(s.tx)
	s.reconsider(s.tx, h.holder)
	return nil
}

// probed takes note of what a consumer was given while its agent's breaker lets one probe through.
func (d *dispatching) probed(c *consumer, r *ready) error {
	p, err := d.pass(c)
	if err != nil || p != oneProbe || r.directive() {
		return err
	}
	d.tx.Exec(updateProbe, r.key.message, r.key.mailbox, c.actor.Mailbox)
	d.gates.Clear(d.tx)
	return nil
}

// closeBreaker forgets an agent's failures, and lets work through if there were too many.
func (b *Broker) closeBreaker(tx *store.Tx, session, agent int64) error {
	g, err := b.gate(tx, agent)
	if err != nil || g.failures == 0 {
		return err
	}
	tx.Exec(deleteBreaker, agent)
	b.gates.Clear(tx)
	if g.until.IsZero() {
		return nil
	}
	name, err := MailboxName(tx, agent)
	if err != nil {
		return err
	}
	entry := system(session).Event("agent.recovered")
	entry.Category = events.Agent
	entry.Summary = name + " gets work again"
	entry.Details = `{"agent":` + Quote(name) + `}`
	entry.Related = []string{name}
	if _, err := b.log.Append(tx, entry); err != nil {
		return err
	}
	b.reconsider(tx, agent)
	tx.OnCommit(func() { b.breakers.Remove(agent) })
	return nil
}

// closeBreakers closes those of a whole session, which has none any more.
func (b *Broker) closeBreakers(tx *store.Tx, session int64) error {
	var agents []int64
	rows := tx.Query(selectBreakersOf, session)
	for rows.Next() {
		var agent int64
		if err := rows.Scan(&agent); err != nil {
			return err
		}
		agents = append(agents, agent)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	for _, agent := range agents {
		if err := b.closeBreaker(tx, session, agent); err != nil {
			return err
		}
	}
	return nil
}

// expectBreakers takes up the times of open breakers when the broker starts.
func (b *Broker) expectBreakers(s *store.Snapshot) error {
	rows := s.Query(selectOpenBreakers)
	for rows.Next() {
		var agent int64
		var until time.Time
		if err := rows.Scan(&agent, &until); err != nil {
			return err
		}
		b.breakers.Set(agent, until)
	}
	return rows.Err()
}

// breakersDue lets probes through to agents whose breakers were open for long enough.
func (b *Broker) breakersDue(agents []int64) {
	err := b.store.Drain(context.Background(), func(tx *store.Tx) error {
		for _, agent := range agents {
			g, err := b.gate(tx, agent)
			if err != nil {
				return err
			}
			if g.until.After(tx.Now()) { // it has opened again, or the clock was set back
				tx.OnCommit(func() { b.breakers.Set(agent, g.until) })
				continue
			}
			b.reconsider(tx, agent)
		}
		return nil
	})
	if err != nil {
		for _, agent := range agents {
			b.breakers.Set(agent, b.clock.Now().Add(time.Second))
		}
		b.zap.Warn("no probes could be handed out; trying again", zap.Error(err))
	}
}

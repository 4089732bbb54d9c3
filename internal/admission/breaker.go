package admission

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"brokerd/internal/events"
	"brokerd/internal/finding"
	"brokerd/internal/identity"
	"brokerd/internal/mail"
	"brokerd/internal/store"
)

// The circuit breaker of an agent keeps work from one that fails at everything:
//
//	CLOSED ── failures in a row (session setting) ──► OPEN ── its time has come ─► one PROBE is claimed
//	   ▲                                               ▲                              │
//	   └── ack of the probe; registering again         └──────── probe fails ─────────┘
//
// A released probe is replaced by another. Claims that the agent held before the breaker opened decide nothing while it
// is open. All of this is in rows. A queue waits for the time at which a breaker allows a probe.

// Failed implements broker.Breakers.
func (g *Gates) Failed(tx *store.Tx, session, agent int64, claims ...mail.DeliveryID) error {
	found, err := g.gate(tx, agent)
	if err != nil {
		return err
	}
	open := !found.until.IsZero()
	if open && !slices.Contains(claims, found.probe) {
		return nil // claimed before it opened
	}
	s, err := g.dir.ByID(tx, session)
	limit := int(s.Settings.GetBreakerFailures())
	if err != nil || limit == 0 {
		return err
	}
	failures, pause := found.failures+1, s.Settings.GetBreakerTime().AsDuration()
	var opened, until time.Time // zero = it stays closed
	if open || failures >= limit {
		opened = tx.Now()
		until = opened.Add(pause)
	}
	tx.Exec(upsertBreaker, agent, failures, until, opened)
	g.kept.Clear(tx)
	if until.IsZero() {
		return nil
	}
	name, err := mail.MailboxName(tx, agent)
	if err != nil {
		return err
	}
	entry := agentEvent(session, name, "agent.degraded")
	entry.Severity = events.Warning
	entry.Summary = fmt.Sprintf("%s gets no work for %v: %s in a row",
		name, pause, finding.Count(failures, "failure"))
	entry.Details = fmt.Sprintf(`{"agent":%s,"failures":%d,"until":%q}`,
		events.Quote(name), failures, until.UTC().Format(time.RFC3339Nano))
	if _, err := g.log.Append(tx, entry); err != nil {
		return err
	}
	tx.OnCommit(func() { g.breakers.Set(agent, until) })
	return nil
}

// agentEvent returns an event of the broker about an agent.
func agentEvent(session int64, name, kind string) events.Entry {
	return events.Entry{
		Session: session, Category: events.Agent, Type: kind, Source: identity.System, Related: []string{name},
	}
}

// Succeeded implements broker.Breakers. The agent has no failures in a row any more, and a breaker that waits for this
// probe closes.
func (g *Gates) Succeeded(tx *store.Tx, session, agent int64, claim mail.DeliveryID) error {
	found, err := g.gate(tx, agent)
	if err != nil || found.failures == 0 || !found.until.IsZero() && found.probe != claim {
		return err
	}
	return g.closeBreaker(tx, session, agent)
}

// Released implements broker.Breakers. If the claim was the probe, another delivery may be the probe.
func (g *Gates) Released(tx *store.Tx, agent int64, claim mail.DeliveryID) error {
	found, err := g.gate(tx, agent)
	if err != nil || found.probe != claim {
		return err
	}
	tx.Exec(updateProbe, nil, nil, agent)
	g.kept.Clear(tx)
	g.broker.Waiters.Reconsider(agent)
	return nil
}

// Probed implements broker.Gates.
func (g *Gates) Probed(tx *store.Tx, agent int64, d mail.DeliveryID) {
	tx.Exec(updateProbe, d.Message, d.Mailbox, agent)
	g.kept.Clear(tx)
}

// closeBreaker forgets an agent's failures. If its breaker was open, the agent is given work again.
func (g *Gates) closeBreaker(tx *store.Tx, session, agent int64) error {
	found, err := g.gate(tx, agent)
	if err != nil || found.failures == 0 {
		return err
	}
	tx.Exec(deleteBreaker, agent)
	g.kept.Clear(tx)
	if found.until.IsZero() {
		return nil
	}
	name, err := mail.MailboxName(tx, agent)
	if err != nil {
		return err
	}
	entry := agentEvent(session, name, "agent.recovered")
	entry.Summary = name + " gets work again"
	entry.Details = `{"agent":` + events.Quote(name) + `}`
	if _, err := g.log.Append(tx, entry); err != nil {
		return err
	}
	g.broker.Waiters.Reconsider(agent)
	tx.OnCommit(func() { g.breakers.Remove(agent) })
	return nil
}

// closeBreakers closes the breakers of a whole session, which has none any more.
func (g *Gates) closeBreakers(tx *store.Tx, session int64) error {
	agents, err := store.Collect(tx.Query(selectBreakersOf, session), func(r *store.Rows) (agent int64, err error) {
		return agent, r.Scan(&agent)
	})
	if err != nil {
		return err
	}
	for _, agent := range agents {
		if err := g.closeBreaker(tx, session, agent); err != nil {
			return err
		}
	}
	return nil
}

// expectBreakers takes up the times of open breakers when the broker starts.
func (g *Gates) expectBreakers(s *store.Snapshot) error {
	rows := s.Query(selectOpenBreakers)
	for rows.Next() {
		var agent int64
		var until time.Time
		if err := rows.Scan(&agent, &until); err != nil {
			return err
		}
		g.breakers.Set(agent, until)
	}
	return rows.Err()
}

// breakersDue allows probes to agents whose breakers were open for long enough.
func (g *Gates) breakersDue(agents []int64) {
	err := g.store.Drain(context.Background(), func(tx *store.Tx) error {
		for _, agent := range agents {
			found, err := g.gate(tx, agent)
			if err != nil {
				return err
			}
			if found.until.After(tx.Now()) { // it has opened again, or the clock was set back
				tx.OnCommit(func() { g.breakers.Set(agent, found.until) })
				continue
			}
			g.broker.Waiters.Reconsider(agent)
		}
		return nil
	})
	if err != nil {
		for _, agent := range agents {
			g.breakers.Set(agent, g.clock.Now().Add(time.Second))
		}
		g.zap.Warn("no probes could be handed out; trying again", zap.Error(err))
	}
}

package agents

import (
	"slices"

	"brokerd/internal/directory"
	"brokerd/internal/store"
)

// pulseBatch is for how many agents Pulse holds the mutex that every call needs.
const pulseBatch = 500

// Pulse counts the registered agents of a session, and their messages, in memory.
func (p *Presence) Pulse(session string) directory.Pulse {
	now := p.clock.Now()
	var lives []*life
	p.mu.Lock()
	for _, l := range p.lives {
		if l.session == session {
			lives = append(lives, l)
		}
	}
	p.mu.Unlock()
	var n directory.Pulse
	for batch := range slices.Chunk(lives, pulseBatch) {
		p.mu.Lock()
		for _, l := range batch {
			l.addTo(&n, p.late(l, now))
		}
		p.mu.Unlock()
	}
	return n
}

func (l *life) addTo(n *directory.Pulse, late bool) {
	if l.lease == 0 {
		return
	}
	n.Agents++
	n.Sent += l.Sent
	n.Received += l.Received
	n.Processed += l.Processed
	switch {
	case l.ended == hasFailed:
		n.Failed++
	case l.ended == hasStopped:
		n.Stopped++
	case late:
		n.Late++
	}
}

// Team returns registered agents of a session, failed ones first, then by name, at most most: ID,
// Name, Role, Status, Activity, the times, Harness, Health and Gate. claims has the agents that hold claims.
func (r *Registry) Team(q store.Querier, session int64, name string, claims map[string]int64, most int) ([]Agent, error) {
	gated, err := r.mail.Gated(q, session)
	if err != nil {
		return nil, err
	}
	var team []Agent
	now := r.clock.Now()
	rows := q.Query(selectTeam, session, most)
	for rows.Next() {
		a := Agent{Session: session}
		var status, state int
		h := &a.Harness
		if err := rows.Scan(&a.ID, &a.Name, &a.Role, &status, &a.Activity, &a.RegisteredAt, &a.LastSeen, &a.FailedAt, &a.StoppedAt,
			&h.Session, &h.Program, &state, &h.Tool, &h.Listening, &h.Since); err != nil {
			return nil, err
		}
		a.Status, h.State, a.Gate = Status(status), HarnessState(state), gated[a.Name]
		r.Presence.look(name, &a, claims[a.Name] > 0, now)
		team = append(team, a)
	}
	return team, rows.Err()
}

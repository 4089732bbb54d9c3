package agents

import (
	"sync"
	"time"
)

// mostSeen bounds the memory for agents heard of; for more than these, last seen is the last change.
const mostSeen = 100_000

// Seen takes note that an agent was heard of: a call in its own name. It is memory alone.
func (r *Registry) Seen(session, name string) { r.presence.seen(session, name, r.clock.Now()) }

// presence remembers when agents were last heard of, since the broker started.
type presence struct {
	mu    sync.Mutex // guards times
	times map[agentKey]time.Time
}

type agentKey struct{ session, name string }

func (p *presence) seen(session, name string, now time.Time) {
	key := agentKey{session, name}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.times == nil {
		p.times = map[agentKey]time.Time{}
	}
	if _, known := p.times[key]; known || len(p.times) < mostSeen {
		p.times[key] = now
	}
}

func (p *presence) forget(session, name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.times, agentKey{session, name})
}

// last returns when an agent was last heard of, and when it last changed if that is later.
func (p *presence) last(session string, a Agent) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at := p.times[agentKey{session, a.Name}]; at.After(a.ChangedAt) {
		return at
	}
	return a.ChangedAt
}

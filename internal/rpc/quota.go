package rpc

import (
	"net"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"

	"brokerd/internal/caller"
	"brokerd/internal/fault"
)

// Limits of one agent, on all connections together. Several agents may share a connection.
const (
	maxAgentStreams     = 100
	maxAgentConnections = 16
	// maxSharers is how many agents a connection is counted for: one that carries more is a gateway's.
	maxSharers = 10_000
	// quotaRetry is when to try again what is refused until something else ends.
	quotaRetry = time.Second
)

// An identity is an agent in its session.
type identity struct{ session, agent string }

// quotas count what each agent has open.
type quotas struct {
	mu     sync.Mutex // guards the agents, and those of every link
	agents map[identity]open
}

type open struct{ streams, connections int }

func newQuotas() *quotas { return &quotas{agents: map[identity]open{}} }

// A link is a connection with the agents that have called through it. Closing it takes it off their accounts.
type link struct {
	net.Conn
	quotas *quotas
	agents map[identity]struct{}
	closed bool
}

// Close implements net.Conn.
func (l *link) Close() error {
	l.quotas.disconnect(l)
	return l.Conn.Close()
}

// connect counts a connection for an agent that calls through it: fault.Exhausted if it has too many others.
func (q *quotas) connect(l *link, c caller.Caller) error {
	if c.Agent == "" || l == nil {
		return nil
	}
	who := identity{c.Session, c.Agent}
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, known := l.agents[who]; known || l.closed || len(l.agents) >= maxSharers {
		return nil
	}
	has := q.agents[who]
	if has.connections >= maxAgentConnections {
		return tooMany("CONNECTIONS", "connections", c.Agent, maxAgentConnections)
	}
	has.connections++
	q.agents[who] = has
	l.agents[who] = struct{}{}
	return nil
}

func (q *quotas) disconnect(l *link) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l.closed {
		return
	}
	l.closed = true
	for who := range l.agents {
		has := q.agents[who]
		has.connections--
		q.set(who, has)
	}
	l.agents = nil
}

// openStream counts a stream for an agent: fault.Exhausted if it has too many others. The caller ends it with closeStream.
func (q *quotas) openStream(c caller.Caller) error {
	if c.Agent == "" {
		return nil
	}
	who := identity{c.Session, c.Agent}
	q.mu.Lock()
	defer q.mu.Unlock()
	has := q.agents[who]
	if has.streams >= maxAgentStreams {
		return tooMany("STREAMS", "streams", c.Agent, maxAgentStreams)
	}
	has.streams++
	q.agents[who] = has
	return nil
}

func (q *quotas) closeStream(c caller.Caller) {
	if c.Agent == "" {
		return
	}
	who := identity{c.Session, c.Agent}
	q.mu.Lock()
	defer q.mu.Unlock()
	has := q.agents[who]
	has.streams--
	q.set(who, has)
}

// set notes what an agent has open. The caller holds the mutex.
func (q *quotas) set(who identity, has open) {
	if has == (open{}) {
		delete(q.agents, who)
		return
	}
	q.agents[who] = has
}

func tooMany(reason, what, agent string, most int) error {
	e := fault.New(fault.Exhausted, "TOO_MANY_"+reason,
		"%s has %d %s open, which is as many as an agent may have: close one, or share them", agent, most, what)
	e.RetryAfter = quotaRetry
	return e.With("limit", what).With(what, strconv.Itoa(most))
}

// checkHeaders refuses a call whose metadata is larger than it need be.
func checkHeaders(md metadata.MD) error {
	const perField = 32 // as HTTP/2 counts
	size := 0
	for key, values := range md {
		for _, v := range values {
			size += len(key) + len(v) + perField
		}
	}
	if size <= maxHeaders {
		return nil
	}
	return fault.New(fault.Exhausted, "METADATA_TOO_LARGE", "the call's metadata has %d bytes; at most %d are allowed", size, maxHeaders).
		With("limit", "metadata").With("metadata", strconv.Itoa(maxHeaders))
}

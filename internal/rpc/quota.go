package rpc

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc/tap"

	"brokerd/internal/caller"
	"brokerd/internal/fault"
)

// Limits of one agent, on all connections together. Several agents may share a connection.
const (
	maxAgentStreams     = 100
	maxAgentConnections = 16
	// maxUnderWay is how many bytes the requests of one caller's unary calls may have together until
	// they are answered. Requests of up to smallRequest bytes do not count.
	maxUnderWay  = 64 << 20
	smallRequest = 4 << 10
	// maxSharers is how many agents a connection is counted for: one that carries more is a gateway's.
	maxSharers = 10_000
	// quotaRetry is when to try again what is refused until something else ends.
	quotaRetry = time.Second
)

// An identity is an agent in its session.
type identity struct{ session, agent string }

// quotas count what each agent has open. Nobody is told when gRPC closes a connection without also being told of every
// message, so closed links stay until they are looked at: when an agent has as many as it may, and two at every new link.
type quotas struct {
	mu     sync.Mutex // guards all of it, and the agents of every link
	agents map[identity]open
	bytes  map[any]int // of requests under way, by the caller that takes turns
	links  []*link     // that agents have called through
	hand   int         // the link to look at next
}

type open struct {
	streams int
	links   []*link
}

func newQuotas() *quotas { return &quotas{agents: map[identity]open{}, bytes: map[any]int{}} }

// A link is a connection with the agents that have called through it.
type link struct {
	conn     syscall.RawConn
	agents   map[identity]struct{}
	released bool // it was closed, and is off its agents' accounts
}

// newLink returns the link of a connection.
func newLink(conn net.Conn) (*link, error) {
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("a connection of type %T cannot be counted", conn)
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("get at the socket: %w", err)
	}
	return &link{conn: raw, agents: map[identity]struct{}{}}, nil
}

// closed reports whether gRPC has closed the connection, as it does as soon as the other end has.
func (l *link) closed() bool { return l.conn.Control(func(uintptr) {}) != nil }

// connect counts a connection for an agent that calls through it: fault.Exhausted if it has too many others.
func (q *quotas) connect(l *link, c caller.Caller) error {
	if c.Agent == "" || l == nil {
		return nil
	}
	who := identity{c.Session, c.Agent}
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, known := l.agents[who]; known || l.released || len(l.agents) >= maxSharers {
		return nil
	}
	if !q.room(who) {
		return tooMany("CONNECTIONS", "connections", c.Agent, maxAgentConnections)
	}
	if len(l.agents) == 0 {
		q.tidy()
		q.links = append(q.links, l)
	}
	l.agents[who] = struct{}{}
	has := q.agents[who]
	has.links = append(has.links, l)
	q.agents[who] = has
	return nil
}

// room reports whether an agent may have one more connection. The caller holds the mutex.
func (q *quotas) room(who identity) bool {
	if len(q.agents[who].links) < maxAgentConnections {
		return true
	}
	for _, l := range slices.Clone(q.agents[who].links) {
		if l.closed() {
			q.release(l)
		}
	}
	return len(q.agents[who].links) < maxAgentConnections
}

// tidy forgets closed links. Of two that it looks at for every new one it never falls behind: there are about as many
// closed ones as open ones at most. The caller holds the mutex.
func (q *quotas) tidy() {
	for i := 0; i < 2 && len(q.links) > 0; i++ {
		q.hand %= len(q.links)
		l := q.links[q.hand]
		if !l.closed() {
			q.hand++
			continue
		}
		q.release(l)
		last := len(q.links) - 1
		q.links[q.hand], q.links[last] = q.links[last], nil
		q.links = q.links[:last]
	}
}

// release takes a closed link off the accounts of its agents. The caller holds the mutex.
func (q *quotas) release(l *link) {
	l.released = true
	for who := range l.agents {
		has := q.agents[who]
		has.links = slices.DeleteFunc(has.links, func(other *link) bool { return other == l })
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

// hold counts a request of a unary call: fault.Exhausted if the caller has too many bytes under
// way. The caller of hold ends it with drop.
func (q *quotas) hold(who any, bytes int) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.bytes[who]+bytes > maxUnderWay {
		e := fault.New(fault.Exhausted, "TOO_MUCH_UNDER_WAY",
			"the requests that this caller has under way would have more than %d request_bytes: wait for answers", maxUnderWay)
		e.RetryAfter = quotaRetry
		return e.With("limit", "request_bytes").With("request_bytes", strconv.Itoa(maxUnderWay))
	}
	q.bytes[who] += bytes
	return nil
}

func (q *quotas) drop(who any, bytes int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.bytes[who] -= bytes; q.bytes[who] == 0 {
		delete(q.bytes, who)
	}
}

// set notes what an agent has open. The caller holds the mutex.
func (q *quotas) set(who identity, has open) {
	if has.streams == 0 && len(has.links) == 0 {
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

// measureHeaders notes in its context that a call's metadata is larger than it need be. It looks before the call's handler begins, since handlers
// see a copy of the metadata, which costs more than all the rest of the checks.
func measureHeaders(ctx context.Context, info *tap.Info) (context.Context, error) {
	const perField = 32 // as HTTP/2 counts
	size := 0
	for key, values := range info.Header {
		for _, v := range values {
			size += len(key) + len(v) + perField
		}
	}
	if size > maxHeaders {
		ctx = context.WithValue(ctx, headerSize{}, size)
	}
	return ctx, nil
}

// headerSize is the key of the size of metadata that is too large.
type headerSize struct{}

// checkHeaders refuses a call whose metadata is larger than it need be.
func checkHeaders(ctx context.Context) error {
	size, tooLarge := ctx.Value(headerSize{}).(int)
	if !tooLarge {
		return nil
	}
	return fault.New(fault.Exhausted, "METADATA_TOO_LARGE", "the call's metadata has %d bytes; at most %d are allowed", size, maxHeaders).
		With("limit", "metadata").With("metadata", strconv.Itoa(maxHeaders))
}

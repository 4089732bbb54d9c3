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

	"brokerd/internal/fault"
	"brokerd/internal/identity"
)

// maxSharers is how many callers a connection is counted for: one that carries more is a gateway's.
const maxSharers = 10_000

// quotaRetry is when to retry a call that is refused until another one ends.
const quotaRetry = time.Second

// An agentKey names an agent in its session.
type agentKey struct{ session, agent string }

// quotas count what each caller has open. gRPC reports a closed connection only to a stats.Handler,
// which it also calls for every message. quotas therefore detects closed connections itself. It checks
// all connections of a caller that is at its limit, and two connections whenever one is added.
type quotas struct {
	total total

	mu       sync.Mutex // guards the fields below, and the accounts of every link
	accounts map[any]*account
	links    []*link // that callers have called through
	hand     int     // the link to check next
}

func newQuotas() *quotas { return &quotas{accounts: map[any]*account{}} }

// A link is a connection with the callers that have called through it.
type link struct {
	conn     syscall.RawConn
	unproved account          // of its calls that need no credential
	others   account          // of the callers beyond maxSharers
	accounts map[any]*account // of its callers
	released bool             // it was closed, and is off its callers' accounts
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
	l := &link{conn: raw, accounts: map[any]*account{}}
	l.unproved.most, l.others.most = &unprovedLimits, &credentialLimits
	return l, nil
}

// closed reports whether gRPC has closed the connection, as it does as soon as the other end has.
func (l *link) closed() bool { return l.conn.Control(func(uintptr) {}) != nil }

// connect counts a connection for the caller of a call on it, and returns the caller's account: nil
// for the daemon's own user, whom only the limits of the process bound. It returns fault.Exhausted if
// the caller has too many other connections.
func (q *quotas) connect(l *link, who identity.Caller, grant *identity.Grant, local bool) (*account, error) {
	var key any
	most := &agentLimits
	switch {
	case who.Access == identity.None && l != nil:
		return &l.unproved, nil
	case who.Agent != "":
		key = agentKey{who.Session, who.Agent}
	case local || l == nil:
		return nil, nil
	default: // all calls of a credential have the same grant
		key, most = grant, &credentialLimits
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case l == nil || l.released:
		return &account{most: most}, nil // the call ends with its connection
	case l.accounts[key] != nil:
		return l.accounts[key], nil
	case len(l.accounts) >= maxSharers:
		return &l.others, nil
	}
	a := q.accounts[key]
	if a == nil {
		a = &account{key: key, most: most}
	}
	if !q.admits(a) {
		return nil, a.tooMany("CONNECTIONS", "connections", most.connections)
	}
	if len(l.accounts) == 0 {
		q.tidy()
		q.links = append(q.links, l)
	}
	l.accounts[key] = a
	a.links = append(a.links, l)
	q.accounts[key] = a
	return a, nil
}

// admits reports whether a caller may have one more connection. The caller of admits holds the mutex.
func (q *quotas) admits(a *account) bool {
	if len(a.links) < a.most.connections {
		return true
	}
	for _, l := range slices.Clone(a.links) {
		if l.closed() {
			q.release(l)
		}
	}
	return len(a.links) < a.most.connections
}

// tidy forgets closed links. It checks two for every new link, so at most about half of the links are
// closed ones. The caller holds the mutex.
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

// release takes a closed link off the accounts of its callers. The caller holds the mutex.
func (q *quotas) release(l *link) {
	l.released = true
	for _, a := range l.accounts {
		a.links = slices.DeleteFunc(a.links, func(other *link) bool { return other == l })
		q.forget(a)
	}
	l.accounts = nil
}

// openStream counts a stream: fault.Exhausted if its caller has too many others. If many, the client
// may send ahead as many bytes as the window has. The caller of openStream ends it with closeStream.
func (q *quotas) openStream(a *account, many bool) error {
	if a == nil {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if a.streams >= a.most.streams {
		return a.tooMany("STREAMS", "streams", a.most.streams)
	}
	if many {
		if a.bytes.Add(streamWindow) > int64(a.most.bytes) {
			a.bytes.Add(-streamWindow)
			return a.tooMuch()
		}
	}
	a.streams++
	return nil
}

// closeStream ends what openStream has counted.
func (q *quotas) closeStream(a *account, many bool) {
	if a == nil {
		return
	}
	if many {
		a.bytes.Add(-streamWindow)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	a.streams--
	q.forget(a)
}

// forget removes the account of a caller that has nothing open. The caller holds the mutex.
func (q *quotas) forget(a *account) {
	if a.streams == 0 && len(a.links) == 0 && q.accounts[a.key] == a {
		delete(q.accounts, a.key)
	}
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

package rpc

import (
	"strconv"
	"sync/atomic"

	"brokerd/internal/fault"
)

// Limits of the bytes of requests. A request counts from its header on, before the broker reads the
// rest, until it is answered. On a stream, it counts until the stream's handler has it.
const (
	// maxUnderWay is how many bytes the requests of one caller may have together. Requests of up to
	// smallRequest bytes do not count.
	maxUnderWay  = 64 << 20
	smallRequest = 4 << 10
	// maxUnproved is how many bytes the requests of calls that need no credential may have together on
	// one connection. Each has up to publicRequest bytes, and counts for as many.
	maxUnproved   = 64 << 10
	publicRequest = 4 << 10
	// maxInProcess is how many bytes the requests of all callers may have together. A caller that has
	// less than fairShare may exceed it, so that a few callers cannot exclude the others.
	maxInProcess = 512 << 20
	fairShare    = 64 << 10
)

// limits are what one caller may have open at a time, on all connections together.
type limits struct {
	of          string // the caller, in errors
	connections int
	streams     int
	calls       int
	bytes       int
}

var (
	// Several agents may share a connection.
	agentLimits = limits{"an agent", 16, 100, 16_000, maxUnderWay}
	// A credential of an observer or an operator, or a login of the dashboard.
	credentialLimits = limits{"a credential", 256, 1000, 16_000, maxUnderWay}
	// A connection before a credential is verified. It has no streams.
	unprovedLimits = limits{"a connection without a credential", 0, 0, maxStreams, maxUnproved}
)

// An account counts what one caller has open.
type account struct {
	key   any // in quotas; nil for the accounts of a link
	most  *limits
	calls atomic.Int64
	bytes atomic.Int64 // of its requests

	streams int     // guarded by the mutex of quotas
	links   []*link // guarded by the mutex of quotas
}

// begin counts a call: fault.Exhausted if the caller has too many others. end ends it.
func (a *account) begin() error {
	if a != nil && a.calls.Add(1) > int64(a.most.calls) {
		a.calls.Add(-1)
		return a.tooMany("CALLS", "calls", a.most.calls)
	}
	return nil
}

func (a *account) end() {
	if a != nil {
		a.calls.Add(-1)
	}
}

func (a *account) tooMany(reason, what string, most int) error {
	name := "the caller"
	if who, ok := a.key.(agentKey); ok {
		name = who.agent
	}
	e := fault.New(fault.Exhausted, "TOO_MANY_"+reason,
		"%s has %d %s open, which is as many as %s may have: close one, or share them", name, most, what, a.most.of)
	e.RetryAfter = quotaRetry
	return e.With("limit", what).With(what, strconv.Itoa(most))
}

func (a *account) tooMuch() error {
	return underWay("request_bytes", a.most.bytes, "that "+a.most.of+" has under way")
}

// A total counts the bytes of the requests of all callers.
type total struct{ bytes atomic.Int64 }

// hold counts bytes of requests of an account, which may be nil: fault.Exhausted if there are too many
// of this caller or of all together. The caller of hold ends it with drop.
func (t *total) hold(a *account, bytes int) error {
	mine, all := int64(bytes), t.bytes.Add(int64(bytes))
	if a != nil {
		mine = a.bytes.Add(int64(bytes))
		if mine > int64(a.most.bytes) {
			t.drop(a, bytes)
			return a.tooMuch()
		}
	}
	if all > maxInProcess && mine > fairShare {
		t.drop(a, bytes)
		return underWay("process_request_bytes", maxInProcess, "of all callers together")
	}
	return nil
}

func (t *total) drop(a *account, bytes int) {
	t.bytes.Add(-int64(bytes))
	if a != nil {
		a.bytes.Add(-int64(bytes))
	}
}

// A Hold counts bytes of a request before they are read. Its error is fault.Exhausted.
type Hold func(bytes int) error

// A holding is what one request counts for. One goroutine at a time may use it.
type holding struct {
	total   *total
	account *account // nil = only the total counts
	bytes   int
}

// take counts bytes until release.
func (h *holding) take(bytes int) error {
	if err := h.total.hold(h.account, bytes); err != nil {
		return err
	}
	h.bytes += bytes
	return nil
}

// items counts what the items of a request take, unless they are few.
func (h *holding) items(bytes int) error {
	if bytes <= smallRequest {
		return nil
	}
	return h.take(bytes)
}

func (h *holding) release() {
	if h.bytes > 0 {
		h.total.drop(h.account, h.bytes)
		h.bytes = 0
	}
}

func underWay(limit string, most int, whose string) error {
	e := fault.New(fault.Exhausted, "TOO_MUCH_UNDER_WAY",
		"the requests %s would have more than %d %s: wait for answers", whose, most, limit)
	e.RetryAfter = quotaRetry
	return e.With("limit", limit).With(limit, strconv.Itoa(most))
}

package state

import (
	"strconv"
	"sync"
	"time"

	"brokerd/internal/fault"
)

// maxWatches is how many watches are open at a time.
const maxWatches = 1000

// A hub wakes those who watch a scope. It carries wake-ups, never data.
type hub struct {
	mu      sync.Mutex                           // guards the fields below
	scopes  map[int64]map[chan struct{}]struct{} // who watches
	watches int
}

func newHub() *hub { return &hub{scopes: map[int64]map[chan struct{}]struct{}{}} }

// enter counts a watch, until the returned function is called.
func (h *hub) enter() (leave func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.watches == maxWatches {
		e := fault.New(fault.Exhausted, "TOO_MANY_WATCHES", "%d watches are open, which is the limit: end one first", maxWatches).
			With("limit", "watches").With("watches", strconv.Itoa(maxWatches))
		e.RetryAfter = time.Second
		return nil, e
	}
	h.watches++
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.watches--
	}, nil
}

// join returns a channel that gets a wake-up after each commit with changes in the scope, and what ends that.
func (h *hub) join(scope int64) (<-chan struct{}, func()) {
	woken := make(chan struct{}, 1)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.scopes[scope] == nil {
		h.scopes[scope] = map[chan struct{}]struct{}{}
	}
	h.scopes[scope][woken] = struct{}{}
	return woken, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.scopes[scope], woken)
		if len(h.scopes[scope]) == 0 {
			delete(h.scopes, scope)
		}
	}
}

// wake runs in the writer after a commit.
func (h *hub) wake(scope int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for watcher := range h.scopes[scope] {
		select {
		case watcher <- struct{}{}:
		default: // it has a wake-up waiting
		}
	}
}

package work

import (
	"context"
	"sync"
	"time"

	"github.com/jonboulle/clockwork"
)

// A Hub wakes calls that wait for a change of a key. It carries wake-ups, never data. Its methods
// may be called concurrently.
type Hub[K comparable] struct {
	clock    clockwork.Clock
	draining chan struct{}

	mu      sync.Mutex // guards the fields below
	waiting map[K]map[chan struct{}]struct{}
	drained bool
}

// NewHub returns a hub on which no call waits.
func NewHub[K comparable](clock clockwork.Clock) *Hub[K] {
	return &Hub[K]{clock: clock, draining: make(chan struct{}), waiting: map[K]map[chan struct{}]struct{}{}}
}

// Await calls the function look until it reports done or fails: now, and again after each wake-up of one
// of the keys. It returns without an error when the wait has ended or the hub drains, and with the error of
// ctx when that ends. The caller knows the outcome from what the function look found.
func (h *Hub[K]) Await(ctx context.Context, wait time.Duration, keys []K, look func() (done bool, err error)) error {
	woken, leave := h.join(keys)
	defer leave()
	if done, err := look(); done || err != nil || wait <= 0 {
		return err
	}
	timer := h.clock.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case <-woken:
		case <-timer.Chan():
			return nil
		case <-h.draining:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
		if done, err := look(); done || err != nil {
			return err
		}
	}
}

// Wake wakes the calls that wait for one of the keys. A feature calls it after the commit.
func (h *Hub[K]) Wake(keys ...K) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, key := range keys {
		for call := range h.waiting[key] {
			select {
			case call <- struct{}{}:
			default: // it has a wake-up already
			}
		}
	}
}

// Drain ends all waits, and those to come.
func (h *Hub[K]) Drain() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.drained {
		h.drained = true
		close(h.draining)
	}
}

// join returns a channel that receives the wake-ups of the keys, and the function that ends that.
func (h *Hub[K]) join(keys []K) (<-chan struct{}, func()) {
	woken := make(chan struct{}, 1)
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, key := range keys {
		if h.waiting[key] == nil {
			h.waiting[key] = map[chan struct{}]struct{}{}
		}
		h.waiting[key][woken] = struct{}{}
	}
	return woken, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, key := range keys {
			delete(h.waiting[key], woken)
			if len(h.waiting[key]) == 0 {
				delete(h.waiting, key)
			}
		}
	}
}

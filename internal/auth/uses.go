package auth

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"brokerd/internal/store"
)

const (
	usePeriod    = time.Hour // between two events of a credential and an address
	mostUsers    = 100       // addresses of one credential with their own events in a period
	usesPerWrite = 500
)

// uses are the calls with one credential since the start.
type uses struct {
	at     atomic.Int64             // of the last call, Unix nanoseconds; 0 = none
	client atomic.Pointer[useOf]    // of the last call; nil = none
	mu     sync.Mutex               // guards noted
	noted  map[netip.Addr]time.Time // the last event of each address
}

// A useOf is an address with the time of its last event.
type useOf struct {
	client netip.Addr
	noted  time.Time
}

// use records a call with a credential. Nearly every call comes from the address of the one before,
// and then use takes no mutex.
func (r *Registry) use(e *entry, client netip.Addr, at time.Time) {
	e.uses.at.Store(at.UnixNano())
	if last := e.uses.client.Load(); last != nil && last.client == client && at.Sub(last.noted) < usePeriod {
		return
	}
	if e.uses.isNew(client, at) {
		r.note(note{client: clientName(client), credential: e.id, at: at})
	}
}

// isNew records the address of a call, and reports whether the call needs an event.
func (u *uses) isNew(client netip.Addr, at time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	noted, known := u.noted[client]
	if known && at.Sub(noted) < usePeriod {
		u.client.Store(&useOf{client, noted})
		return false
	}
	u.client.Store(&useOf{client, at})
	if u.noted == nil {
		u.noted = map[netip.Addr]time.Time{}
	}
	if !known && len(u.noted) >= mostUsers {
		for other, noted := range u.noted {
			if at.Sub(noted) >= usePeriod {
				delete(u.noted, other)
			}
		}
		if len(u.noted) >= mostUsers {
			return false
		}
	}
	u.noted[client] = at
	return true
}

// last returns the last call since the start; the zero time if there was none.
func (u *uses) last() (at time.Time, client string) {
	last := u.client.Load()
	if last == nil {
		return time.Time{}, ""
	}
	return time.Unix(0, u.at.Load()).UTC(), clientName(last.client)
}

// fillUse adds to a credential what the table does not have yet.
func (r *Registry) fillUse(c *Credential) {
	e := r.entry(c.ID)
	if e == nil {
		return
	}
	if at, client := e.uses.last(); !at.IsZero() {
		c.LastUsedAt, c.LastUsedFrom = at, client
	}
}

// recordUses writes the last calls with all credentials.
func (r *Registry) recordUses() error {
	r.mu.RLock()
	var used []*entry
	for _, e := range r.byID {
		if e.uses.client.Load() != nil {
			used = append(used, e)
		}
	}
	r.mu.RUnlock()
	for len(used) > 0 {
		n := min(len(used), usesPerWrite)
		err := r.store.Write(context.Background(), func(tx *store.Tx) error {
			for _, e := range used[:n] {
				at, client := e.uses.last()
				tx.Exec(updateUse, at, client, e.id)
			}
			return nil
		})
		if err != nil {
			return err
		}
		used = used[n:]
	}
	return nil
}

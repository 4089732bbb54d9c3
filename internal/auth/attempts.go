package auth

import (
	"errors"
	"net/netip"
	"sync"
	"time"

	"brokerd/internal/fault"
)

// Limits of failed attempts.
const (
	burst       = 20              // failures of an address in a row
	refill      = 3 * time.Second // until it may fail once more
	mostClients = 4096            // addresses in memory
	reportEvery = time.Minute     // between two events of an address; a full burst refills in that time
)

// attempts count the failed attempts of each address. An address is in memory until a minute has
// passed without a failure.
type attempts struct {
	mu      sync.Mutex // guards clients and every attempt
	clients map[netip.Addr]*attempt
}

// An attempt is the account of one address.
type attempt struct {
	left       float64 // failures that it may still have, as of at
	at         time.Time
	unreported int
	last       *fault.Error
}

// Refuse counts a failed attempt of a client and returns the error that the client receives: cause, or
// fault.Exhausted (TOO_MANY_FAILED_ATTEMPTS) if its address has failed too often.
func (r *Registry) Refuse(client netip.Addr, at time.Time, cause error) error {
	wait := r.fail(client, at, cause, 1)
	if wait == 0 {
		return cause
	}
	e := fault.New(fault.Exhausted, "TOO_MANY_FAILED_ATTEMPTS",
		"too many attempts from this address have failed: present a valid credential, or try again in %s", wait.Round(time.Millisecond)).
		With("limit", "failed_attempts")
	e.RetryAfter = wait
	return e
}

// fail counts a failed attempt that costs its address a number of failures. It returns 0, or how long
// the address has to wait because it has failed too often.
func (r *Registry) fail(client netip.Addr, at time.Time, cause error, cost float64) time.Duration {
	client = network(client)
	r.attempts.mu.Lock()
	defer r.attempts.mu.Unlock()
	a := r.attempts.clients[client]
	if a == nil && len(r.attempts.clients) >= mostClients {
		client = otherClients()
		a = r.attempts.clients[client]
	}
	first := a == nil
	if first {
		a = &attempt{left: burst, at: at}
		r.attempts.clients[client] = a
	}
	_ = errors.As(cause, &a.last)
	a.unreported++
	if first {
		r.report(client, a)
		r.queue.Set(dueKey{client: client}, at.Add(reportEvery))
	}
	return a.take(at, cost)
}

// take takes failures off the account. It returns 0, or how long the address has to wait until it has
// as many.
func (a *attempt) take(at time.Time, cost float64) time.Duration {
	if passed := at.Sub(a.at); passed > 0 {
		a.left = min(burst, a.left+passed.Seconds()/refill.Seconds())
		a.at = at
	}
	if a.left < cost {
		return max(time.Duration((cost-a.left)*float64(refill)), time.Millisecond)
	}
	a.left -= cost
	return 0
}

// closeMinute reports the failures of an address since its last event, and forgets an address without
// any.
func (r *Registry) closeMinute(client netip.Addr) {
	r.attempts.mu.Lock()
	defer r.attempts.mu.Unlock()
	a := r.attempts.clients[client]
	if a.unreported == 0 {
		delete(r.attempts.clients, client)
		return
	}
	r.report(client, a)
	r.queue.Set(dueKey{client: client}, r.clock.Now().Add(reportEvery))
}

// report adds an event with the failures of an address. The caller holds the mutex.
func (r *Registry) report(client netip.Addr, a *attempt) {
	r.note(note{client: clientName(client), count: a.unreported, refusal: a.last})
	a.unreported = 0
}

// network returns what counts as the address of a client: an IPv6 client can choose the lower half of
// its address.
func network(client netip.Addr) netip.Addr {
	if !client.Is6() || client.IsLoopback() {
		return client
	}
	prefix, _ := client.Prefix(64) // 64 bits are valid for IPv6
	return prefix.Addr()
}

// otherClients is the account of all addresses beyond mostClients. No client has this address.
func otherClients() netip.Addr { return netip.IPv6Unspecified() }

// clientName returns an address as events show it.
func clientName(client netip.Addr) string {
	switch client {
	case netip.Addr{}:
		return "unix socket"
	case otherClients():
		return "other addresses"
	}
	return client.String()
}

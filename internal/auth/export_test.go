package auth

import "net/netip"

// Clients returns how many addresses with failed attempts are in memory.
func (r *Registry) Clients() int {
	r.attempts.mu.Lock()
	defer r.attempts.mu.Unlock()
	return len(r.attempts.clients)
}

// CloseMinute does what the queue does a minute after the last event of an address.
func (r *Registry) CloseMinute(client netip.Addr) { r.due([]dueKey{{client: client}}) }

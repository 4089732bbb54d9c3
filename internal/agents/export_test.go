package agents

// Lives returns how many agents the registry keeps in memory.
func (r *Registry) Lives() int {
	r.presence.mu.Lock()
	defer r.presence.mu.Unlock()
	return len(r.presence.lives)
}

package agents

// Lives returns how many agents are in memory.
func (p *Presence) Lives() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.lives)
}

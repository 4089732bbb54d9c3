package overview

// AwaitEnd returns when all readers have ended.
func (h *Hub) AwaitEnd() { h.running.Wait() }

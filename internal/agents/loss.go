package agents

import (
	"time"

	"brokerd/internal/store"
)

// A LossKind says what was lost. The numbers are those of the API and of the table.
type LossKind int

// What an agent can lose with its lease.
const (
	LostClaim LossKind = 1 + iota
	LostLock
	LostToken
	LostTicket // a place in the queue for a lock or token
)

// A Loss is something that an agent held when its lease ended.
type Loss struct {
	Kind     LossKind
	Name     string // the claim id, the paths separated by a space, or TYPE/SCOPE
	Revision int64  // of the fence, the ticket, or the claimed message
	At       time.Time
}

// OnFail adds what is to happen in the same transaction when an agent's lease ends: all that hangs on it goes. The hook
// returns what the agent held; Loss.At is filled in for it. By then the agent's row says that it has failed.
func (r *Registry) OnFail(hook func(tx *store.Tx, a Agent) ([]Loss, error)) {
	r.failed = append(r.failed, hook)
}

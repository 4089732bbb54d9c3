package admission

import (
	"github.com/jonboulle/clockwork"

	"brokerd/internal/broker"
	"brokerd/internal/events"
	"brokerd/internal/store"
)

// A Control decides who may send what. Its methods may be called concurrently.
type Control struct {
	store  *store.Store
	log    *events.Log
	dir    broker.Directory
	broker *broker.Broker
	disk   Disk // nil = the disk always has space
	rates  *sendRates
}

// New returns the control of the core.
func New(
	st *store.Store, log *events.Log, dir broker.Directory, core *broker.Broker, clock clockwork.Clock,
) *Control {
	c := &Control{store: st, log: log, dir: dir, broker: core}
	c.rates = newSendRates(clock, core.Stopping(), c.loadSession)
	return c
}

// SessionConfigured has the agents of a session send at its new rate. It is a hook of the configuration.
func (c *Control) SessionConfigured(tx *store.Tx, now broker.Session) {
	tx.OnCommit(func() { c.rates.change(now) })
}

// SessionClosed ends the waits of those who send in a session that is closed. It is a hook of the closing.
func (c *Control) SessionClosed(tx *store.Tx, session broker.Session) {
	tx.OnCommit(func() { c.rates.forget(session.Name) })
}

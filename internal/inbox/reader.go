package inbox

import (
	"github.com/jonboulle/clockwork"

	"brokerd/internal/broker"
	"brokerd/internal/events"
	"brokerd/internal/store"
)

// A Reader reads mailboxes and messages in the name of agents and operators. Its methods may be called concurrently.
type Reader struct {
	store  *store.Store
	log    *events.Log
	dir    broker.Directory
	broker *broker.Broker
	clock  clockwork.Clock
}

// New returns a reader on the core.
func New(st *store.Store, log *events.Log, dir broker.Directory, core *broker.Broker, clock clockwork.Clock) *Reader {
	return &Reader{store: st, log: log, dir: dir, broker: core, clock: clock}
}

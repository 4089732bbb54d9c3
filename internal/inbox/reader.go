package inbox

import (
	"time"

	"github.com/jonboulle/clockwork"

	"brokerd/internal/broker"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/mail"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// A Reader reads mailboxes and messages in the name of agents and operators. Its methods may be called concurrently.
type Reader struct {
	store  *store.Store
	log    *events.Log
	dir    *directory.Directory
	broker *broker.Broker
	gates  Gates
	clock  clockwork.Clock
}

// Gates knows what stands between agents and their work. An agent is known by its mailbox.
type Gates interface {
	// HaltAndBreaker reports whether a halt is in force for an agent, and until when its circuit breaker is open; zero
	// stands for a closed one.
	HaltAndBreaker(q store.Querier, agent int64) (halted bool, open time.Time, err error)
	// DirectivesOnly reports whether a halt or a drain allows an agent nothing but directives.
	DirectivesOnly(tx *store.Tx, agent int64) (bool, error)
}

// New returns a reader on the core.
func New(
	st *store.Store, log *events.Log, dir *directory.Directory, core *broker.Broker, gates Gates, clock clockwork.Clock,
) *Reader {
	return &Reader{store: st, log: log, dir: dir, broker: core, gates: gates, clock: clock}
}

// HasNotices reports whether an agent has unread notices.
func (r *Reader) HasNotices(q store.Querier, session int64, agent string) (bool, error) {
	mailbox, err := r.broker.Mailboxes.Find(q, session, mail.AgentRef(agent))
	if err != nil {
		return false, err
	}
	n, err := mail.CountNotices(q, mailbox, "", 1)
	return n > 0, err
}

// ReadNotices returns the oldest unread notices of an agent, at most mail.MostNotices, and marks them read.
func (r *Reader) ReadNotices(tx *store.Tx, session int64, agent directory.Agent) ([]work.UnreadNotice, error) {
	a := mail.Actor{Agent: agent, Session: directory.Session{ID: session}}
	own := mail.AgentRef(agent.Name)
	var err error
	if a.Mailbox, err = r.broker.Mailboxes.Find(tx, session, own); err != nil || a.Mailbox == 0 {
		return nil, err
	}
	return broker.ReadNotices(tx, r.log, a)
}

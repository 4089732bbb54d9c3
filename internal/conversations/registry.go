package conversations

import (
	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/backlog"
	"brokerd/internal/broker"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/router"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// A Notifier sends notices.
type Notifier interface {
	// Notify sends a notice in the transaction of the change that it reports.
	Notify(tx *store.Tx, session int64, n work.Notice) error
}

// A Registry has the questions and threads of all sessions. Its methods may be called concurrently.
type Registry struct {
	store    *store.Store
	log      *events.Log
	dir      *directory.Directory
	notifier Notifier
	broker   *broker.Broker
	router   *router.Router
	backlog  *backlog.Chores
	clock    clockwork.Clock
	zap      *zap.Logger

	calls store.Memory[int64, []*call] // that wait for a reply, by question; it belongs to the writer
}

// New returns the registry of the core's conversations. The core must know it by UseQuestions and OnDue, and the
// router by UseQuestions.
func New(
	st *store.Store, log *events.Log, dir *directory.Directory, notifier Notifier, core *broker.Broker,
	sends *router.Router, rest *backlog.Chores, clock clockwork.Clock, logger *zap.Logger,
) *Registry {
	return &Registry{
		store: st, log: log, dir: dir, notifier: notifier, broker: core, router: sends, backlog: rest,
		clock: clock, zap: logger,
	}
}

// SessionClosed ends the calls that wait for replies in a session that is closed. It is a hook of the closing.
func (r *Registry) SessionClosed(tx *store.Tx, session directory.Session) error {
	r.endCalls(tx, session.ID, "", fault.SessionClosed(session.Name))
	return nil
}

// AgentEnded ends the waiting calls of an agent that has failed or stopped. It is a hook of the agent's end.
func (r *Registry) AgentEnded(tx *store.Tx, a directory.Agent) ([]directory.Loss, error) {
	why := fault.AgentFailed(a.Name)
	if a.Stopped() {
		why = fault.AgentStopped(a.Name)
	}
	r.endCalls(tx, a.Session, a.Name, why)
	return nil, nil
}

// AgentGone ends the waiting calls of an agent that deregisters. It is a hook of the deregistration.
func (r *Registry) AgentGone(tx *store.Tx, a directory.Agent, _ string) error {
	r.endCalls(tx, a.Session, a.Name, fault.AgentGone(a.Name))
	return nil
}

package admission

import (
	"context"
	"sync"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/broker"
	"brokerd/internal/deadline"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/mail"
	"brokerd/internal/store"
)

// A Control decides who may send what. Its methods may be called concurrently.
type Control struct {
	store  *store.Store
	log    *events.Log
	dir    *directory.Directory
	broker *broker.Broker
	disk   Disk // nil = the disk always has space
	rates  *sendRates
	// Gates are the gates of the agents.
	Gates *Gates
	// vacancies are the warnings about roles and channels: see Vacancy.
	vacancies store.Cache[boxKey, string]
	resumed   []func(tx *store.Tx, session int64, agent string) error // see OnResumed

	stop   context.CancelFunc // ends the runner
	runner sync.WaitGroup
}

// New returns the control of the core. Circuit breakers allow no probes until Start.
func New(
	st *store.Store, log *events.Log, dir *directory.Directory, core *broker.Broker, clock clockwork.Clock,
	logger *zap.Logger,
) *Control {
	c := &Control{store: st, log: log, dir: dir, broker: core, Gates: &Gates{
		store: st, log: log, dir: dir, broker: core, clock: clock, zap: logger,
	}}
	c.Gates.breakers = deadline.NewCalendar(clock, c.Gates.breakersDue)
	c.rates = newSendRates(clock, core.Stopping(), c.loadSession)
	return c
}

// Start begins to wait for the times at which circuit breakers allow probes.
func (c *Control) Start(ctx context.Context) error {
	if err := c.store.Read(ctx, c.Gates.expectBreakers); err != nil {
		return err
	}
	ctx, c.stop = context.WithCancel(context.WithoutCancel(ctx))
	c.runner.Go(func() { c.Gates.breakers.Run(ctx) })
	return nil
}

// Stop ends what Start began and waits for it. Stopping twice is fine.
func (c *Control) Stop() {
	if c.stop != nil {
		c.stop()
	}
	c.runner.Wait()
}

// AgentRegistered closes the circuit breaker of an agent. It is a hook of the registration, after that of the core.
func (c *Control) AgentRegistered(tx *store.Tx, a directory.Agent) error {
	c.vacancies.Clear(tx)
	mailbox, err := c.broker.Mailboxes.Find(tx, a.Session, mail.AgentRef(a.Name))
	if err != nil || mailbox == 0 {
		return err
	}
	return c.Gates.closeBreaker(tx, a.Session, mailbox)
}

// AgentGone takes away the halt and the circuit breaker of an agent that deregisters. It is a hook of the
// deregistration.
func (c *Control) AgentGone(tx *store.Tx, a directory.Agent, _ string) error {
	c.vacancies.Clear(tx)
	mailbox, err := c.broker.Mailboxes.Find(tx, a.Session, mail.AgentRef(a.Name))
	if err != nil || mailbox == 0 {
		return err
	}
	return c.Gates.remove(tx, mailbox)
}

// MailboxesRemoved clears from memory what depends on mailboxes. It is a hook of their removal.
func (c *Control) MailboxesRemoved(tx *store.Tx) {
	c.vacancies.Clear(tx)
	c.Gates.kept.Clear(tx)
}

// SessionConfigured follows a change of a session's settings: its agents send at the new rate, and circuit breakers
// close if there are to be none. It is a hook of the configuration.
func (c *Control) SessionConfigured(tx *store.Tx, before, now directory.Session) error {
	tx.OnCommit(func() { c.rates.change(now) })
	if now.Settings.GetBreakerFailures() == 0 && before.Settings.GetBreakerFailures() != 0 {
		return c.Gates.closeBreakers(tx, now.ID)
	}
	return nil
}

// SessionClosed ends the waits of those who send in a session that is closed. It is a hook of the closing.
func (c *Control) SessionClosed(tx *store.Tx, session directory.Session) error {
	tx.OnCommit(func() { c.rates.forget(session.Name) })
	return nil
}

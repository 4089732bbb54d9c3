package broker

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/msgtype"
	"brokerd/internal/producers"
	"brokerd/internal/store"
)

// A Catalog knows the types of messages. Its method may be called concurrently.
type Catalog interface {
	// Types returns the types that a session knows: the built-in ones if there is no such session.
	Types(ctx context.Context, session string) (*msgtype.Set, error)
}

// A Broker carries messages. Its methods may be called concurrently.
type Broker struct {
	// The parts that callers use too. They do not change.
	Audiences *Audiences
	Calendar  *Calendar // when delays, times to live and the time for a response end
	Chores    *Chores
	Counters  *Counters
	Failures  *Failures
	Mailboxes *Mailboxes
	Producers *producers.Producers
	Running   *RunningClaims
	Streams   *Streams
	Traces    *Traces
	Waiters   *Waiters

	store *store.Store
	log   *events.Log
	dir   *directory.Directory
	clock clockwork.Clock
	zap   *zap.Logger

	acks       *store.Round[streamItems]
	catalog    Catalog
	admission  Admission
	directives Directives
	advisor    Advisor
	gates      Gates
	breakers   Breakers
	questions  Questions
	offers     Offers               // to models of coding agents; set before Start
	timed      []Timed              // see OnDue
	boxesGone  []func(tx *store.Tx) // see OnMailboxesRemoved

	stopping chan struct{}      // closed when streams are to end
	stop     context.CancelFunc // ends the runners
	runners  sync.WaitGroup
	once     sync.Once
}

// New returns a broker on the store. It does nothing by itself until Start.
func New(
	st *store.Store, log *events.Log, dir *directory.Directory, clock clockwork.Clock, logger *zap.Logger,
) *Broker {
	b := &Broker{
		Audiences: &Audiences{}, Mailboxes: &Mailboxes{}, Counters: &Counters{dir: dir}, Producers: &producers.Producers{},
		Traces: &Traces{clock: clock},
		store:  st, log: log, dir: dir, clock: clock, zap: logger,
		stopping: make(chan struct{}), catalog: builtinTypes{msgtype.NewSet(nil)},
	}
	b.Waiters = newWaiters(b)
	b.acks = store.NewRound(st, b.settleAcks)
	b.Streams = &Streams{broker: b, open: map[consumerKey]*consumer{}}
	b.Running = newRunningClaims(b)
	b.Calendar = newCalendar(b)
	b.Chores = newChores(b, clock)
	b.Failures = &Failures{broker: b, open: map[int64]failure{}}
	return b
}

// builtinTypes is the catalog of a broker without UseCatalog.
type builtinTypes struct{ set *msgtype.Set }

// Types implements Catalog.
func (b builtinTypes) Types(context.Context, string) (*msgtype.Set, error) { return b.set, nil }

// UseCatalog makes the broker know the types that sessions register. It must be called before the
// broker is used.
func (b *Broker) UseCatalog(c Catalog) { b.catalog = c }

// Start begins what runs by itself: the ends of claims, delays and times to live. Claims that were running when
// the broker stopped get their full time again and a grace of 30 s.
func (b *Broker) Start(ctx context.Context) error {
	err := b.store.Read(ctx, func(s *store.Snapshot) error {
		if err := b.Running.resume(s); err != nil {
			return err
		}
		return b.Chores.resume(s)
	})
	if err != nil {
		return err
	}
	ctx, b.stop = context.WithCancel(context.WithoutCancel(ctx))
	b.runners.Go(func() { b.Running.ends.Run(ctx) })
	b.runners.Go(func() { b.Calendar.run(ctx) })
	b.runners.Go(func() { b.Chores.queue.Run(ctx) })
	b.Chores.rows.Start()
	return nil
}

// Drain ends the streams: consumers are told to go away, settlements are still taken until Stop.
func (b *Broker) Drain() { b.once.Do(func() { close(b.stopping) }) }

// Stopping returns a channel that is closed when streams are to end.
func (b *Broker) Stopping() <-chan struct{} { return b.stopping }

// Stop ends the streams and the runners and waits for the runners. Stopping twice is fine.
func (b *Broker) Stop() {
	b.Drain()
	if b.stop != nil {
		b.stop()
	}
	b.Chores.rows.Stop()
	b.runners.Wait()
}

// An Actor is who acts in a transaction: the agent, its session, and its own mailbox.
type Actor struct {
	directory.Agent
	Session directory.Session
	Mailbox int64 // 0 if it was never sent anything
}

// System reports whether an operator acts without an agent's name.
func (a Actor) System() bool { return a.Name == identity.System }

// Acting finds out who calls. The mailbox stays 0 if there is none yet.
func (b *Broker) Acting(q store.Querier, c identity.Caller) (Actor, error) {
	session, err := b.dir.Session(q, c.Session)
	if err != nil {
		return Actor{}, err
	}
	agent, err := b.dir.Acting(q, session.ID, c)
	if err != nil {
		return Actor{}, err
	}
	return Actor{Agent: agent, Session: session}, nil
}

// Owner is Acting for calls that need the caller's own mailbox. Operators without an agent share one:
// see OperatorMailbox.
func (b *Broker) Owner(tx *store.Tx, c identity.Caller) (Actor, error) {
	a, err := b.Acting(tx, c)
	if err != nil {
		return a, err
	}
	a.Mailbox, err = b.Mailboxes.Open(tx, a.Session.ID, MailboxRef{AgentMailbox, a.Name})
	return a, err
}

// ActingAgent is Owner for calls that only an agent can make.
func (b *Broker) ActingAgent(tx *store.Tx, c identity.Caller) (Actor, error) {
	a, err := b.Owner(tx, c)
	if err == nil && a.System() {
		err = fault.AgentRequired()
	}
	return a, err
}

// Event returns an entry of the log with what all of this package's have in common.
func (a Actor) Event(kind string) events.Entry {
	return events.Entry{Session: a.Session.ID, Category: events.Message, Type: kind, Source: a.Name, SourceRole: a.Role}
}

// OnMailboxesRemoved adds a function that clears from memory what depends on mailboxes. It runs in the function that
// removes some. Call it before the broker is used.
func (b *Broker) OnMailboxesRemoved(hook func(tx *store.Tx)) { b.boxesGone = append(b.boxesGone, hook) }

// ForgetMailboxes clears from memory what depends on mailboxes and producers, of which the caller removes some.
func (b *Broker) ForgetMailboxes(tx *store.Tx) {
	b.Mailboxes.ids.Clear(tx)
	b.Producers.Clear(tx)
	b.Audiences.Forget(tx)
	for _, hook := range b.boxesGone {
		hook(tx)
	}
}

// backoff is how long a delivery waits after its nth failed attempt: 1 s × 2ⁿ⁻¹, at most 5 min, a
// quarter more or less so that what failed together does not come back together.
func backoff(attempts int) time.Duration {
	const most = 5 * time.Minute
	wait := most
	if attempts < 10 {
		wait = min(most, time.Second<<(attempts-1))
	}
	return min(most, wait*3/4+rand.N(wait/2+1))
}

// Rank returns the place of a delivery in its mailbox: the smallest is delivered first. It is a constant, since all
// items age alike.
func Rank(ageing time.Duration, priority int, sent time.Time) int64 {
	if ageing == 0 {
		return int64(10 - priority)
	}
	return sent.UnixNano() - int64(priority)*int64(ageing)
}

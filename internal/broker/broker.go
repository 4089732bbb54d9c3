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
	"brokerd/internal/mail"
	"brokerd/internal/store"
)

// A Broker delivers messages. Its methods may be called concurrently.
type Broker struct {
	// The parts that callers use too. They do not change.
	Audiences *mail.Audiences
	Calendar  *Calendar // when delays, times to live and the time for a response end
	Counters  *Counters
	Failures  *Failures
	Mailboxes *mail.Mailboxes
	Running   *RunningClaims
	Streams   *Streams
	Waiters   *Waiters

	store *store.Store
	log   *events.Log
	dir   *directory.Directory
	clock clockwork.Clock
	zap   *zap.Logger

	acks      *store.Round[streamItems]
	gates     Gates
	breakers  Breakers
	questions Questions
	offers    Offers               // to models of coding agents; set before Start
	tracer    Tracer               // nil = nothing is traced
	timed     []Timed              // see OnDue
	boxesGone []func(tx *store.Tx) // see OnMailboxesRemoved

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
		Audiences: &mail.Audiences{}, Mailboxes: mail.NewMailboxes(dir), Counters: &Counters{dir: dir},
		store: st, log: log, dir: dir, clock: clock, zap: logger, stopping: make(chan struct{}),
	}
	b.Waiters = newWaiters(b)
	b.acks = store.NewRound(st, b.settleAcks)
	b.Streams = &Streams{broker: b, open: map[consumerKey]*consumer{}}
	b.Running = newRunningClaims(b)
	b.Calendar = newCalendar(b)
	b.Failures = newFailures(b)
	return b
}

// Start begins what runs by itself: the ends of claims, delays and times to live. Claims that were running when
// the broker stopped get their full time again and a grace of 30 s.
func (b *Broker) Start(ctx context.Context) error {
	if err := b.store.Read(ctx, b.Running.resume); err != nil {
		return err
	}
	ctx, b.stop = context.WithCancel(context.WithoutCancel(ctx))
	b.runners.Go(func() { b.Running.ends.Run(ctx) })
	b.runners.Go(func() { b.Calendar.run(ctx) })
	b.runners.Go(func() { b.Failures.rest.Run(ctx) })
	return nil
}

// Drain ends the streams: consumers are told to go away, settlements are still taken until Stop.
func (b *Broker) Drain() { b.once.Do(func() { close(b.stopping) }) }

// isStopping reports whether streams are to end. Work in pages then ends after its page.
func (b *Broker) isStopping() bool {
	select {
	case <-b.stopping:
		return true
	default:
		return false
	}
}

// Stopping returns a channel that is closed when streams are to end.
func (b *Broker) Stopping() <-chan struct{} { return b.stopping }

// Stop ends the streams and the runners and waits for the runners. Stopping twice is fine.
func (b *Broker) Stop() {
	b.Drain()
	if b.stop != nil {
		b.stop()
	}
	b.runners.Wait()
}

// OnMailboxesRemoved adds a function that clears from memory what depends on mailboxes. It runs in the function that
// removes some. Call it before the broker is used.
func (b *Broker) OnMailboxesRemoved(hook func(tx *store.Tx)) { b.boxesGone = append(b.boxesGone, hook) }

// ForgetMailboxes clears from memory what depends on mailboxes, of which the caller removes some.
func (b *Broker) ForgetMailboxes(tx *store.Tx) {
	b.Mailboxes.Clear(tx)
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

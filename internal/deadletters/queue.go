package deadletters

import (
	"context"
	"sync"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/broker"
	"brokerd/internal/deadline"
	"brokerd/internal/directory"
	"brokerd/internal/router"
	"brokerd/internal/store"
)

// A Queue changes dead letters and waiting deliveries in the name of operators and agents, and makes dead letters of
// the mail of agents that deregister. Its methods may be called concurrently.
type Queue struct {
	store  *store.Store
	dir    *directory.Directory
	broker *broker.Broker
	router *router.Router
	clock  clockwork.Clock
	zap    *zap.Logger

	departures *deadline.Queue[int64] // mailboxes of agents that have deregistered, with mail that is left
	stopping   chan struct{}          // closed when departures stop after their page
	drain      sync.Once
	stop       context.CancelFunc // ends the runner
	runner     sync.WaitGroup
}

// New returns a queue on the core. It does nothing by itself until Start.
func New(
	st *store.Store, dir *directory.Directory, core *broker.Broker, sends *router.Router,
	clock clockwork.Clock, logger *zap.Logger,
) *Queue {
	q := &Queue{store: st, dir: dir, broker: core, router: sends, clock: clock, zap: logger, stopping: make(chan struct{})}
	q.departures = deadline.New(clock, q.departuresDue)
	return q
}

// Start resumes the departures that had not ended when the broker stopped.
func (q *Queue) Start(ctx context.Context) error {
	var mailboxes []int64
	err := q.store.Read(ctx, func(s *store.Snapshot) (err error) {
		mailboxes, err = store.Collect(s.Query(selectDepartures), readID)
		return err
	})
	if err != nil {
		return err
	}
	for _, mailbox := range mailboxes {
		q.departures.Set(mailbox, q.clock.Now())
	}
	ctx, q.stop = context.WithCancel(context.WithoutCancel(ctx))
	q.runner.Go(func() { q.departures.Run(ctx) })
	return nil
}

// Drain ends the departures after their page; Start resumes them.
func (q *Queue) Drain() { q.drain.Do(func() { close(q.stopping) }) }

// Stop ends the runner and waits for it. Stopping twice is fine.
func (q *Queue) Stop() {
	q.Drain()
	if q.stop != nil {
		q.stop()
	}
	q.runner.Wait()
}

func (q *Queue) isStopping() bool {
	select {
	case <-q.stopping:
		return true
	default:
		return false
	}
}

func readID(r *store.Rows) (id int64, err error) { return id, r.Scan(&id) }

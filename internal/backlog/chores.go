package backlog

import (
	"context"
	"fmt"
	"sync"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/broker"
	"brokerd/internal/deadline"
	"brokerd/internal/directory"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// The kinds of chores that have a row in work_backlog.
const (
	// closeChore cancels what is unfinished in a closed session. Text is the step, and After the mailbox
	// at which it continues.
	closeChore = "close"
	// withdrawChore is the rest of the withdrawal of the messages about Item: see Moot. Name is the agent, Text the type.
	withdrawChore = "withdraw"

	// NoticeCopies and EventCopies are the rest of the copies of the message Item, which reports a change. Text is the
	// last agent that has its copy. Name is the role of a notice, or the agent that caused an event and receives no copy.
	NoticeCopies = "notice"
	EventCopies  = "event"
)

// Chores does what is left of changes that are too large for one function of the writer. Its methods may be called
// concurrently.
type Chores struct {
	core  *broker.Broker
	store *store.Store
	dir   *directory.Directory
	clock clockwork.Clock
	log   *zap.Logger

	pages map[string]Page
	rows  *work.Backlog          // the chores that have a row in work_backlog
	ranks *deadline.Queue[int64] // sessions whose ageing has changed

	ctx     context.Context    // ends with Stop
	stop    context.CancelFunc // ends ctx
	runners sync.WaitGroup
}

// A Page does the next page of a chore, and reports whether there may be more.
type Page func(tx *store.Tx, c *work.Chore) (more bool, err error)

// New returns a backlog that does nothing by itself until Start.
func New(
	st *store.Store, dir *directory.Directory, core *broker.Broker, clock clockwork.Clock, log *zap.Logger,
) *Chores {
	q := &Chores{core: core, store: st, dir: dir, clock: clock, log: log}
	q.ctx, q.stop = context.WithCancel(context.Background())
	q.pages = map[string]Page{closeChore: q.closeFurther, withdrawChore: q.withdrawFurther}
	q.ranks = deadline.New(clock, q.rerankAll)
	q.rows = work.NewBacklog(st, "broker", clock, log, func(tx *store.Tx, c *work.Chore) (bool, error) {
		page, ok := q.pages[c.Kind]
		if !ok {
			return false, fmt.Errorf("no page for chores of kind %q", c.Kind)
		}
		return page(tx, c)
	})
	return q
}

// OnPage sets the function that does the pages of a kind of chores. Call it before Start.
func (q *Chores) OnPage(kind string, page Page) { q.pages[kind] = page }

// Start resumes the chores that were not finished when the broker stopped.
func (q *Chores) Start(ctx context.Context) error {
	if err := q.store.Read(ctx, q.resumeRanks); err != nil {
		return err
	}
	q.runners.Go(func() { q.ranks.Run(q.ctx) })
	return q.rows.Start(ctx)
}

// Stop ends the backlog after the page that it does. Stopping twice is fine.
func (q *Chores) Stop() {
	q.stop()
	q.rows.Stop()
	q.runners.Wait()
}

// Add leaves a whole chore to the backlog once the transaction is committed.
func (q *Chores) Add(tx *store.Tx, c work.Chore) { q.rows.Add(tx, c) }

// AwaitClosed cancels what is still unfinished in a closed session, and returns when that is done.
func (q *Chores) AwaitClosed(ctx context.Context, session int64) error {
	return q.rows.FinishSession(ctx, session)
}

package work

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/deadline"
	"brokerd/internal/fault"
	"brokerd/internal/store"
)

// longestRetry is how long a Backlog or a Calendar waits at most between two tries of an item that
// fails.
const longestRetry = 10 * time.Minute

// longestRest is how long a Backlog rests at most after a page. A page that takes longer waits for the
// disk, or for a process that was suspended.
const longestRest = time.Second

// A Chore is the rest of a change that has too many rows for one function of the writer. The feature
// gives the fields their meaning.
type Chore struct {
	Kind    string // chosen by the feature
	Session int64
	Name    string // such as the agent that the chore is about; empty = none
	Item    int64  // such as the key of the item that the chore is about; 0 = none
	Bound   int64  // such as a revision: rows that are newer do not belong to the change

	// A page may change these; the next page gets them as the last one left them.
	After int64  // such as the key of the last row of the last page
	Text  string // such as a reason, or JSON

	id int64 // the revision under which it was added
}

// A Backlog does the chores of one feature, one page at a time. Each page is one function of the
// writer in the drain lane, so other callers take turns between pages. A page changes about 200
// rows and reads at most 20,000. A chore is a row until its last page is committed: the backlog
// resumes it after a restart.
//
//	change ──► Do: the first page, in its transaction ──more──► row ──► pages ──► done
//	       └─► Add ─────────────────────────────────────────────┘
//
// A page is followed by a rest that is as long as the page was, so that the calls that have come
// meanwhile need not wait for the next page too. Chores take turns: each does one page, in the order in
// which they were added. A chore that fails is logged and tried again later, after 1 s up to 10 min,
// and stops no other chore. Methods may be called concurrently.
type Backlog struct {
	store   *store.Store
	feature string
	clock   clockwork.Clock
	log     *zap.Logger
	page    func(tx *store.Tx, c *Chore) (more bool, err error)
	queue   *deadline.Queue[int64] // of the ids of chores

	ctx    context.Context // ends when the backlog stops
	stop   context.CancelFunc
	runner sync.WaitGroup // of Start

	failed map[int64]time.Duration // the last pause, of chores that fail; of the runner alone
}

// NewBacklog returns a backlog of a feature, which does nothing before Start. page does the next
// page of a chore and reports whether there may be more. It runs in the writer, so it can run twice
// for one commit. It must find by itself what is left to do: rows may have changed since the last
// page, and the chore's session may be closed or deleted.
func NewBacklog(
	s *store.Store, feature string, clock clockwork.Clock, log *zap.Logger, page func(tx *store.Tx, c *Chore) (more bool, err error),
) *Backlog {
	b := &Backlog{store: s, feature: feature, clock: clock, log: log, page: page, failed: map[int64]time.Duration{}}
	b.ctx, b.stop = context.WithCancel(context.Background())
	b.queue = deadline.NewCalendar(clock, b.due)
	return b
}

// Do does the first page of a chore in the transaction of the change, and leaves the rest to the
// backlog. It reports whether there is a rest.
func (b *Backlog) Do(tx *store.Tx, c Chore) (more bool, err error) {
	if more, err = b.page(tx, &c); err != nil || !more {
		return false, err
	}
	b.Add(tx, c)
	return true, nil
}

// Add leaves a whole chore to the backlog once the transaction is committed.
func (b *Backlog) Add(tx *store.Tx, c Chore) {
	c.id = tx.NextRevision()
	tx.Exec(insertChore, c.id, b.feature, c.Kind, c.Session, c.Name, c.Item, c.Bound, c.After, c.Text)
	tx.OnCommit(func() { b.queue.Set(c.id, b.clock.Now()) })
}

// Drop removes the unfinished chores of a kind about an item.
func (b *Backlog) Drop(tx *store.Tx, kind string, item int64) {
	tx.Exec(deleteChoresOf, b.feature, item, kind)
}

// Pending reports whether a chore of a kind about a name is unfinished, and the highest bound of such
// chores.
func (b *Backlog) Pending(
	q store.Querier, kind string, session int64, name string,
) (bound int64, pending bool, err error) {
	err = q.QueryRow(selectBound, b.feature, session, name, kind).Scan(&bound)
	if errors.Is(err, store.ErrNoRows) {
		return 0, false, nil
	}
	return bound, err == nil, err
}

// Finish does all pages of the chores of a kind about a name, between other callers' functions, and
// returns when none is left. Errors: those of the pages.
func (b *Backlog) Finish(ctx context.Context, kind string, session int64, name string) error {
	return b.finish(ctx, selectChoreOf, b.feature, session, name, kind)
}

// FinishSession does all pages of all chores of a session, between other callers' functions, and
// returns when none is left. Errors: those of the pages.
func (b *Backlog) FinishSession(ctx context.Context, session int64) error {
	return b.finish(ctx, selectChoreOfSession, b.feature, session)
}

// finish does all pages of the chores that a query finds.
func (b *Backlog) finish(ctx context.Context, query string, args ...any) error {
	for {
		var id int64
		err := b.store.Read(ctx, func(snap *store.Snapshot) error { return snap.QueryRow(query, args...).Scan(&id) })
		if errors.Is(err, store.ErrNoRows) {
			return nil
		}
		for more := err == nil; more; {
			more, err = b.step(ctx, id)
		}
		if err != nil {
			return err
		}
	}
}

// Start resumes the chores that were unfinished when the broker stopped, and waits for others. Errors: those of the
// store.
func (b *Backlog) Start(ctx context.Context) error {
	var all []int64
	err := b.store.Read(ctx, func(snap *store.Snapshot) (err error) {
		all, err = store.Collect(snap.Query(selectChores, b.feature), func(r *store.Rows) (id int64, err error) {
			return id, r.Scan(&id)
		})
		return err
	})
	if err != nil {
		return fmt.Errorf("read the chores of %s: %w", b.feature, err)
	}
	for _, id := range all {
		b.queue.Set(id, b.clock.Now())
	}
	b.runner.Go(func() { b.queue.Run(b.ctx) })
	return nil
}

// Stop ends the backlog after the page at hand. It may be called more than once, and without Start.
func (b *Backlog) Stop() {
	b.stop()
	b.runner.Wait()
}

// due does one page of each chore, unless the backlog stops: Start resumes the others.
func (b *Backlog) due(ids []int64) {
	for _, id := range ids {
		if b.ctx.Err() != nil {
			return
		}
		more, err := b.step(context.Background(), id)
		switch {
		case err != nil:
			pause := retryAfter
			if fault.KindOf(err) != fault.Unavailable { // then the chore itself fails, not the disk
				pause = min(max(2*b.failed[id], retryAfter), longestRetry)
				b.failed[id] = pause
			}
			b.queue.Set(id, b.clock.Now().Add(pause))
			b.log.Warn("a page of the backlog failed; the broker tries again", zap.Int64("chore", id),
				zap.Duration("in", pause), zap.Error(err))
		case more:
			b.queue.Set(id, b.clock.Now())
		default:
			delete(b.failed, id)
		}
	}
}

// step does the next page of a chore, if it is unfinished, and rests. It reports whether there may be
// more.
func (b *Backlog) step(ctx context.Context, id int64) (more bool, err error) {
	began := time.Now() //nolint:forbidigo // of the rest, which a caller sees only as speed
	more, err = b.next(ctx, id)
	rest := time.NewTimer(min(time.Since(began), longestRest)) //nolint:forbidigo // see above
	defer rest.Stop()
	select {
	case <-rest.C:
	case <-ctx.Done():
	case <-b.ctx.Done():
	}
	return more, err
}

// next does the next page of a chore, if it is unfinished, and reports whether there may be more.
func (b *Backlog) next(ctx context.Context, id int64) (more bool, err error) {
	err = b.store.Drain(ctx, func(tx *store.Tx) error {
		more = false
		c := Chore{id: id}
		err := tx.QueryRow(selectChore, id).Scan(&c.Kind, &c.Session, &c.Name, &c.Item, &c.Bound, &c.After, &c.Text)
		if errors.Is(err, store.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		if more, err = b.page(tx, &c); err != nil {
			return err
		}
		if more {
			tx.Exec(updateChore, c.After, c.Text, id)
		} else {
			tx.Exec(deleteChore, id)
		}
		return nil
	})
	return more && err == nil, err
}

package work

import (
	"context"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/fault"
	"brokerd/internal/store"
)

// mostDue is how many items one function of an item calendar changes.
const mostDue = 100

// An Entry is an item with the time at which it is due.
type Entry[K comparable] struct {
	Key K
	At  time.Time
}

// NewItemCalendar returns a calendar of items: it does nothing before Start. list returns the items
// with the earliest times, due or not, earliest first, at most limit. do makes the change of one item
// if it is still due at tx.Now, and nothing otherwise. Both run in the writer, and do can run twice
// for one commit.
//
// One function changes up to 100 items, and about 200 rows. If an item fails, for example because its row is damaged,
// the calendar changes each item in a separate function. It logs the item that fails and tries it
// again later, after 1 s up to 10 min; the item delays no other.
func NewItemCalendar[K comparable](s *store.Store, clock clockwork.Clock, log *zap.Logger,
	list func(q store.Querier, limit int) ([]Entry[K], error), do func(tx *store.Tx, key K) error) *Calendar {
	i := &items[K]{store: s, log: log, list: list, do: do, failing: map[K]retry{}}
	return newCalendar(clock, log, i.run)
}

// items are the items of one calendar. Its goroutine alone uses them.
type items[K comparable] struct {
	store   *store.Store
	log     *zap.Logger
	list    func(q store.Querier, limit int) ([]Entry[K], error)
	do      func(tx *store.Tx, key K) error
	failing map[K]retry
}

// A retry is the next try of an item that fails.
type retry struct {
	at    time.Time
	pause time.Duration // before it
}

// run changes the items that are due, and returns when the next one is.
func (i *items[K]) run() (next time.Time, err error) {
	ctx := context.Background()
	var due, again []K
	err = i.store.Write(ctx, func(tx *store.Tx) (err error) {
		if due, again, next, err = i.plan(tx); err != nil {
			return err
		}
		page := NewPage(tx)
		for _, key := range due {
			if page.Full() {
				next = tx.Now() // the next function changes the others
				break
			}
			if err = i.do(tx, key); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil && (len(due) == 0 || fault.KindOf(err) == fault.Unavailable) {
		return time.Time{}, err
	}
	if err == nil {
		due = nil // they are done
	}
	for _, key := range append(due, again...) {
		if err := i.doAlone(ctx, key); err != nil {
			return time.Time{}, err
		}
	}
	if len(due)+len(again) > 0 {
		return time.Unix(0, 1), nil // plan again at once
	}
	return next, nil
}

// plan returns the items that are due and do not fail, those that fail and are to be tried again, and
// when the next item is due.
func (i *items[K]) plan(tx *store.Tx) (due, again []K, next time.Time, err error) {
	limit := mostDue + len(i.failing) + 1
	entries, err := i.list(tx, limit)
	if err != nil {
		return nil, nil, next, err
	}
	for _, e := range entries {
		if _, fails := i.failing[e.Key]; fails {
			continue
		}
		if e.At.After(tx.Now()) || len(due) == mostDue {
			next = e.At
			break
		}
		due = append(due, e.Key)
	}
	for key, r := range i.failing {
		switch {
		case !r.at.After(tx.Now()):
			again = append(again, key)
		case next.IsZero() || r.at.Before(next):
			next = r.at
		}
	}
	return due, again, next, nil
}

// doAlone changes one item in a separate function of the writer. The error is that of the store; one
// of the item is logged.
func (i *items[K]) doAlone(ctx context.Context, key K) error {
	var now time.Time
	err := i.store.Write(ctx, func(tx *store.Tx) error {
		now = tx.Now()
		return i.do(tx, key)
	})
	if fault.KindOf(err) == fault.Unavailable {
		return err
	}
	if err == nil {
		delete(i.failing, key)
		return nil
	}
	pause := min(max(2*i.failing[key].pause, retryAfter), longestRetry)
	i.failing[key] = retry{now.Add(pause), pause}
	i.log.Error("an item that is due could not be changed; the broker tries it again", zap.Any("item", key),
		zap.Duration("in", pause), zap.Error(err))
	return nil
}

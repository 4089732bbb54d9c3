package retention

import (
	"context"
	"time"

	"brokerd/internal/store"
)

const (
	// Free pages are kept for what comes, unless they are more than this, and more than a quarter.
	spare = 1024
	// What is free is given back if it was not needed for so long: a file that grows again at once would only cost.
	unused = time.Minute
)

// A surplus is how many pages were free that need not be, and since when: the fewest that were meanwhile.
type surplus struct {
	pages int64
	since time.Time
}

// look notes how the file is filled, and returns how many pages to give back now, or when to look again.
func (s *surplus) look(now time.Time, space store.Space) (pages int64, again time.Time) {
	over := space.Free - max(spare, space.Pages/4)
	if over <= 0 {
		*s = surplus{}
		return 0, time.Time{}
	}
	if s.since.IsZero() {
		*s = surplus{over, now}
	}
	s.pages = min(s.pages, over)
	if again = s.since.Add(unused); again.After(now) {
		return 0, again
	}
	pages = s.pages
	*s = surplus{}
	return pages, time.Time{}
}

// vacuum gives free pages back to the file system.
func (k *Keeper) vacuum(ctx context.Context) error {
	var space store.Space
	err := k.Store.Read(ctx, func(snap *store.Snapshot) (err error) {
		space, err = store.SpaceOf(snap)
		return err
	})
	if err != nil {
		return err
	}
	pages, again := k.free.look(k.Clock.Now(), space)
	if !again.IsZero() {
		k.wakeBy(again)
	}
	for left := space.Pages - pages; pages > 0 && space.Pages > left && space.Free > spare; {
		began := k.Clock.Now()
		err := k.Store.Write(ctx, func(tx *store.Tx) (err error) {
			space, err = tx.Vacuum()
			return err
		})
		if err != nil {
			return err
		}
		if err := k.rest(ctx, k.Clock.Since(began), 1); err != nil {
			return err
		}
	}
	return nil
}

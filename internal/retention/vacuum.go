package retention

import (
	"context"
	"time"

	"brokerd/internal/store"
)

const (
	// So many free pages are kept for new data, or a quarter of the file if that is more.
	spare = 1024
	// Free pages are returned to the file system if they were not needed for so long: a file that shrinks and grows
	// again costs writes.
	unused = time.Minute
)

// A surplus is the number of free pages above those that are kept, the smallest since a time.
type surplus struct {
	pages int64
	since time.Time
}

// look records the free pages of the file. It returns how many pages to return to the file system now, or when to look
// again.
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

// vacuum returns free pages to the file system.
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
		if err := k.pauseFor(ctx, began, 1); err != nil {
			return err
		}
	}
	return nil
}

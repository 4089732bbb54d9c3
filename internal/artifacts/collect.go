package artifacts

import (
	"context"
	"errors"
	"os"

	"go.uber.org/zap"

	"brokerd/internal/store"
)

// drop notes, after the commit, that a session has lost a content.
func (r *Repository) drop(tx *store.Tx, sums []string) {
	if len(sums) == 0 {
		return
	}
	tx.OnCommit(func() {
		r.mu.Lock()
		r.dropped = append(r.dropped, sums...)
		r.mu.Unlock()
		r.awaken()
	})
}

// runCollector removes the files of contents that no session has any more, until ctx ends.
func (r *Repository) runCollector(ctx context.Context) {
	for {
		select {
		case <-r.wake:
			r.collect()
		case <-ctx.Done():
			return
		}
	}
}

// Keep keeps the files of all contents until release is called, even if no session has a content any
// more. It waits for a removal under way. The collector removes the files after the release.
func (r *Repository) Keep() (release func()) {
	r.publishing.RLock()
	defer r.publishing.RUnlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kept++
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.kept--
		r.awaken()
	}
}

// awaken lets the collector run again.
func (r *Repository) awaken() {
	select {
	case r.wake <- struct{}{}:
	default: // the collector has a wake-up already
	}
}

// collect removes the files of the dropped contents, unless a session has one of them.
func (r *Repository) collect() {
	r.mu.Lock()
	sums := r.dropped
	r.dropped = nil
	r.mu.Unlock()
	for len(sums) > 0 {
		page := sums[:min(len(sums), pageFiles)]
		sums = sums[len(page):]
		if err := r.removeUnused(page); err != nil {
			r.Logger.Warn("files of artifacts could not be removed; the next start removes them", zap.Error(err))
		}
	}
}

// removeUnused removes the files of the contents that no session has. While Keep is in force, it puts
// them off.
func (r *Repository) removeUnused(sums []string) error {
	r.publishing.Lock()
	defer r.publishing.Unlock()
	if r.putOff(sums) {
		return nil
	}
	var unused []string
	err := r.Store.Read(context.Background(), func(snap *store.Snapshot) error {
		unused = nil
		for _, sum := range sums {
			var used int
			err := snap.QueryRow(contentInUse, sum).Scan(&used)
			if errors.Is(err, store.ErrNoRows) {
				unused = append(unused, sum)
			} else if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	var errs []error
	for _, sum := range unused {
		errs = append(errs, r.folder.remove(sum))
	}
	return errors.Join(errs...)
}

func (r *Repository) putOff(sums []string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kept > 0 {
		r.dropped = append(r.dropped, sums...)
	}
	return r.kept > 0
}

// EachContent passes every content that a session has, with its size in bytes, to a function.
func (r *Repository) EachContent(q store.Querier, fn func(sum string, size int64)) error {
	return eachContent(q, fn)
}

// OpenContent opens the file of a content.
func (r *Repository) OpenContent(sum string) (*os.File, error) { return r.folder.open(sum) }

// sweep removes temporary files, and files of contents that no session has.
func (r *Repository) sweep(ctx context.Context) error {
	var unknown []string
	err := r.folder.each(func(contents, temporary []string) error {
		for _, name := range temporary {
			if err := r.folder.remove(name); err != nil {
				return err
			}
		}
		unknown = append(unknown, contents...)
		return ctx.Err()
	})
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.dropped = append(r.dropped, unknown...)
	r.mu.Unlock()
	r.collect()
	return nil
}

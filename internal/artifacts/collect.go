package artifacts

import (
	"context"
	"errors"

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
		select {
		case r.wake <- struct{}{}:
		default: // the collector has a wake-up already
		}
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

// removeUnused removes the files of the contents that no session has.
func (r *Repository) removeUnused(sums []string) error {
	r.publishing.Lock()
	defer r.publishing.Unlock()
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

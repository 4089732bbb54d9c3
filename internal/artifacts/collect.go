package artifacts

import (
	"context"
	"errors"
	"io"

	"go.uber.org/zap"

	"brokerd/internal/store"
)

// drop notes, after the commit, that a session has lost a content.
func (s *Service) drop(tx *store.Tx, sums []string) {
	if len(sums) == 0 {
		return
	}
	tx.OnCommit(func() {
		s.mu.Lock()
		s.dropped = append(s.dropped, sums...)
		s.mu.Unlock()
		s.awaken()
	})
}

// runCollector removes the files of contents that no session has any more, until ctx ends.
func (s *Service) runCollector(ctx context.Context) {
	for {
		select {
		case <-s.wake:
			s.collect()
		case <-ctx.Done():
			return
		}
	}
}

// Keep keeps the files of all contents until release is called, even if no session has a content any
// more. It waits for a removal under way. The collector removes the files after the release.
func (s *Service) Keep() (release func()) {
	s.publishing.RLock()
	defer s.publishing.RUnlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.kept--
		s.awaken()
	}
}

// awaken lets the collector run again.
func (s *Service) awaken() {
	select {
	case s.wake <- struct{}{}:
	default: // the collector has a wake-up already
	}
}

// collect removes the files of the dropped contents, unless a session has one of them.
func (s *Service) collect() {
	s.mu.Lock()
	sums := s.dropped
	s.dropped = nil
	s.mu.Unlock()
	for len(sums) > 0 {
		page := sums[:min(len(sums), pageFiles)]
		sums = sums[len(page):]
		if err := s.removeUnused(page); err != nil {
			s.log.Warn("files of artifacts could not be removed; the next start removes them", zap.Error(err))
		}
	}
}

// removeUnused removes the files of the contents that no session has. While Keep is in force, it puts
// them off.
func (s *Service) removeUnused(sums []string) error {
	s.publishing.Lock()
	defer s.publishing.Unlock()
	if s.putOff(sums) {
		return nil
	}
	var unused []string
	err := s.Store.Read(context.Background(), func(snap *store.Snapshot) error {
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
		errs = append(errs, s.folder.remove(sum))
	}
	return errors.Join(errs...)
}

func (s *Service) putOff(sums []string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kept > 0 {
		s.dropped = append(s.dropped, sums...)
	}
	return s.kept > 0
}

// OpenContent opens the file of a content.
func (s *Service) OpenContent(sum string) (io.ReadCloser, error) { return s.folder.open(sum) }

// sweep removes temporary files, and files of contents that no session has.
func (s *Service) sweep(ctx context.Context) error {
	var unknown []string
	err := s.folder.each(func(contents, temporary []string) error {
		for _, name := range temporary {
			if err := s.folder.remove(name); err != nil {
				return err
			}
		}
		unknown = append(unknown, contents...)
		return ctx.Err()
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.dropped = append(s.dropped, unknown...)
	s.mu.Unlock()
	s.collect()
	return nil
}

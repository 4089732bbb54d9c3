package artifacts

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"

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

// runCollector removes contents that no session has any more, until ctx ends.
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

// Keep keeps all contents until release is called, even if no session has one any more. It waits for a removal
// under way. The collector removes the contents after the release.
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

// collect removes the dropped contents, unless a session has one of them.
func (s *Service) collect() {
	s.mu.Lock()
	sums := s.dropped
	s.dropped = nil
	s.mu.Unlock()
	for len(sums) > 0 {
		page := sums[:min(len(sums), pageNames)]
		sums = sums[len(page):]
		if err := s.removeUnused(page); err != nil {
			s.log.Warn("contents of artifacts could not be removed; the next start removes them", zap.Error(err))
		}
	}
}

// removeUnused removes the contents that no session has. While Keep is in force, it puts them off, and one that is
// being read while it is.
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
		s.setInUse(sum, true) // beforehand, since its reader may end meanwhile
		removed, err := s.contents.Remove(context.Background(), sum)
		if removed || err != nil {
			s.setInUse(sum, false)
		}
		errs = append(errs, err)
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

// setInUse notes whether a content is to be removed when its reader ends.
func (s *Service) setInUse(sum string, yes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if yes {
		s.inUse[sum] = true
	} else {
		delete(s.inUse, sum)
	}
}

// A reading is a content that is being read.
type reading struct {
	Content
	service *Service
}

// Close closes the content, and has the collector try again to remove contents that were being read.
func (r reading) Close() error {
	err := r.Content.Close()
	s := r.service
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.inUse) > 0 {
		s.dropped = slices.AppendSeq(s.dropped, maps.Keys(s.inUse))
		clear(s.inUse)
		s.awaken()
	}
	return err
}

// open opens a content. Errors: fs.ErrNotExist.
func (s *Service) open(ctx context.Context, sum string) (Content, error) {
	content, err := s.contents.Open(ctx, sum)
	if err != nil {
		return nil, err
	}
	return reading{content, s}, nil
}

// OpenContent opens a content for a backup.
func (s *Service) OpenContent(sum string) (io.ReadCloser, error) {
	content, err := s.open(context.Background(), sum)
	if err != nil {
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{io.NewSectionReader(content, 0, content.Size()), content}, nil
}

// sweep removes what uploads have left, and contents that no session has.
func (s *Service) sweep(ctx context.Context) error {
	var unknown []string
	err := s.contents.Each(ctx, func(contents, drafts []string) error {
		for _, name := range drafts {
			if _, err := s.contents.Remove(ctx, name); err != nil {
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

package store

// FailNextCommit lets the next commit that changes something fail with the given error, after the
// functions of its batch have run. Nothing else makes a real disk fail at that moment.
func FailNextCommit(s *Store, err error) {
	done := make(chan struct{})
	s.Submit(LaneDrain, func(*Tx) error {
		w := s.writer
		commit := w.commit
		w.commit = func() error {
			if !w.batch.dirty {
				return commit()
			}
			w.commit = commit
			return err
		}
		return nil
	}, func(error) { close(done) })
	<-done
}

package store

import "time"

// Stats are figures of the store since it was opened.
type Stats struct {
	Revision          int64         // of the last commit
	Waiting           int           // functions that wait for the writer
	Batches           uint64        // transactions, those that changed nothing included
	Commits           uint64        // transactions that changed something, each with one sync in SyncFull
	Lost              uint64        // transactions that could not be committed
	Functions         uint64        // that were run, those at the end of a batch not counted
	Refused           uint64        // functions that returned an error
	Rows              uint64        // changed
	Reads             uint64        // snapshots that were read
	LargestBatch      int           // most functions in one transaction
	CommitTime        time.Duration // spent in COMMIT, syncs included
	RecentCommit      time.Duration // average of about the last 8 in COMMIT
	LastCommit        time.Time
	LastLost          time.Time // when a transaction could last not be committed
	SlowestCommit     time.Duration
	BatchTime         time.Duration // spent in transactions, COMMIT included
	Checkpoints       uint64        // times the log was copied back
	CheckpointTime    time.Duration // for which the writer stood still because of them
	SlowestCheckpoint time.Duration
	LogBytes          int64 // in the write-ahead log, as of the last commit
	LeftOut           int64 // bytes of commits in the log that SQLite left out at Open, behind a damaged place
}

// A Commit is one transaction that has changed something.
type Commit struct {
	Took      time.Duration // COMMIT, with its sync in SyncFull
	Functions int           // that were run for callers
	Rows      int           // changed
}

// Work is what one function of the writer has done.
type Work struct {
	Statements int  // that may change something; a savepoint counts as two
	Reads      int  // queries
	OnCommits  int  // functions that it has registered with OnCommit
	Round      bool // it is a round or an ending, which no caller has queued
}

// Stats returns the figures of the store. It is cheap and may be called at any time.
func (s *Store) Stats() Stats {
	w := s.writer
	w.mu.Lock()
	stats := w.stats
	stats.Waiting = w.lanes[LaneFill].tasks + w.lanes[LaneDrain].tasks
	w.mu.Unlock()
	stats.Revision = w.revision.Load()
	stats.LeftOut, stats.Reads = s.leftOut, s.reads.Load()
	return stats
}

// count adds a batch to the figures.
func (w *writer) count(commit time.Duration) {
	b := &w.batch
	took := w.clock.Since(b.started)
	refused := 0
	for _, t := range b.tasks {
		if t.err != nil {
			refused++
		}
	}
	if w.committed != nil && b.lost == nil && b.dirty {
		w.guard(func() { w.committed(Commit{commit, len(b.tasks), b.rows}) })
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s := &w.stats
	s.Batches++
	s.Functions += uint64(len(b.tasks))
	s.Refused += uint64(refused)
	s.LargestBatch = max(s.LargestBatch, len(b.tasks))
	s.BatchTime += took
	switch {
	case b.lost != nil:
		s.Lost++
		s.LastLost = w.clock.Now()
	case b.dirty:
		s.Commits++
		s.Rows += uint64(b.rows)
		s.CommitTime += commit
		s.LastCommit = w.clock.Now()
		s.RecentCommit += (commit - s.RecentCommit) / time.Duration(min(s.Commits, 8))
		s.SlowestCommit = max(s.SlowestCommit, commit)
	}
}

// countCheckpoint adds a pause of the writer to the figures.
func (w *writer) countCheckpoint(took time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stats.Checkpoints++
	w.stats.CheckpointTime += took
	w.stats.SlowestCheckpoint = max(w.stats.SlowestCheckpoint, took)
}

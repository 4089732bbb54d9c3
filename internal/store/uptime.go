package store

import (
	"time"

	"go.uber.org/zap"
)

// Uptime returns for how long brokers have run on this database, all runs together. It follows the
// monotonic clock, so changes of the wall clock do not affect it. After a crash, the time since the
// last commit is missing.
func (tx *Tx) Uptime() time.Duration { return tx.writer.uptime() }

func (w *writer) uptime() time.Duration { return w.uptimeBefore + w.clock.Since(w.opened) }

// A LastRun is the end of the run before this one.
type LastRun struct {
	Ended time.Time // time of its last commit; zero if no run has committed a change
	Clean bool      // the store was closed; false after a crash, a kill or a power loss
}

// LastRun returns how the last run on this database ended.
func (s *Store) LastRun() LastRun { return s.last }

// markStop notes in the database that the store was closed cleanly. Without the mark, as on a full
// disk, the next Open checks the database for damage.
func (w *writer) markStop() {
	err := transact(w.conn, func() error {
		return w.conn.run(`UPDATE meta SET uptime = ?, stopped = 1 WHERE id = 1`, w.uptime())
	})
	if err != nil {
		w.log.Warn("the clean stop could not be noted", zap.Error(err))
	}
}

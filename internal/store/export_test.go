package store

import (
	"context"

	"github.com/mattn/go-sqlite3"
)

// CheckAtOnce sets the size in bytes up to which a database is checked in one statement.
func CheckAtOnce(o *Options, bytes int64) { o.checkAtOnce = bytes }

// GrowLog sets the bytes by which the log may grow during a backup of a smaller database.
func GrowLog(o *Options, bytes int64) { o.growLog = bytes }

// InGo has the driver run the statements of Exec.
func InGo(o *Options) { o.inGo = true }

// RunsInC reports whether the statements of Exec are run in C.
func RunsInC(s *Store) bool { return s.writer.conn.sqlite.native != 0 }

// LimitLength sets the most bytes that SQLite takes in one value.
func LimitLength(tx *Tx, bytes int) {
	tx.writer.conn.sqlite.raw.SetLimit(sqlite3.SQLITE_LIMIT_LENGTH, bytes)
}

// Packed returns how many bytes of arguments wait with the statements of Exec, and for how many there is memory.
func Packed(tx *Tx) (length, capacity int) {
	d := &tx.writer.batch.deferred
	return len(d.packed), cap(d.packed)
}

// Referenced returns how many large arguments the writer refers to.
func Referenced(tx *Tx) (n int) {
	large := tx.writer.batch.deferred.large
	for _, l := range large[:cap(large)] {
		if l.bytes != nil {
			n++
		}
	}
	return n
}

// AwaitCheck waits for the end of CheckBehind.
func AwaitCheck(s *Store) { s.checks.Wait() }

// FailNextCommit lets the next commit that changes something fail with the given error, after the
// functions of its batch have run. Nothing else makes a real disk fail at that moment.
func FailNextCommit(s *Store, err error) {
	done := make(chan struct{})
	s.Submit(context.Background(), LaneDrain, 0, func(*Tx) error {
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

// BusyTimeoutAfterFailedCheckpoint lets the writer's step of a checkpoint fail, as it does within a
// transaction, and returns the busy timeout of the writer's connection after it.
func BusyTimeoutAfterFailedCheckpoint(s *Store) (milliseconds int, err error) {
	err = s.Write(context.Background(), func(tx *Tx) error {
		w := s.writer
		w.startOver(nil)
		return w.conn.queryRow(`PRAGMA busy_timeout`).Scan(&milliseconds)
	})
	return milliseconds, err
}

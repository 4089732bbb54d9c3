package store_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/mattn/go-sqlite3"

	"brokerd/internal/fault"
	"brokerd/internal/store"
)

var (
	ioError   = sqlite3.Error{Code: sqlite3.ErrIoErr, ExtendedCode: sqlite3.ErrIoErr.Extend(3)}
	syncError = sqlite3.Error{Code: sqlite3.ErrIoErr, ExtendedCode: sqlite3.ErrIoErrFsync}
)

// limitPages gives the database room for n pages more than it has.
func limitPages(t *testing.T, s *store.Store, n int64) {
	t.Helper()
	write(t, s, func(tx *store.Tx) error {
		var pages int64
		if err := tx.QueryRow(`PRAGMA page_count`).Scan(&pages); err != nil {
			return err
		}
		return tx.QueryRow(`PRAGMA max_page_count = ` + itoa(pages+n)).Scan(&pages)
	})
}

func TestDiskFull_FailsTheWholeBatchAndRunsNothingOutsideIt(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, way option) {
		s := open(t, way)
		write(t, s, add("before"))
		limitPages(t, s, 2)
		large := make([]byte, 1<<20)
		ran := map[string]bool{}

		end := atEnd(s, add("end"))
		release := hold(t, s)
		first := submit(s, store.LaneFill, func(tx *store.Tx) error {
			tx.OnCommit(func() { t.Error("told of a commit that failed") })
			end.Note(tx, "", 0)
			insert(tx, "first", nil)
			return nil
		})
		refused := submit(s, store.LaneFill, func(tx *store.Tx) error { return errRefused })
		full := submit(s, store.LaneFill, func(tx *store.Tx) error {
			insert(tx, "large", large)
			insert(tx, "stray", nil) // outside the transaction this would be a commit of its own
			_, err := namesIn(tx)
			wantFault(t, err, fault.Unavailable, "DISK_FULL")
			return nil
		})
		later := submit(s, store.LaneFill, func(tx *store.Tx) error {
			ran["later"] = true
			insert(tx, "later", nil)
			return nil
		})
		release()
		for _, outcome := range []<-chan error{first, refused, full, later} {
			wantFault(t, <-outcome, fault.Unavailable, "DISK_FULL")
		}
		if ran["later"] {
			t.Error("a function was run in a batch that was lost")
		}
		if diff := cmp.Diff([]string{"before"}, names(t, s)); diff != "" {
			t.Error("reads while the disk is full:", diff)
		}

		write(t, s, nothing) // it shows nothing about the disk
		wantFault(t, s.Halted(), fault.Unavailable, "DISK_FULL")
		limitPages(t, s, 10_000)
		write(t, s, func(tx *store.Tx) error {
			insert(tx, "after", large)
			return nil
		})
		if err := s.Halted(); err != nil {
			t.Errorf("after a commit: %v", err)
		}
		if diff := cmp.Diff([]string{"before", "after"}, names(t, s)); diff != "" {
			t.Error(diff)
		}
	})
}

// What Full frees is there for the next write.
func TestDiskFull_IsReportedSoThatSpaceCanBeFreed(t *testing.T) {
	t.Parallel()
	calls := 0
	s := open(t, func(o *store.Options) { o.Full = func() { calls++ } })
	write(t, s, add("before"))
	limitPages(t, s, 2)
	err := s.Write(context.Background(), func(tx *store.Tx) error {
		insert(tx, "large", make([]byte, 1<<20))
		return nil
	})
	wantFault(t, err, fault.Unavailable, "DISK_FULL")
	write(t, s, func(*store.Tx) error {
		if calls != 1 {
			t.Errorf("%d calls of Full, want 1", calls)
		}
		return nil
	})
	store.FailNextCommit(s, ioError)
	wantFault(t, s.Write(context.Background(), add("lost")), fault.Unavailable, "IO_ERROR")
	if calls != 1 {
		t.Errorf("%d calls of Full after another error, want 1", calls)
	}
	limitPages(t, s, 10_000)
}

func TestDiskFull_NumbersOfALostBatchAreNotGivenAgain(t *testing.T) {
	t.Parallel()
	s := open(t)
	limitPages(t, s, 2)
	var lost, next int64
	err := s.Write(context.Background(), func(tx *store.Tx) error {
		lost = tx.NextRevision()
		insert(tx, "large", make([]byte, 1<<20))
		return nil
	})
	wantFault(t, err, fault.Unavailable, "DISK_FULL")
	limitPages(t, s, 10_000)
	write(t, s, func(tx *store.Tx) error { next = tx.NextRevision(); return nil })
	if next <= lost {
		t.Errorf("%d was given after %d", next, lost)
	}
}

func TestCommit_IOErrorFailsItsBatchAlone(t *testing.T) {
	t.Parallel()
	s := open(t)
	store.FailNextCommit(s, ioError)
	release := hold(t, s)
	outcomes := []<-chan error{
		submit(s, store.LaneFill, add("lost")),
		submit(s, store.LaneFill, nothing),
		submit(s, store.LaneDrain, func(*store.Tx) error { return errRefused }),
	}
	release()
	for _, outcome := range outcomes {
		wantFault(t, <-outcome, fault.Unavailable, "IO_ERROR")
	}
	write(t, s, add("after"))
	if diff := cmp.Diff([]string{"after"}, names(t, s)); diff != "" {
		t.Error(diff)
	}
	if n := s.Stats().Lost; n != 1 {
		t.Errorf("%d batches lost, want 1", n)
	}
}

func TestSync_FailureIsFatalAndNothingIsWrittenAfterIt(t *testing.T) {
	t.Parallel()
	var fatal []error
	s := open(t, func(o *store.Options) { o.Fatal = func(err error) { fatal = append(fatal, err) } })
	write(t, s, add("before"))
	store.FailNextCommit(s, syncError)
	wantFault(t, s.Write(context.Background(), add("unknown")), fault.Unavailable, "IO_ERROR")
	if len(fatal) != 1 || !errors.Is(fatal[0], syncError) {
		t.Errorf("Fatal was called with %v, want the failed sync once", fatal)
	}
	wantFault(t, s.Write(context.Background(), add("after")), fault.Unavailable, "SYNC_FAILED")
	wantFault(t, s.Halted(), fault.Unavailable, "SYNC_FAILED")
	if diff := cmp.Diff([]string{"before"}, names(t, s)); diff != "" {
		t.Error(diff)
	}
	if len(fatal) != 1 {
		t.Error("Fatal was called again")
	}
}

// Each half fits on the disk and both do not. So the second one loses the transaction, and would fit after it is gone.
func TestDiskFull_NothingRunsOutsideTheLostTransaction(t *testing.T) {
	t.Parallel()
	half := make([]byte, 500<<10)
	for name, c := range map[string]struct {
		defect bool // another function has a defect, so that all functions run again
		after  func(*store.Tx)
	}{
		"ExecEach": {after: func(tx *store.Tx) {
			_, _ = tx.ExecEach(`DELETE FROM items WHERE name = ?`, 1, func(int) []any { return []any{"nobody"} })
		}},
		"end of a function that runs again": {defect: true, after: func(*store.Tx) {}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bothWays(t, func(t *testing.T, way option) {
				s := open(t, way)
				write(t, s, add("before"))
				limitPages(t, s, 100)
				release := hold(t, s)
				if c.defect {
					submit(s, store.LaneFill, func(tx *store.Tx) error { insertAgain(tx); return nil })
				}
				full := submit(s, store.LaneFill, func(tx *store.Tx) error {
					insert(tx, "half", half)
					insert(tx, "other half", half)
					insert(tx, "stray", nil)
					_, _ = namesIn(tx) // sends the statements, and fails
					c.after(tx)
					return nil
				})
				release()
				wantFault(t, <-full, fault.Unavailable, "DISK_FULL")
				limitPages(t, s, 10_000)
				if diff := cmp.Diff([]string{"before"}, names(t, s)); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

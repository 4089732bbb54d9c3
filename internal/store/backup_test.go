package store_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

// stocked returns a store whose database takes several steps to copy.
func stocked(t *testing.T, options ...option) *store.Store {
	t.Helper()
	s := open(t, options...)
	write(t, s, func(tx *store.Tx) error {
		for i := range 40 {
			insert(tx, fmt.Sprint("item ", i), bytes.Repeat([]byte{byte(i)}, 64<<10))
		}
		return nil
	})
	return s
}

// unread reads nothing of a snapshot.
func unread(*store.Snapshot) error { return nil }

func wantNoFile(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("%s is left (%v)", path, err)
	}
}

func TestBackup_HasOneCommitWhileOthersAreMade(t *testing.T) {
	t.Parallel()
	s := stocked(t)
	want, revision := names(t, s), s.Revision()
	dir := t.TempDir()
	var steps, last, size int64
	got, err := s.Backup(t.Context(), filepath.Join(dir, store.DatabaseFile), unread, func(copied, total int64) {
		if steps++; copied < last || copied > total {
			t.Errorf("step %d has copied %d of %d bytes, the step before %d", steps, copied, total, last)
		}
		last, size = copied, total
		write(t, s, func(tx *store.Tx) error {
			tx.Exec(`DELETE FROM items WHERE name = ?`, fmt.Sprint("item ", steps))
			insert(tx, "later", nil)
			return nil
		})
	})
	testkit.NoError(t, err)
	if got != revision || steps < 2 || last != size {
		t.Errorf("revision %d, %d of %d bytes in %d steps; want revision %d in several steps", got, last, size, steps, revision)
	}
	copied := open(t, inFolder(dir))
	if diff := cmp.Diff(want, names(t, copied)); diff != "" {
		t.Error(diff)
	}
	if copied.Revision() != revision {
		t.Errorf("the copy has revision %d, want %d", copied.Revision(), revision)
	}
}

func TestBackup_EndedByTheCallerLeavesNoFile(t *testing.T) {
	t.Parallel()
	s := stocked(t)
	path := filepath.Join(t.TempDir(), "copy")
	ctx, cancel := context.WithCancel(t.Context())
	_, err := s.Backup(ctx, path, unread, func(int64, int64) { cancel() })
	wantFault(t, err, fault.Canceled, "CANCELED")
	wantNoFile(t, path)
}

func TestBackup_NeverReplacesAFile(t *testing.T) {
	t.Parallel()
	s := stocked(t)
	path := filepath.Join(t.TempDir(), "copy")
	testkit.NoError(t, os.WriteFile(path, []byte("mine"), 0o600))
	_, err := s.Backup(t.Context(), path, unread, func(int64, int64) {})
	if kept, _ := os.ReadFile(path); err == nil || string(kept) != "mine" {
		t.Errorf("the file has %q, %v", kept, err)
	}
}

func TestBackup_IsRefusedAfterClose(t *testing.T) {
	t.Parallel()
	s := stocked(t)
	shut(t, s)
	path := filepath.Join(t.TempDir(), "copy")
	_, err := s.Backup(t.Context(), path, unread, func(int64, int64) {})
	wantFault(t, err, fault.Unavailable, "SHUTTING_DOWN")
	wantNoFile(t, path)
}

func TestBackup_EndsWhenTheLogGrowsTooLargeAndNeverHoldsTheWriter(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := stocked(t, inFolder(dir), func(o *store.Options) { store.GrowLog(o, 8*mebibyte) })
	path := filepath.Join(t.TempDir(), "copy")
	churned := false
	_, err := s.Backup(t.Context(), path, unread, func(int64, int64) {
		if churned {
			return
		}
		churned = true
		before := s.Stats().Checkpoints
		churn(t, s, 40*mebibyte)
		if n := s.Stats().Checkpoints - before; n > 0 {
			t.Errorf("the writer waited %d times for the backup", n)
		}
	})
	wantFault(t, err, fault.Unavailable, "BACKUP_TOO_SLOW")
	wantNoFile(t, path)
	// What copies the log back works beside the writer, and may need a while.
	for late := time.Now().Add(testkit.Patience); logFile(t, dir) > 64*mebibyte || s.Stats().Checkpoints == 0; {
		if time.Now().After(late) {
			t.Fatalf("the file of the log has %d MiB after the backup has ended", logFile(t, dir)/mebibyte)
		}
		churn(t, s, 8*mebibyte)
	}
}

package store_test

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

const mebibyte = 1 << 20

// churn writes and overwrites the given number of bytes, some of it beside running commits.
func churn(t *testing.T, s *store.Store, bytes int) {
	t.Helper()
	content := make([]byte, mebibyte/4)
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			for range bytes / 2 / len(content) {
				err := s.Write(context.Background(), func(tx *store.Tx) error {
					tx.Exec(`DELETE FROM items WHERE revision < ?`, tx.NextRevision()-20)
					insert(tx, "large", content)
					return nil
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

func logFile(t *testing.T, dir string) int64 {
	t.Helper()
	info, err := os.Stat(filepath.Join(dir, store.DatabaseFile+"-wal"))
	testkit.NoError(t, err)
	return info.Size()
}

func TestLog_StaysSmallUnderConstantWritingAndReading(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, inFolder(dir), withClock(clockwork.NewRealClock()))
	ctx, cancel := context.WithCancel(context.Background())
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for ctx.Err() == nil {
				_ = s.Read(ctx, func(snap *store.Snapshot) error {
					_, err := namesIn(snap)
					return err
				})
			}
		})
	}
	churn(t, s, 300*mebibyte)
	cancel()
	readers.Wait()
	if size := logFile(t, dir); size > 96*mebibyte {
		t.Errorf("the log has %d MiB after 300 MiB were written", size/mebibyte)
	}
	if n := s.Stats().Checkpoints; n == 0 {
		t.Error("the log was never copied back")
	}
}

func TestLog_ReaderThatHoldsOnIsReportedAndCostsNoData(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	core, logs := observer.New(zapcore.WarnLevel)
	s := open(t, inFolder(dir), withLog(zap.New(core)))
	write(t, s, add("first"))
	err := s.Read(context.Background(), func(snap *store.Snapshot) error {
		churn(t, s, 280*mebibyte)
		if n := logs.FilterMessageSnippet("write-ahead log grows").Len(); n != 1 {
			t.Errorf("warned %d times of a log of %d MiB", n, logFile(t, dir)/mebibyte)
		}
		got, err := namesIn(snap)
		if diff := cmp.Diff([]string{"first"}, got); diff != "" {
			t.Error(diff)
		}
		return err
	})
	testkit.NoError(t, err)
	churn(t, s, 64*mebibyte)
	if got := s.Stats().LogBytes; got > 64*mebibyte {
		t.Errorf("the log has %d MiB after the reader has gone", got/mebibyte)
	}
	if size := logFile(t, dir); size > 64*mebibyte {
		t.Errorf("the file of the log has %d MiB after the reader has gone", size/mebibyte)
	}
}

func TestClose_WritesTheLogBack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, inFolder(dir))
	write(t, s, add("one"))
	if logFile(t, dir) == 0 {
		t.Error("a commit did not go through the log")
	}
	shut(t, s)
	if _, err := os.Stat(filepath.Join(dir, store.DatabaseFile+"-wal")); !os.IsNotExist(err) {
		t.Errorf("the log is left after Close (%v)", err)
	}
}

func TestLog_FailedCheckpointKeepsTheBusyTimeout(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zapcore.ErrorLevel)
	s := open(t, withLog(zap.New(core)))
	got, err := store.BusyTimeoutAfterFailedCheckpoint(s)
	testkit.NoError(t, err)
	if logs.Len() != 1 {
		t.Errorf("%d errors were logged, want that of the checkpoint", logs.Len())
	}
	if got != 5000 {
		t.Errorf("the writer waits %d ms for a lock after a failed checkpoint, want 5000", got)
	}
}

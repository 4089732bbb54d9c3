package store_test

import (
	"bytes"
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	_ "github.com/mattn/go-sqlite3" // the driver of another program
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

func external(o *store.Options) { o.Checkpoint = store.CheckpointExternal }

func content(t *testing.T, dir, suffix string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, store.DatabaseFile+suffix))
	testkit.NoError(t, err)
	return b
}

// Every byte that the log had stays in its place, so a program that follows the log misses none.
func TestExternalCheckpoint_StoreOnlyAppendsToTheLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	shut(t, open(t, inFolder(dir), external))
	database, log := content(t, dir, ""), content(t, dir, "-wal")
	unchanged := func(step string) {
		t.Helper()
		if !bytes.Equal(content(t, dir, ""), database) {
			t.Fatalf("%s changed the database file", step)
		}
		now := content(t, dir, "-wal")
		if !bytes.HasPrefix(now, log) {
			t.Fatalf("%s changed what the log had", step)
		}
		log = now
	}

	s := open(t, inFolder(dir), external)
	unchanged("the start")
	churn(t, s, 40*mebibyte) // more than the size at which the store would begin a checkpoint
	write(t, s, add("first"))
	unchanged("writing")
	write(t, s, func(tx *store.Tx) error {
		tx.Exec(`DELETE FROM items WHERE name = 'large'`)
		_, err := tx.Vacuum()
		return err
	})
	unchanged("Vacuum")
	if n := s.Stats().Checkpoints; n != 0 {
		t.Errorf("the store ran %d checkpoints", n)
	}
	shut(t, s)
	unchanged("the stop")

	s = open(t, inFolder(dir), external)
	write(t, s, add("second"))
	shut(t, s)
	unchanged("the second start and stop")

	s = open(t, inFolder(dir)) // the store runs the checkpoints again
	if diff := cmp.Diff([]string{"first", "second"}, names(t, s)); diff != "" {
		t.Error(diff)
	}
	shut(t, s)
	if _, err := os.Stat(filepath.Join(dir, store.DatabaseFile+"-wal")); !os.IsNotExist(err) {
		t.Errorf("the log is left after a stop with internal checkpoints (%v)", err)
	}
}

func TestExternalCheckpoint_FailedOpenLeavesTheLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, inFolder(dir), external)
	write(t, s, add("one"))
	shut(t, s)
	log := content(t, dir, "-wal")

	changed := store.Migration{Name: items.Name, SQL: itemTable + ` -- changed`}
	refuse(t, dir, "CHANGED_MIGRATION", external, withMigrations(changed))
	if !bytes.Equal(content(t, dir, "-wal"), log) {
		t.Error("a start that failed changed the log")
	}
}

func TestExternalCheckpoint_LogThatGrowsIsReported(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zapcore.WarnLevel)
	s := open(t, external, withLog(zap.New(core)))
	churn(t, s, 280*mebibyte)
	if n := logs.FilterMessageSnippet("write-ahead log grows").FilterMessageSnippet("--checkpoint external").Len(); n != 1 {
		t.Errorf("warned %d times of a log of %d MiB", n, s.Stats().LogBytes/mebibyte)
	}
}

func TestOpen_LogThatAnotherProgramReadsIsNoDamage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, inFolder(dir), external)
	other, err := sql.Open("sqlite3", filepath.Join(dir, store.DatabaseFile))
	testkit.NoError(t, err)
	defer func() { _ = other.Close() }() // it only reads
	tx, err := other.BeginTx(context.Background(), nil)
	testkit.NoError(t, err)
	defer func() { _ = tx.Rollback() }() // it only reads
	var objects int
	testkit.NoError(t, tx.QueryRow(`SELECT count(*) FROM sqlite_schema`).Scan(&objects))
	write(t, s, func(tx *store.Tx) error {
		insert(tx, "large", make([]byte, mebibyte))
		return nil
	})
	shut(t, s)
	write(t, open(t, inFolder(dir)), add("more"))
}

package store_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

// atOnce sets the size up to which a database is checked in one statement.
func atOnce(bytes int64) option { return func(o *store.Options) { store.CheckAtOnce(o, bytes) } }

// filled returns a folder with a database of many pages after a clean stop.
func filled(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	s := open(t, inFolder(dir))
	write(t, s, func(tx *store.Tx) error {
		for i := range 500 {
			insert(tx, fmt.Sprint("item ", i), bytes.Repeat([]byte{byte(i)}, 300))
		}
		tx.Exec(`CREATE INDEX items_by_name ON items (name)`)
		return nil
	})
	shut(t, s)
	return dir
}

// execute runs a statement on the database behind the store's back.
func execute(t *testing.T, path string, statements ...string) {
	t.Helper()
	db, err := sql.Open("sqlite3", path)
	testkit.NoError(t, err)
	db.SetMaxOpenConns(1)
	for _, text := range statements {
		if _, err := db.ExecContext(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
	testkit.NoError(t, db.Close())
}

// unclean removes the mark of the clean stop.
func unclean(t *testing.T, dir string) {
	t.Helper()
	execute(t, filepath.Join(dir, store.DatabaseFile), `UPDATE meta SET stopped = 0`)
}

func TestOpen_ChecksASmallDatabaseBeforeItStartsAfterAnUncleanStop(t *testing.T) {
	t.Parallel()
	for _, place := range []string{"items", "items_by_name"} {
		t.Run(place, func(t *testing.T) {
			dir := filled(t)
			unclean(t, dir)
			shut(t, open(t, inFolder(dir))) // it is sound
			testkit.Ruin(t, filepath.Join(dir, store.DatabaseFile), place)
			unclean(t, dir)
			_, err := store.Open(t.Context(), settings(t, inFolder(dir)))
			wantFault(t, err, fault.Precondition, "DAMAGED")
			if !strings.Contains(err.Error(), "brokerd check") {
				t.Errorf("%v does not name brokerd check", err)
			}
		})
	}
}

func TestOpen_ChecksInTheBackgroundAndThenRefusesChanges(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		place   string
		unclean bool
		atOnce  int64 // bytes
	}{
		"small, table, clean stop":   {"items", false, 1 << 30},
		"small, index, clean stop":   {"items_by_name", false, 1 << 30},
		"large, table, clean stop":   {"items", false, 1},
		"large, index, clean stop":   {"items_by_name", false, 1},
		"large, table, unclean stop": {"items", true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filled(t)
			testkit.Ruin(t, filepath.Join(dir, store.DatabaseFile), c.place)
			if c.unclean {
				unclean(t, dir)
			}
			core, logged := observer.New(zap.InfoLevel)
			s, err := store.Open(t.Context(), settings(t, inFolder(dir), withLog(zap.New(core)), withClock(clockwork.NewRealClock()), atOnce(c.atOnce)))
			testkit.NoError(t, err)
			s.CheckBehind()
			store.AwaitCheck(s)
			select {
			case <-s.Damaged():
			default:
				t.Fatal("no damage was found")
			}
			if s.Damage() == "" {
				t.Error("the damage has no description")
			}
			err = s.Write(t.Context(), func(tx *store.Tx) error {
				insert(tx, "refused", nil)
				return nil
			})
			wantFault(t, err, fault.Unavailable, "DATABASE_DAMAGED")
			if got := logged.FilterMessageSnippet("brokerd check").Len(); got != 1 {
				t.Errorf("%d lines in the log name brokerd check, want 1", got)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if c.unclean {
				_, err = store.Open(t.Context(), settings(t, inFolder(dir)))
				wantFault(t, err, fault.Precondition, "DAMAGED") // this stop does not count as clean
			}
		})
	}
}

func TestDamage_ThatAStatementMeetsEndsWriting(t *testing.T) {
	t.Parallel()
	for name, meet := range map[string]func(s *store.Store) error{
		"read": func(s *store.Store) error {
			return s.Read(context.Background(), func(snap *store.Snapshot) error {
				return snap.QueryRow(`SELECT count(content) FROM items`).Scan(new(int))
			})
		},
		"write": func(s *store.Store) error {
			return s.Write(context.Background(), func(tx *store.Tx) error {
				insert(tx, "x", nil)
				return nil
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, way option) {
				dir := filled(t)
				testkit.Ruin(t, filepath.Join(dir, store.DatabaseFile), "items")
				o := settings(t, way, inFolder(dir))
				o.Unchecked = true
				s, err := store.Open(t.Context(), o)
				testkit.NoError(t, err)
				wantFault(t, meet(s), fault.Unavailable, "DATABASE_DAMAGED")
				<-s.Damaged()
				err = s.Write(t.Context(), func(tx *store.Tx) error {
					tx.Exec(`CREATE TABLE others (id INTEGER)`)
					return nil
				})
				wantFault(t, err, fault.Unavailable, "DATABASE_DAMAGED")
				if problems, err := s.Check(t.Context()); err != nil || len(problems) == 0 {
					t.Errorf("check: %q, %v", problems, err)
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestOpen_RefusesAnEmptyDatabaseInAUsedFolder(t *testing.T) {
	t.Parallel()
	dir := made(t)
	path := filepath.Join(dir, store.DatabaseFile)
	for _, f := range []string{path, filepath.Join(dir, "operator.credential")} {
		testkit.NoError(t, os.WriteFile(f, nil, 0o600))
	}
	refuse(t, dir, "EMPTY_DATABASE")
	if data, err := os.ReadFile(path); err != nil || len(data) > 0 {
		t.Errorf("the file was changed: %d bytes, %v", len(data), err)
	}
	testkit.NoError(t, os.Remove(path))
	open(t, inFolder(dir)) // as the message says
}

func TestOpen_EmptyDatabaseOfAFirstStartThatFailedIsUsed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{store.DatabaseFile, store.LockFile} {
		testkit.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	open(t, inFolder(dir))
}

func TestOpen_LeavesAForeignDatabaseUntouched(t *testing.T) {
	t.Parallel()
	for _, pageSize := range []int{4096, 8192} {
		dir := t.TempDir()
		path := filepath.Join(dir, store.DatabaseFile)
		execute(t, path, fmt.Sprintf(`PRAGMA page_size = %d`, pageSize), `PRAGMA auto_vacuum = incremental`, `CREATE TABLE notes (text TEXT)`)
		before, err := os.ReadFile(path)
		testkit.NoError(t, err)
		refuse(t, dir, "FOREIGN_DATABASE")
		after, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(before, after) {
			t.Errorf("page size %d: the file was changed (%v)", pageSize, err)
		}
	}
}

func TestOpen_ReportsCommitsBehindADamagedPlaceInTheLog(t *testing.T) {
	t.Parallel()
	const frame = 8192 + 24
	for name, c := range map[string]struct {
		damage func(log []byte) []byte
		want   bool
	}{
		"whole":                 {func(log []byte) []byte { return log }, false},
		"cut off":               {func(log []byte) []byte { return log[:len(log)-100] }, false},
		"one bit of a page":     {func(log []byte) []byte { log[32+2*frame+500] ^= 1; return log }, true},
		"header of a frame":     {func(log []byte) []byte { log[32+2*frame+20] ^= 1; return log }, true},
		"header of the log":     {func(log []byte) []byte { log[13] ^= 1; return log }, true},
		"older log behind":      {func(log []byte) []byte { return append(log, older(log)...) }, false},
		"last frame":            {func(log []byte) []byte { log[len(log)-1] ^= 1; return log }, false},
		"garbage at the end":    {func(log []byte) []byte { return append(log, bytes.Repeat([]byte{7}, 3*frame)...) }, false},
		"nothing but a header":  {func(log []byte) []byte { return log[:32] }, false},
		"shorter than a header": {func(log []byte) []byte { return log[:10] }, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filled(t)
			s := open(t, inFolder(dir))
			for range 10 {
				write(t, s, func(tx *store.Tx) error {
					insert(tx, "more", nil)
					return nil
				})
			}
			other := t.TempDir()
			for _, file := range []string{store.DatabaseFile, store.DatabaseFile + "-wal"} {
				data, err := os.ReadFile(filepath.Join(dir, file))
				if strings.HasSuffix(file, "-wal") && err == nil {
					data = c.damage(data)
				}
				if err == nil {
					err = os.WriteFile(filepath.Join(other, file), data, 0o600)
				}
				testkit.NoError(t, err)
			}
			core, logged := observer.New(zap.WarnLevel)
			damaged := open(t, inFolder(other), withLog(zap.New(core)))
			got := damaged.Stats().LeftOut
			if (got > 0) != c.want || got%frame != 0 {
				t.Errorf("%d bytes left out", got)
			}
			if lines := logged.FilterMessageSnippet("leaves out").Len(); (lines == 1) != c.want {
				t.Errorf("%d lines in the log", lines)
			}
		})
	}
}

func TestOpen_LogsWhatItFoundInTheLog(t *testing.T) {
	const frame = 8192 + 24
	type line struct {
		level zapcore.Level
		place string
	}
	whole := line{zap.InfoLevel, ""}
	for name, c := range map[string]struct {
		damage func(log []byte) []byte
		want   line
	}{
		"whole":                 {func(log []byte) []byte { return log }, whole},
		"cut at a frame":        {func(log []byte) []byte { return log[:len(log)-frame] }, whole},
		"cut in a page":         {func(log []byte) []byte { return log[:len(log)-100] }, line{zap.WarnLevel, "is cut off"}},
		"cut behind a header":   {func(log []byte) []byte { return log[:len(log)-frame+10] }, line{zap.WarnLevel, "is cut off"}},
		"cut in the log header": {func(log []byte) []byte { return log[:10] }, line{zap.WarnLevel, "header is cut off"}},
		"nothing but a header":  {func(log []byte) []byte { return log[:32] }, whole},
		"last frame": {
			func(log []byte) []byte { log[len(log)-1] ^= 1; return log }, line{zap.WarnLevel, "does not match its checksum"},
		},
		"older log behind": {func(log []byte) []byte { return append(log, older(log)...) }, whole},
		"part of an older log": {
			func(log []byte) []byte { return append(log, older(log)[:frame+4000]...) }, whole,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, other := filled(t), t.TempDir()
			s := open(t, inFolder(dir))
			for range 3 {
				write(t, s, func(tx *store.Tx) error {
					insert(tx, "more", nil)
					return nil
				})
			}
			path := filepath.Join(other, store.DatabaseFile)
			copyFile(t, filepath.Join(dir, store.DatabaseFile), path)
			log, err := os.ReadFile(filepath.Join(dir, store.DatabaseFile+"-wal"))
			if err == nil {
				err = os.WriteFile(path+"-wal", c.damage(log), 0o600)
			}
			testkit.NoError(t, err)
			core, logged := observer.New(zap.InfoLevel)
			open(t, inFolder(other), withLog(zap.New(core)))
			lines := logged.FilterMessageSnippet("the write-ahead log").All()
			if len(lines) != 1 {
				t.Fatalf("%d lines, want 1", len(lines))
			}
			place, _ := lines[0].ContextMap()["place"].(string)
			if lines[0].Level != c.want.level || !strings.Contains(place, c.want.place) || (place == "") != (c.want.place == "") {
				t.Errorf("%v %q %v, want %+v", lines[0].Level, lines[0].Message, lines[0].ContextMap(), c.want)
			}
		})
	}
	dir := filled(t)
	core, logged := observer.New(zap.InfoLevel)
	open(t, inFolder(dir), withLog(zap.New(core)))
	if lines := logged.FilterMessageSnippet("write-ahead log").All(); len(lines) > 0 {
		t.Errorf("after a clean stop: %v", lines)
	}
}

// older returns the frames of a log as an earlier generation would have left them: with other
// salts.
func older(log []byte) []byte {
	frames := bytes.Clone(log[32:])
	for at := 0; at+8192+24 <= len(frames); at += 8192 + 24 {
		salt := binary.BigEndian.Uint32(frames[at+8:])
		binary.BigEndian.PutUint32(frames[at+8:], salt-1)
	}
	return frames
}

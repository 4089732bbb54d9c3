package store_test

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

// refuse opens a folder that must be refused, and returns the message.
func refuse(t *testing.T, dir, reason string, options ...option) string {
	t.Helper()
	s, err := store.Open(context.Background(), settings(t, append(options, inFolder(dir))...))
	if err == nil {
		shut(t, s)
		t.Fatalf("the folder was opened, want %s", reason)
	}
	return wantFault(t, err, fault.Precondition, reason)
}

// made returns a folder with a database of three items.
func made(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	s := open(t, inFolder(dir))
	for _, name := range []string{"a", "b", "c"} {
		write(t, s, func(tx *store.Tx) error {
			insert(tx, name, make([]byte, 100_000))
			return nil
		})
	}
	shut(t, s)
	return dir
}

func TestOpen_MakesAPrivateFolder(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a b?c#d%20", "data")
	s := open(t, inFolder(dir))
	write(t, s, add("one"))
	for path, want := range map[string]fs.FileMode{
		dir:                                    fs.ModeDir | 0o700,
		filepath.Join(dir, store.DatabaseFile): 0o600,
		filepath.Join(dir, store.DatabaseFile) + "-wal": 0o600,
		filepath.Join(dir, store.LockFile):              0o600,
	} {
		info, err := os.Stat(path)
		testkit.NoError(t, err)
		if info.Mode() != want {
			t.Errorf("%s has mode %v, want %v", path, info.Mode(), want)
		}
	}
}

func TestOpen_SettingsHold(t *testing.T) {
	t.Parallel()
	for _, sync := range []store.Sync{store.SyncFull, store.SyncNormal} {
		t.Run(sync.String(), func(t *testing.T) {
			s := open(t, func(o *store.Options) { o.Sync = sync })
			want := map[string]int{
				"synchronous": map[store.Sync]int{store.SyncFull: 2, store.SyncNormal: 1}[sync],
				"page_size":   8192, "auto_vacuum": 2, "foreign_keys": 1, "wal_autocheckpoint": 0, "temp_store": 2,
			}
			got := map[string]int{}
			write(t, s, func(tx *store.Tx) error {
				for pragma := range want {
					var value int
					if err := tx.QueryRow(`PRAGMA ` + pragma).Scan(&value); err != nil {
						return err
					}
					got[pragma] = value
				}
				var mode string
				if err := tx.QueryRow(`PRAGMA journal_mode`).Scan(&mode); err != nil || mode != "wal" {
					t.Errorf("journal mode %s, %v", mode, err)
				}
				return nil
			})
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParseSync_KnowsItsOwnNames(t *testing.T) {
	t.Parallel()
	for _, sync := range []store.Sync{store.SyncFull, store.SyncNormal} {
		if got, err := store.ParseSync(sync.String()); got != sync || err != nil {
			t.Errorf("%s gives %v, %v", sync, got, err)
		}
	}
	_, err := store.ParseSync("off")
	wantFault(t, err, fault.Invalid, "INVALID_ARGUMENT")
}

func TestOpen_SecondDaemonIsRefusedWithTheFirstOnesProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, inFolder(dir))
	message := refuse(t, dir, "IN_USE")
	if pid := itoa(int64(os.Getpid())); !strings.Contains(message, "process "+pid) {
		t.Errorf("%q does not name process %s", message, pid)
	}
	write(t, s, add("still at work"))
	shut(t, s)
	open(t, inFolder(dir))
}

func TestOpen_DataSurvives(t *testing.T) {
	t.Parallel()
	dir := made(t)
	s := open(t, inFolder(dir))
	id := s.InstanceID()
	if id <= 0 {
		t.Errorf("instance id %d", id)
	}
	if diff := cmp.Diff([]string{"a", "b", "c"}, names(t, s)); diff != "" {
		t.Error(diff)
	}
	shut(t, s)
	if again := open(t, inFolder(dir)); again.InstanceID() != id {
		t.Errorf("instance id %d became %d", id, again.InstanceID())
	}
	if other := open(t); other.InstanceID() == id {
		t.Error("two databases have one instance id")
	}
}

func TestOpen_CommitsSurviveACrash(t *testing.T) {
	t.Parallel()
	dir, crashed := t.TempDir(), t.TempDir()
	s := open(t, inFolder(dir))
	write(t, s, add("a"))
	write(t, s, add("b"))
	for _, suffix := range []string{"", "-wal"} { // what a process that is killed leaves behind
		copyFile(t, filepath.Join(dir, store.DatabaseFile+suffix), filepath.Join(crashed, store.DatabaseFile+suffix))
	}
	again := open(t, inFolder(crashed))
	if diff := cmp.Diff([]string{"a", "b"}, names(t, again)); diff != "" {
		t.Error(diff)
	}
	if again.Revision() != s.Revision() {
		t.Errorf("revision %d became %d", s.Revision(), again.Revision())
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, data, 0o600)
	}
	testkit.NoError(t, err)
}

func TestOpen_AppliesMissingMigrationsOnce(t *testing.T) {
	t.Parallel()
	dir := made(t)
	more := store.Migration{Name: "other/001_notes", SQL: `
		CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT);
		INSERT INTO notes (text) VALUES ('first'), ('second');`}
	for range 2 {
		s := open(t, inFolder(dir), withMigrations(more, items))
		write(t, s, func(tx *store.Tx) error {
			var n int
			if err := tx.QueryRow(`SELECT count(*) FROM notes`).Scan(&n); err != nil || n != 2 {
				t.Errorf("%d notes, %v", n, err)
			}
			return nil
		})
		shut(t, s)
	}
}

func TestOpen_FailedMigrationLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := made(t)
	first := store.Migration{Name: "test/002", SQL: `CREATE TABLE first (id INTEGER);`}
	broken := store.Migration{Name: "test/003", SQL: `CREATE TABLE half (id INTEGER); CREATE TABL whole (id INTEGER);`}
	_, err := store.Open(context.Background(), settings(t, inFolder(dir), withMigrations(items, first, broken)))
	if err == nil || !strings.Contains(err.Error(), "apply migration test/003") {
		t.Fatalf("got %v", err)
	}
	shut(t, open(t, inFolder(dir), withMigrations(items))) // as before, also without the first one
	mended := store.Migration{Name: "test/003", SQL: `CREATE TABLE half (id INTEGER); CREATE TABLE whole (id INTEGER);`}
	open(t, inFolder(dir), withMigrations(items, first, mended))
}

func TestOpen_NewerDatabaseIsRefused(t *testing.T) {
	t.Parallel()
	dir := made(t)
	message := refuse(t, dir, "NEWER_DATABASE", withMigrations())
	if !strings.Contains(message, items.Name) || !strings.Contains(message, "use that version, or restore a backup") {
		t.Errorf("%q names neither the migration nor the way out", message)
	}
	open(t, inFolder(dir))
}

func TestOpen_ChangedMigrationIsRefused(t *testing.T) {
	t.Parallel()
	dir := made(t)
	refuse(t, dir, "CHANGED_MIGRATION", withMigrations(store.Migration{Name: items.Name, SQL: itemTable + " "}))
	shut(t, open(t, inFolder(dir)))
	open(t, inFolder(dir), withMigrations(store.Migration{Name: items.Name, SQL: itemTable, Server: "SELECT 1"}))
}

// An unreleased build may have made a table differently: its database is not damaged.
func TestOpen_DatabaseOfAnotherBuildIsNotCalledDamaged(t *testing.T) {
	for name, c := range map[string]struct {
		statements []string
		reason     string
	}{
		"changed migration": {
			[]string{`UPDATE migrations SET sha256 = 'other'`, `ALTER TABLE meta DROP COLUMN stopped`}, "CHANGED_MIGRATION",
		},
		"newer migration": {
			[]string{`INSERT INTO migrations VALUES ('test/002', '', 0)`, `ALTER TABLE meta DROP COLUMN stopped`}, "NEWER_DATABASE",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := made(t)
			execute(t, filepath.Join(dir, store.DatabaseFile), c.statements...)
			before := content(t, dir, "")
			refuse(t, dir, c.reason)
			if !bytes.Equal(content(t, dir, ""), before) {
				t.Error("the refused database was changed")
			}
		})
	}
}

func TestOpen_DamagedDatabaseIsRefusedAndLeftAlone(t *testing.T) {
	t.Parallel()
	whole, err := os.ReadFile(filepath.Join(made(t), store.DatabaseFile))
	testkit.NoError(t, err)
	for name, data := range map[string][]byte{
		"text":             []byte("not a database at all\n"),
		"no header":        append(make([]byte, 100), whole[100:]...),
		"header alone":     whole[:100],
		"cut off":          whole[:len(whole)-1],
		"half":             whole[:len(whole)/2],
		"overwritten page": corrupt(whole),
		"somebody else's":  foreign(whole),
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, store.DatabaseFile)
			testkit.NoError(t, os.WriteFile(path, data, 0o600))
			reason := "DAMAGED"
			if name == "somebody else's" {
				reason = "FOREIGN_DATABASE"
			}
			message := refuse(t, dir, reason)
			if !strings.Contains(message, "move the file away") {
				t.Errorf("%q names no way out", message)
			}
			after, err := os.ReadFile(path)
			if err != nil || !bytes.Equal(data, after) {
				t.Errorf("the file was changed (%v)", err)
			}
		})
	}
}

// corrupt overwrites the schema behind the file header.
func corrupt(whole []byte) []byte {
	data := bytes.Clone(whole)
	for i := 100; i < 8192; i++ {
		data[i] = 0xff
	}
	return data
}

// foreign gives the database another application id, and no write-ahead log.
func foreign(whole []byte) []byte {
	data := bytes.Clone(whole)
	copy(data[68:72], "GPKG")
	copy(data[18:20], []byte{1, 1})
	return data
}

func TestCheck_FindsDamage(t *testing.T) {
	t.Parallel()
	dir := made(t)
	path := filepath.Join(dir, store.DatabaseFile)
	data, err := os.ReadFile(path)
	testkit.NoError(t, err)
	middle := len(data) / 2 / 8192 * 8192
	copy(data[middle:], []byte{0, 0, 0, 99}) // the chain of a large value's pages goes astray
	testkit.NoError(t, os.WriteFile(path, data, 0o600))
	s, err := store.Open(context.Background(), settings(t, inFolder(dir)))
	testkit.NoError(t, err)
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	problems, err := s.Check(context.Background())
	testkit.NoError(t, err)
	if len(problems) == 0 {
		t.Error("nothing was found")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = s.Check(ctx)
	wantFault(t, err, fault.Canceled, "CANCELED")
}

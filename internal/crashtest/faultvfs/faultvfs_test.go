package faultvfs_test

import (
	"database/sql"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/mattn/go-sqlite3"

	"brokerd/internal/crashtest/faultvfs"
)

// inChild names the database on which the test program itself is the process of a test.
const inChild = "FAULTVFS_DATABASE"

func TestMain(m *testing.M) {
	if err := faultvfs.Register(); err != nil {
		panic(err)
	}
	if path := os.Getenv(inChild); path != "" {
		writeUntilCut(path, os.Getenv("FAULTVFS_SYNC"), faultvfs.Keep(os.Getenv("FAULTVFS_KEEP")))
		return
	}
	os.Exit(m.Run())
}

// database opens a database of a table of numbers, in the mode in which the store uses it.
func database(path, sync string) (*sql.DB, error) {
	db, err := sql.Open("sqlite3", "file:"+path+"?_journal_mode=wal&_synchronous="+sync)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	_, err = db.Exec(`CREATE TABLE IF NOT EXISTS numbers (n INTEGER PRIMARY KEY, filler BLOB)`)
	return db, err
}

func insert(db *sql.DB) error {
	_, err := db.Exec(`INSERT INTO numbers (filler) VALUES (randomblob(10000))`)
	return err
}

func count(t *testing.T, path string) int {
	t.Helper()
	db, err := database(path, "full")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close() //nolint:errcheck // it is only read
	var n int
	var verdict string
	if err := db.QueryRow(`SELECT count(*) FROM numbers`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	if err := db.QueryRow(`PRAGMA integrity_check`).Scan(&verdict); err != nil || verdict != "ok" {
		t.Errorf("integrity: %s, %v", verdict, err)
	}
	return n
}

func set(t *testing.T, p faultvfs.Plan) {
	t.Helper()
	if err := faultvfs.Set(p); err != nil {
		t.Fatal(err)
	}
}

// The plan and the counters belong to the process, so no other test runs beside it.
func TestSet_FailsTheChosenOperation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	db, err := database(path, "full")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close() //nolint:errcheck // count opens the database again
	set(t, faultvfs.Plan{})
	if err := insert(db); err != nil {
		t.Fatal(err)
	}
	trace := faultvfs.Read().Trace
	sync := int64(strings.IndexByte(trace, 's') + 1)
	if sync < 2 || int64(len(trace)) != faultvfs.Read().Operations {
		t.Fatalf("a commit in a log is %q", trace)
	}
	for _, c := range []struct {
		plan faultvfs.Plan
		want sqlite3.ErrNoExtended
	}{
		{faultvfs.Plan{Fault: faultvfs.DiskFull, At: 1}, sqlite3.ErrNoExtended(sqlite3.ErrFull)},
		{faultvfs.Plan{Fault: faultvfs.IOError, At: sync - 1}, sqlite3.ErrIoErrWrite},
		{faultvfs.Plan{Fault: faultvfs.SyncFail, At: sync}, sqlite3.ErrIoErrFsync},
		{faultvfs.Plan{Fault: faultvfs.SyncFail, At: 1, Lasting: true}, sqlite3.ErrIoErrFsync},
		{faultvfs.Plan{Fault: faultvfs.DiskFull, At: 1, Lasting: true, File: faultvfs.Log}, sqlite3.ErrNoExtended(sqlite3.ErrFull)},
	} {
		set(t, c.plan)
		var e sqlite3.Error
		if err := insert(db); !errors.As(err, &e) || e.ExtendedCode != c.want {
			t.Errorf("%+v: %v (%d)", c.plan, err, e.ExtendedCode)
		}
		if n := faultvfs.Read().Failed; n == 0 {
			t.Errorf("%+v: no operation has failed", c.plan)
		}
	}
	set(t, faultvfs.Plan{Fault: faultvfs.DiskFull, At: 1, File: faultvfs.Database}) // a commit writes to the log
	if err := insert(db); err != nil {
		t.Error(err)
	}
	set(t, faultvfs.Plan{})
	if err := faultvfs.Set(faultvfs.Plan{Fault: "flood"}); err == nil {
		t.Error("an unknown fault is accepted")
	}
	if n := count(t, path); n != 2 {
		t.Errorf("%d rows, want the 2 that were confirmed", n)
	}
}

// writeUntilCut is the process that loses its power. It writes a byte for each confirmed row.
func writeUntilCut(path, sync string, keep faultvfs.Keep) {
	db, err := database(path, sync)
	if err != nil {
		panic(err)
	}
	if err := faultvfs.Set(faultvfs.Plan{Fault: faultvfs.PowerCut, At: 100, Keep: keep, Seed: 7}); err != nil {
		panic(err)
	}
	for {
		if err := insert(db); err != nil {
			panic(err)
		}
		_, _ = os.Stdout.WriteString(".") // the test has started the process
	}
}

func TestPowerCut_LosesWhatWasNotSynced(t *testing.T) {
	for _, c := range []struct {
		sync  string
		keep  faultvfs.Keep
		loses bool
	}{
		{"full", faultvfs.KeepNone, false},
		{"full", faultvfs.KeepSome, false},
		{"full", faultvfs.KeepTorn, false},
		{"normal", faultvfs.KeepNone, true},
		{"normal", faultvfs.KeepSome, true},
		{"off", faultvfs.KeepNone, true},
	} {
		t.Run(c.sync+" "+string(c.keep), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "db")
			if db, err := database(path, "full"); err != nil || db.Close() != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), inChild+"="+path, "FAULTVFS_SYNC="+c.sync, "FAULTVFS_KEEP="+string(c.keep))
			out, err := cmd.Output()
			ws, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
			if !ws.Signaled() || ws.Signal() != syscall.SIGKILL {
				t.Fatalf("the process ended with %v", err)
			}
			confirmed, kept := len(out), count(t, path)
			t.Logf("%d rows were confirmed, %d are there", confirmed, kept)
			if confirmed < 2 || (kept < confirmed) != c.loses || kept > confirmed+1 {
				t.Errorf("%d rows were confirmed and %d are there", confirmed, kept)
			}
		})
	}
}

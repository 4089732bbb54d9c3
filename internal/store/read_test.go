package store_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jonboulle/clockwork"

	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

func TestRead_SeesOneCommitWhateverIsWritten(t *testing.T) {
	t.Parallel()
	s := open(t)
	write(t, s, add("a"))
	err := s.Read(context.Background(), func(snap *store.Snapshot) error {
		write(t, s, add("b"))
		if got, err := namesIn(snap); err != nil || !cmp.Equal(got, []string{"a"}) {
			t.Errorf("snapshot changed to %v (%v)", got, err)
		}
		if got := snap.Revision(); got != 1 {
			t.Errorf("revision %d of a snapshot taken at 1", got)
		}
		return nil
	})
	testkit.NoError(t, err)
	if diff := cmp.Diff([]string{"a", "b"}, names(t, s)); diff != "" {
		t.Error(diff)
	}
}

func TestRead_CannotWrite(t *testing.T) {
	t.Parallel()
	s := open(t)
	err := s.Read(context.Background(), func(snap *store.Snapshot) error {
		return snap.QueryRow(`INSERT INTO items (revision, name) VALUES (1, 'a') RETURNING name`).Scan(new(string))
	})
	if err == nil {
		t.Error("a snapshot was written to")
	}
	if got := names(t, s); len(got) != 0 {
		t.Errorf("got %v", got)
	}
}

func TestReadPage_LeavesConnectionsToOtherCalls(t *testing.T) {
	t.Parallel()
	s := open(t, func(o *store.Options) { o.Readers = 2 })
	ctx, cancel := context.WithCancel(context.Background())
	err := s.ReadPage(context.Background(), func(*store.Snapshot) error {
		second := make(chan error)
		go func() { second <- s.ReadPage(ctx, func(*store.Snapshot) error { return nil }) }()
		if err := s.Read(context.Background(), func(*store.Snapshot) error { return nil }); err != nil {
			return err
		}
		cancel()
		return <-second
	})
	wantFault(t, err, fault.Canceled, "CANCELED")
}

func TestRead_WaitsForAConnectionUntilTheCallerGivesUp(t *testing.T) {
	t.Parallel()
	s := open(t, func(o *store.Options) { o.Readers = 1 })
	ctx, cancel := context.WithCancel(context.Background())
	err := s.Read(context.Background(), func(*store.Snapshot) error {
		second := make(chan error)
		go func() { second <- s.Read(ctx, func(*store.Snapshot) error { return nil }) }()
		cancel()
		return <-second
	})
	wantFault(t, err, fault.Canceled, "CANCELED")
	names(t, s) // the connection is back
}

func TestRead_OldSnapshotIsRefused(t *testing.T) {
	t.Parallel()
	clock := clockwork.NewFakeClock()
	s := open(t, withClock(clock))
	err := s.Read(context.Background(), func(snap *store.Snapshot) error {
		clock.Advance(11 * time.Second)
		_, err := namesIn(snap)
		return err
	})
	wantFault(t, err, fault.Unavailable, "SNAPSHOT_TOO_OLD")
}

func TestRead_SnapshotIsOfNoUseAfterItsFunction(t *testing.T) {
	t.Parallel()
	s := open(t)
	var kept *store.Snapshot
	_ = s.Read(context.Background(), func(snap *store.Snapshot) error { kept = snap; return nil })
	_, err := namesIn(kept)
	wantFault(t, err, fault.Internal, "SNAPSHOT_OVER")
}

func TestRead_PanicGivesTheConnectionBack(t *testing.T) {
	t.Parallel()
	s := open(t, func(o *store.Options) { o.Readers = 1 })
	func() {
		defer func() { _ = recover() }()
		_ = s.Read(context.Background(), func(snap *store.Snapshot) error {
			if err := snap.Query(`SELECT name FROM items`).Err(); err != nil { // the rows are left open
				t.Error(err)
			}
			panic("a defect")
		})
	}()
	names(t, s)
}

func TestScan_GivesBackWhatWasStored(t *testing.T) {
	t.Parallel()
	s := open(t, withMigrations(store.Migration{Name: "values", SQL: `CREATE TABLE pairs (k INTEGER PRIMARY KEY, v)`}))
	at := time.Date(2030, 1, 2, 3, 4, 5, 678, time.UTC)
	for _, c := range []struct{ stored, into, want any }{
		{int(-3), new(int), ptr(-3)},
		{int64(math.MinInt64), new(int64), ptr(int64(math.MinInt64))},
		{int32(7), new(int32), ptr(int32(7))},
		{uint32(math.MaxUint32), new(uint32), ptr(uint32(math.MaxUint32))},
		{uint64(math.MaxUint64), new(uint64), ptr(uint64(math.MaxUint64))},
		{true, new(bool), ptr(true)},
		{false, new(bool), ptr(false)},
		{1.5, new(float64), ptr(1.5)},
		{int64(2), new(float64), ptr(2.0)},
		{"text\x00with zero", new(string), ptr("text\x00with zero")},
		{"", new(string), ptr("")},
		{"text", new([]byte), ptr([]byte("text"))},
		{[]byte{0, 1}, new([]byte), ptr([]byte{0, 1})},
		{[]byte{}, new([]byte), ptr([]byte{})},
		{at, new(time.Time), ptr(at)},
		{at.In(time.FixedZone("east", 3600)), new(time.Time), ptr(at)},
		{time.Time{}, new(time.Time), new(time.Time)},
		{time.Minute, new(time.Duration), ptr(time.Minute)},
		{nil, ptr(1), new(int)},
		{nil, ptr(int64(1)), new(int64)},
		{nil, ptr(int32(1)), new(int32)},
		{nil, ptr(uint32(1)), new(uint32)},
		{nil, ptr(uint64(1)), new(uint64)},
		{nil, ptr(true), new(bool)},
		{nil, ptr(1.5), new(float64)},
		{nil, ptr("x"), new(string)},
		{nil, ptr([]byte("x")), new([]byte)},
		{nil, ptr(at), new(time.Time)},
		{nil, ptr(time.Second), new(time.Duration)},
	} {
		write(t, s, func(tx *store.Tx) error {
			tx.Exec(`INSERT OR REPLACE INTO pairs (k, v) VALUES (1, ?)`, c.stored)
			return tx.QueryRow(`SELECT v FROM pairs`).Scan(c.into)
		})
		if diff := cmp.Diff(c.want, c.into); diff != "" {
			t.Errorf("%T %v: %s", c.stored, c.stored, diff)
		}
	}
}

func ptr[T any](v T) *T { return &v }

func TestScan_Refuses(t *testing.T) {
	t.Parallel()
	s := open(t)
	write(t, s, func(tx *store.Tx) error {
		if err := tx.QueryRow(`SELECT name FROM items`).Scan(new(string)); !errors.Is(err, store.ErrNoRows) {
			t.Errorf("nothing found: %v", err)
		}
		unread := tx.Query(`SELECT 1`)
		if err := unread.Err(); err != nil {
			return err
		}
		for name, err := range map[string]error{
			"text into int":     tx.QueryRow(`SELECT 'x'`).Scan(new(int)),
			"integer into text": tx.QueryRow(`SELECT 1`).Scan(new(string)),
			"unknown variable":  tx.QueryRow(`SELECT 1`).Scan(new(complex128)),
			"NULL into unknown": tx.QueryRow(`SELECT NULL`).Scan(new(complex128)),
			"too few variables": tx.QueryRow(`SELECT 1, 2`).Scan(new(int)),
			"no such table":     tx.QueryRow(`SELECT 1 FROM nowhere`).Scan(new(int)),
			"missing argument":  tx.QueryRow(`SELECT ?`).Scan(new(int)),
			"unknown argument":  tx.QueryRow(`SELECT ?`, struct{}{}).Scan(new(int)),
			"no Next before":    unread.Scan(new(int)),
		} {
			if err == nil {
				t.Errorf("%s: no error", name)
			}
		}
		return nil
	})
	write(t, s, add("still works"))
}

// A statement that is still open keeps SQLite from dropping its table.
func TestScan_AFailedOneClosesTheRows(t *testing.T) {
	t.Parallel()
	s := open(t, withMigrations(store.Migration{Name: "texts", SQL: `
CREATE TABLE texts (v);
INSERT INTO texts (v) VALUES ('a'), ('b');`}))
	err := s.Write(context.Background(), func(tx *store.Tx) error {
		rows := tx.Query(`SELECT v FROM texts`)
		if !rows.Next() {
			t.Fatal(rows.Err())
		}
		failed := rows.Scan(new(int64))
		if failed == nil || rows.Next() || !errors.Is(rows.Err(), failed) {
			t.Errorf("Scan: %v, and then Err: %v", failed, rows.Err())
		}
		tx.Exec(`DROP TABLE texts`)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

package retention_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/apptest"
	"brokerd/internal/events"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/retention"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
	"brokerd/internal/work"
)

// A stock is messages that are a number each, in a table of their own, all of session 1 and finished an hour ago.
type stock struct {
	t     testing.TB
	dir   string
	store *store.Store
	clock *clockwork.FakeClock

	keep    time.Duration // for which messages are kept; a minute unless a test says otherwise
	mail    retention.Messages
	log     retention.Log
	parts   []work.Data
	closed  bool
	deleted chan string // where the export is

	closedKeep time.Duration // instead of keep if the session is closed
	keepEvents time.Duration
}

func newStock(t *testing.T, n int) *stock {
	t.Helper()
	s := &stock{t: t, keep: time.Minute, deleted: make(chan string, 1), dir: t.TempDir(), clock: newClock()}
	s.mail = stockMessages{s}
	s.store = testkit.Store(t, s.dir, s.clock, retention.Migrations(), itemMigrations())
	apptest.NoError(t, s.store.Write(t.Context(), func(tx *store.Tx) error {
		for range n {
			tx.Exec(`INSERT INTO items VALUES (?, ?)`, tx.NextRevision(), tx.Now().Add(-time.Hour))
		}
		return nil
	}))
	return s
}

func newClock() *clockwork.FakeClock {
	return clockwork.NewFakeClockAt(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
}

func itemMigrations() []store.Migration {
	return []store.Migration{{Name: "test/001_items", SQL: `CREATE TABLE items (revision INTEGER PRIMARY KEY, at INTEGER NOT NULL);`}}
}

// keeper starts one whose seam is fn.
func (s *stock) keeper(fn func() error) *retention.Keeper {
	s.t.Helper()
	if s.log == nil {
		s.log = noEvents{}
	}
	k := retention.New(retention.Options{Store: s.store, Sessions: s, Messages: s.mail, Events: s.log, Parts: s.parts,
		Dir: s.dir, Archive: filepath.Join(s.dir, retention.Folder), Clock: s.clock, Log: zap.NewNop()})
	if fn != nil {
		retention.SetSeam(k, fn)
	}
	apptest.NoError(s.t, k.Start(s.t.Context()))
	s.t.Cleanup(k.Stop)
	return k
}

func (s *stock) left() int {
	s.t.Helper()
	var n int
	apptest.NoError(s.t, s.store.Read(context.Background(), func(snap *store.Snapshot) error {
		return snap.QueryRow(`SELECT count(*) FROM items`).Scan(&n)
	}))
	return n
}

// empty waits until all are gone.
func (s *stock) empty() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), testkit.Patience)
	defer cancel()
	for s.left() > 0 {
		if ctx.Err() != nil {
			s.t.Fatalf("%d are left", s.left())
		}
		s.clock.Advance(10 * time.Millisecond)
	}
}

// await returns what comes. The clock moves meanwhile, for whoever rests.
func await[T any](s *stock, c <-chan T) (v T) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), testkit.Patience)
	defer cancel()
	for ctx.Err() == nil {
		select {
		case v = <-c:
			return v
		default:
			s.clock.Advance(time.Millisecond)
		}
	}
	s.t.Fatal("it does not come")
	return v
}

// wantOnce checks that the archive has each number from 1 to n once.
func (s *stock) wantOnce(n int) {
	s.t.Helper()
	w := world{Broker: &apptest.Broker{TB: s.t}, session: "default"}
	seen := map[int]int{}
	lines, _ := w.linesIn(s.dir, "messages")
	for _, l := range lines {
		seen[int(l["n"].(float64))]++
	}
	for i := 1; i <= n; i++ {
		if seen[i] != 1 {
			s.t.Errorf("%d is in the archive %d times", i, seen[i])
		}
	}
	if len(seen) != n {
		s.t.Errorf("%d numbers are in the archive, want %d", len(seen), n)
	}
}

func (s *stock) All(store.Querier) ([]retention.Session, error) {
	record := func() ([]byte, error) { return []byte(`{}`), nil }
	if s.closed {
		return []retention.Session{{ID: 1, Name: "default", Closed: true, Revision: 7, KeepMessages: s.closedKeep, Record: record}}, nil
	}
	return []retention.Session{{ID: 1, Name: "default", KeepMessages: s.keep, KeepEvents: s.keepEvents, Record: record}}, nil
}

func (s *stock) Delete(tx *store.Tx, _ int64, _, archive string) (int64, error) {
	tx.OnCommit(func() { s.deleted <- archive })
	return tx.NextRevision(), nil
}

type stockMessages struct{ *stock }

func (stockMessages) Standings(q store.Querier, _, after int64, limit int, _ bool) ([]work.Standing, error) {
	rows := q.Query(`SELECT revision, at FROM items WHERE revision > ? ORDER BY revision LIMIT ?`, after, limit)
	defer rows.Close()
	var found []work.Standing
	for rows.Next() {
		m := work.Standing{Messages: 1, Session: 1, Deliveries: 1, Finished: true}
		if err := rows.Scan(&m.First, &m.CreatedAt); err != nil {
			return nil, err
		}
		m.Last, m.FinishedAt = m.First, m.CreatedAt
		found = append(found, m)
	}
	return found, rows.Err()
}

func (stockMessages) Records(_ store.Querier, messages []work.Standing, to func(*work.Standing, []byte) bool) error {
	for i := range messages {
		text, err := json.Marshal(map[string]int64{"n": messages[i].First})
		if err != nil || !to(&messages[i], text) {
			return err
		}
	}
	return nil
}

func (stockMessages) Remove(tx *store.Tx, messages []work.Standing) error {
	for _, m := range messages {
		tx.Exec(`DELETE FROM items WHERE revision BETWEEN ? AND ?`, m.First, m.Last)
	}
	return nil
}

func (m stockMessages) Erase(tx *store.Tx, messages []work.Standing, _ int) (int, error) {
	return len(messages), m.Remove(tx, messages)
}

func (stockMessages) ChannelsKept(store.Querier) (map[int64]map[string]time.Duration, error) {
	return nil, nil
}

type noEvents struct{}

func (noEvents) After(*store.Snapshot, int64, int64, int, int) ([]events.Record, int64, error) {
	return nil, 0, nil
}
func (noEvents) Remove(*store.Tx, int64, []int64) error             { return nil }
func (noEvents) RaiseFloor(*store.Tx, int64, int64)                 {}
func (noEvents) Forget(*store.Tx, int64)                            {}
func (noEvents) Append(tx *store.Tx, _ events.Entry) (int64, error) { return tx.NextRevision(), nil }

// pagedEvents is a log that is read in pages. It notes what is removed.
type pagedEvents struct {
	noEvents
	pages   [][]events.Record
	end     chan struct{} // closed at the end of a run
	removed []int64
}

func (e *pagedEvents) After(_ *store.Snapshot, _, after int64, _, _ int) ([]events.Record, int64, error) {
	if after == int64(len(e.pages)) {
		e.pages = nil // for further runs
		close(e.end)
	}
	if len(e.pages) == 0 {
		return nil, 0, nil
	}
	return e.pages[after], after + 1, nil
}

func (e *pagedEvents) Remove(tx *store.Tx, _ int64, revisions []int64) error {
	tx.OnCommit(func() { e.removed = append(e.removed, revisions...) })
	return nil
}

// The wall clock may be set back, so an event can be due although an earlier one is not. What is removed counts as all
// events up to it, so nothing behind an event that stays may be removed, also in a later page.
func TestArchive_RemovesNoEventBehindOneThatStays(t *testing.T) {
	t.Parallel()
	s := newStock(t, 0)
	s.keepEvents = time.Minute
	event := func(revision int64, age time.Duration) events.Record {
		return events.Record{Revision: revision, Session: 1, At: s.clock.Now().Add(-age).UnixNano()}
	}
	log := &pagedEvents{end: make(chan struct{}), pages: [][]events.Record{
		{event(1, time.Hour), event(2, time.Hour), event(3, -1000*time.Hour)}, {event(4, time.Hour)},
	}}
	s.log = log
	k := s.keeper(nil)
	await(s, log.end)
	k.Stop()
	if want := []int64{1, 2}; !slices.Equal(log.removed, want) {
		t.Errorf("the events %v were removed, want %v", log.removed, want)
	}
}

var errCrash = errors.New("the broker was killed here")

func TestArchive_ExactlyOnceWhereverTheBrokerIsKilledBetweenFileAndTransaction(t *testing.T) {
	t.Parallel()
	for crashAt := 1; crashAt <= 4; crashAt++ {
		t.Run(fmt.Sprint("at page ", crashAt), func(t *testing.T) {
			const n = 2000 // four pages
			s := newStock(t, n)
			pages := 0
			crashed := make(chan struct{})
			k := s.keeper(func() error {
				if pages++; pages < crashAt {
					return nil
				}
				if pages == crashAt {
					close(crashed)
				}
				return errCrash
			})
			await(s, crashed)
			k.Stop()
			if want := n - 500*(crashAt-1); s.left() != want {
				t.Fatalf("%d are left, want %d", s.left(), want)
			}
			s.keeper(nil)
			s.empty()
			s.wantOnce(n)
		})
	}
}

// A transaction that fails while the broker goes on, such as by a full disk, leaves nothing twice either.
func TestArchive_ExactlyOnceWhenATransactionFails(t *testing.T) {
	t.Parallel()
	s := newStock(t, 1000)
	calls := 0
	s.keeper(func() error {
		if calls++; calls%2 == 1 {
			return errCrash
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	for s.left() > 0 && ctx.Err() == nil {
		s.clock.Advance(100 * time.Millisecond) // it tries again after a second
	}
	s.wantOnce(1000)
}

// What is in a file that the database does not know, as after starting anew on an old archive, is never cut off.
func TestArchive_FileOfAnotherDatabaseIsKept(t *testing.T) {
	t.Parallel()
	old := newStock(t, 10)
	old.keeper(nil)
	old.empty()
	s := newStock(t, 10)
	name := filepath.Join("archive", "default", "messages-2026-01-02.jsonl.gz")
	apptest.NoError(t, os.MkdirAll(filepath.Join(s.dir, "archive", "default"), 0o700))
	text, err := os.ReadFile(filepath.Join(old.dir, name))
	apptest.NoError(t, err)
	apptest.NoError(t, os.WriteFile(filepath.Join(s.dir, name), text, 0o600))
	s.keeper(nil)
	s.empty()
	w := world{Broker: &apptest.Broker{TB: t}, session: "default"}
	if lines, _ := w.linesIn(s.dir, "messages"); len(lines) != 20 {
		t.Errorf("%d lines in the archive, want those of both", len(lines))
	}
}

func TestDelete_GoesOnWhenTheBrokerWasKilledInTheMiddle(t *testing.T) {
	t.Parallel()
	const n = 2000 // four pages: the end of the call wakes the keeper, which can remove another one
	s := newStock(t, n)
	s.closed = true
	k := s.keeper(func() error { return errCrash }) // after each page
	_, err := k.Delete(t.Context(), identity.Caller{Access: identity.Operator, Session: "default"}, idempotency.Request{}, "default")
	if !errors.Is(err, errCrash) {
		t.Fatalf("got %v", err)
	}
	k.Stop()
	if left := s.left(); left == 0 || left == n {
		t.Fatalf("%d are left: that is not the middle", left)
	}
	s.keeper(nil)
	archive := await(s, s.deleted)
	text, err := os.ReadFile(filepath.Join(s.dir, archive, "messages.jsonl"))
	apptest.NoError(t, err)
	if got := strings.Count(string(text), "\n"); got != n {
		t.Errorf("the export has %d messages, want %d", got, n)
	}
}

// Rows that arrive after the pages of their kind go in pages too.
func TestDelete_RemovesRowsInPagesThatArriveBeforeTheLastTransaction(t *testing.T) {
	t.Parallel()
	s := newStock(t, 10)
	s.closed = true
	var erased []string // by call
	more := []bool{false, true, true, false, false}
	s.parts = []work.Data{{
		File:  "late.jsonl",
		Lines: func(store.Querier, int64, string, int) ([][]byte, string, error) { return nil, "", nil },
		Erase: func(*store.Tx, int64, int) (bool, error) {
			erased = append(erased, "page")
			return more[min(len(erased), len(more))-1], nil
		},
		Forget: func(*store.Tx, int64) { erased = append(erased, "end") },
	}}
	k := s.keeper(nil)
	who := identity.Caller{Access: identity.Operator, Session: "default"}
	_, err := k.Delete(t.Context(), who, idempotency.Request{}, "default")
	apptest.NoError(t, err)
	await(s, s.deleted)
	if got := strings.Join(erased, " "); got != "page page page page page end" {
		t.Errorf("the part was called for: %s", got)
	}
}

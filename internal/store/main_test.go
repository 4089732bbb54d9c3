package store_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const itemTable = `CREATE TABLE items (revision INTEGER PRIMARY KEY, name TEXT NOT NULL, content BLOB);`

var items = store.Migration{Name: "test/001_items", SQL: itemTable}

type option func(*store.Options)

func inFolder(dir string) option { return func(o *store.Options) { o.Dir = dir } }

func withClock(c clockwork.Clock) option { return func(o *store.Options) { o.Clock = c } }

func withLog(l *zap.Logger) option { return func(o *store.Options) { o.Log = l } }

func withMigrations(m ...store.Migration) option {
	return func(o *store.Options) { o.Migrations = m }
}

// inC has the statements of Exec run in C, as usual; store.InGo has the driver run them.
func inC(*store.Options) {}

// bothWays runs a test in C and in Go.
func bothWays(t *testing.T, test func(t *testing.T, way option)) {
	t.Helper()
	for name, way := range map[string]option{"in C": inC, "in Go": store.InGo} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, way)
		})
	}
}

// settings are those of a store in a temporary folder, on a clock that stands still, so that
// everything that waits together goes into one batch.
func settings(tb testing.TB, options ...option) store.Options {
	tb.Helper()
	o := store.Options{
		Dir:        tb.TempDir(),
		Clock:      clockwork.NewFakeClockAt(time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)),
		Migrations: []store.Migration{items},
	}
	for _, set := range options {
		set(&o)
	}
	return o
}

// open opens a store. When the test ends its database must be sound.
func open(tb testing.TB, options ...option) *store.Store {
	tb.Helper()
	s, err := store.Open(context.Background(), settings(tb, options...))
	testkit.NoError(tb, err)
	tb.Cleanup(func() { shut(tb, s) })
	return s
}

// shut closes a store, whose database must be sound.
func shut(tb testing.TB, s *store.Store) {
	tb.Helper()
	problems, err := s.Check(context.Background())
	if err != nil && fault.KindOf(err) != fault.Unavailable { // as it is when it was closed before
		tb.Error(err)
	}
	for _, p := range problems {
		tb.Error(p)
	}
	if err := s.Close(); err != nil {
		tb.Error(err)
	}
}

// hold keeps the writer busy until the returned function is called: what is submitted meanwhile goes
// into one batch.
func hold(tb testing.TB, s *store.Store) (release func()) {
	tb.Helper()
	held, free := make(chan struct{}), make(chan struct{})
	begin := sync.OnceFunc(func() { close(held) })
	s.Submit(context.Background(), store.LaneDrain, 0, func(*store.Tx) error {
		begin()
		<-free
		return nil
	}, func(error) {})
	<-held
	return func() { close(free) }
}

// submit hands a function over and returns where its outcome arrives.
func submit(s *store.Store, lane store.Lane, fn func(*store.Tx) error) <-chan error {
	outcome := make(chan error, 1)
	s.Submit(context.Background(), lane, 0, fn, func(err error) { outcome <- err })
	return outcome
}

func write(tb testing.TB, s *store.Store, fn func(*store.Tx) error) {
	tb.Helper()
	testkit.NoError(tb, s.Write(context.Background(), fn))
}

// atEnd returns a round that runs fn at the end of a batch.
func atEnd(s *store.Store, fn func(*store.Tx) error) store.Ending[string] {
	return store.NewEnding(s, func(tx *store.Tx, _ []string) error { return fn(tx) })
}

// add returns a function that inserts one item.
func add(name string) func(*store.Tx) error {
	return func(tx *store.Tx) error {
		insert(tx, name, nil)
		return nil
	}
}

func insert(tx *store.Tx, name string, content []byte) {
	tx.Exec(`INSERT INTO items (revision, name, content) VALUES (?, ?, ?)`, tx.NextRevision(), name, content)
}

// names returns the committed items in the order of their revisions.
func names(tb testing.TB, s *store.Store) []string {
	tb.Helper()
	var found []string
	err := s.Read(context.Background(), func(snap *store.Snapshot) (err error) {
		found, err = namesIn(snap)
		return err
	})
	testkit.NoError(tb, err)
	return found
}

func namesIn(q store.Querier) ([]string, error) {
	var found []string
	rows := q.Query(`SELECT name FROM items ORDER BY revision`)
	defer rows.Close()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		found = append(found, name)
	}
	return found, rows.Err()
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// wantFault checks the kind and the reason of an error, and returns its message.
func wantFault(tb testing.TB, err error, kind fault.Kind, reason string) string {
	tb.Helper()
	var f *fault.Error
	if !errors.As(err, &f) || f.Kind != kind || f.Reason != reason {
		tb.Fatalf("got error %v, want kind %d with reason %s", err, kind, reason)
	}
	return f.Message
}

package postgres_test

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"brokerd/internal/fault"
	"brokerd/internal/postgrestest"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

// A commit that the server refuses leaves the connection ready for the next transaction.
func TestCommit_ThatTheServerRefuses(t *testing.T) {
	t.Parallel()
	url := postgrestest.Database(t)
	s := open(t, url)
	testkit.NoError(t, add(s, "before"))
	admin(t, url, `
		CREATE FUNCTION fail() RETURNS TRIGGER LANGUAGE plpgsql AS 'BEGIN RAISE disk_full; END';
		CREATE TRIGGER refuse BEFORE UPDATE ON meta FOR EACH ROW EXECUTE FUNCTION fail()`)
	for range 3 {
		wantReason(t, add(s, "lost"), fault.Unavailable, "DISK_FULL")
		wantNames(t, s, "before")
	}
	admin(t, url, `DROP FUNCTION fail CASCADE`)
	testkit.NoError(t, add(s, "after"))
	wantNames(t, s, "before", "after")
}

// A broker that has lost its lock commits nothing once another one has begun to write.
func TestCommit_FailsUnderAnotherEpoch(t *testing.T) {
	t.Parallel()
	address := postgrestest.Database(t)
	var fatal atomic.Pointer[error]
	s := open(t, address, func(o *store.Options) { o.Fatal = func(err error) { fatal.Store(&err) } })
	testkit.NoError(t, add(s, "before"))
	admin(t, address, `UPDATE meta SET epoch = epoch + 1`)
	if err := add(s, "deposed"); err == nil {
		t.Error("a deposed broker has confirmed a change")
	}
	if err := fatal.Load(); err == nil || !errors.Is(*err, store.ErrUnknown) {
		t.Error("the broker goes on")
	}
	wantNames(t, s, "before")
}

// Where the answer to a commit is lost, the store finds out what has become of the transaction. It makes one again that
// was not committed, unless something of it was sent before, on which its function may rely.
func TestCommit_WhoseAnswerIsLost(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		arrives bool // the commit itself does
		reads   bool // the function reads what it has written
		want    []string
	}{
		"is confirmed if it was made":           {true, false, []string{"before", "unsure", "after"}},
		"is confirmed if it was made in parts":  {true, true, []string{"before", "unsure", "after"}},
		"is made again if it was not":           {false, false, []string{"before", "unsure", "after"}},
		"fails if parts of it were sent before": {false, true, []string{"before", "after"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := postgrestest.Database(t)
			p := postgrestest.NewProxy(t, address)
			s := open(t, p.URL)
			testkit.NoError(t, add(s, "before"))
			commits := func() int {
				n, err := strconv.Atoi(admin(t, address, `SELECT commits FROM meta`)[0])
				testkit.NoError(t, err)
				return n
			}
			made := commits()
			p.CutAtCommit(c.arrives, "unsure")
			err := s.Write(t.Context(), func(tx *store.Tx) error {
				tx.Exec(insertItem, "unsure")
				if !c.reads {
					return nil
				}
				var n int
				return tx.QueryRow(`SELECT count(*) FROM items`).Scan(&n)
			})
			if c.arrives || !c.reads {
				testkit.NoError(t, err)
			} else {
				wantReason(t, err, fault.Unavailable, "DATABASE_LOST")
			}
			// The answer to a second commit says that a synchronous standby has the first.
			if c.arrives && commits() != made+2 {
				t.Errorf("%d commits were made, want 2", commits()-made)
			}
			testkit.NoError(t, add(s, "after"))
			wantNames(t, s, c.want...)
		})
	}
}

// While another program has an old snapshot, the server keeps each version of a row. A commit and a read look at none of
// those of the row of meta.
func TestCommit_ReadsNothingThatAnOldSnapshotKeeps(t *testing.T) {
	t.Parallel()
	url := postgrestest.Database(t)
	s := open(t, url)
	other, err := pgx.Connect(t.Context(), url)
	testkit.NoError(t, err)
	defer func() { testkit.NoError(t, other.Close(context.Background())) }()
	_, err = other.Exec(t.Context(), `BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT revision FROM meta`)
	testkit.NoError(t, err)
	flush := func(q store.Querier) error {
		return q.QueryRow(`SELECT CAST(pg_stat_force_next_flush() AS TEXT)`).Scan(new(string))
	}
	// pages returns how many pages of meta and its index the broker has read.
	pages := func() int {
		testkit.NoError(t, s.Write(t.Context(), func(tx *store.Tx) error { return flush(tx) }))
		testkit.NoError(t, s.Read(t.Context(), func(snap *store.Snapshot) error { return flush(snap) }))
		n, err := strconv.Atoi(admin(t, url, `
			SELECT heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit FROM pg_statio_user_tables
			WHERE relname = 'meta'`)[0])
		testkit.NoError(t, err)
		return n
	}
	const some = 50
	use := func() (commits, reads int) {
		before := pages()
		for range some {
			testkit.NoError(t, add(s, "a"))
		}
		between := pages()
		for range some {
			testkit.NoError(t, s.Read(t.Context(), func(*store.Snapshot) error { return nil }))
		}
		return between - before, pages() - between
	}
	commits, reads := use()
	for range 2000 {
		testkit.NoError(t, add(s, "a"))
	}
	if later, afterwards := use(); later > 2*commits || afterwards > 2*reads {
		t.Errorf("%d commits and reads look at %d and %d pages; behind 2,000 commits at %d and %d",
			some, commits, reads, later, afterwards)
	}
}

// A read shows nothing older than what was confirmed, also when the server has lost it in a failover.
func TestRead_RefusesADatabaseThatHasLostCommits(t *testing.T) {
	t.Parallel()
	url := postgrestest.Database(t)
	s := open(t, url)
	testkit.NoError(t, add(s, "a", "b"))
	admin(t, url, `UPDATE meta SET revision = revision - 1`)
	err := s.Read(t.Context(), func(*store.Snapshot) error { return nil })
	wantReason(t, err, fault.Unavailable, "COMMITS_LOST")
}

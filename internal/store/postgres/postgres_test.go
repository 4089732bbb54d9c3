package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jonboulle/clockwork"
	"go.uber.org/goleak"

	"brokerd/internal/fault"
	"brokerd/internal/postgrestest"
	"brokerd/internal/store"
	"brokerd/internal/store/postgres"
	"brokerd/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(postgrestest.Tests{M: m}) }

var items = []store.Migration{{Name: "test/001_items", SQL: `
CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT NOT NULL, content BLOB, share REAL);
CREATE TABLE parts (item INTEGER NOT NULL REFERENCES items (id), name TEXT NOT NULL, PRIMARY KEY (item, name)) WITHOUT ROWID;
`}}

const (
	insertItem  = `INSERT INTO items (name) VALUES (?)`
	insertPart  = `INSERT INTO parts (item, name) VALUES (?, ?)`
	selectNames = `SELECT name FROM items ORDER BY id`
)

// try opens a store on a database.
func try(t *testing.T, url string, options ...func(*store.Options)) (*store.Store, error) {
	t.Helper()
	o := store.Options{Dir: t.TempDir(), Clock: clockwork.NewRealClock(), Migrations: items, Fatal: func(err error) { t.Error("fatal:", err) }}
	db, err := postgres.New(url, "", o.Clock)
	if err != nil {
		return nil, err
	}
	o.Database = db
	for _, set := range options {
		set(&o)
	}
	s, err := store.Open(t.Context(), o)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { testkit.NoError(t, s.Close()) })
	return s, nil
}

func open(t *testing.T, url string, options ...func(*store.Options)) *store.Store {
	t.Helper()
	s, err := try(t, url, options...)
	testkit.NoError(t, err)
	return s
}

// admin runs statements on another connection, and returns the first column of the last one's rows.
func admin(t *testing.T, url, text string) (column []string) {
	t.Helper()
	db, err := pgx.Connect(t.Context(), url)
	testkit.NoError(t, err)
	defer func() { testkit.NoError(t, db.Close(context.Background())) }()
	results, err := db.PgConn().Exec(t.Context(), text).ReadAll()
	testkit.NoError(t, err)
	for _, row := range results[len(results)-1].Rows {
		column = append(column, string(row[0]))
	}
	return column
}

func add(s *store.Store, names ...string) error {
	return s.Write(context.Background(), func(tx *store.Tx) error {
		for _, name := range names {
			tx.NextRevision()
			tx.Exec(insertItem, name)
		}
		return nil
	})
}

func names(t *testing.T, s *store.Store) (all []string) {
	t.Helper()
	err := s.Read(t.Context(), func(snap *store.Snapshot) (err error) {
		all, err = store.Collect(snap.Query(selectNames), func(r *store.Rows) (name string, err error) { return name, r.Scan(&name) })
		return err
	})
	testkit.NoError(t, err)
	return all
}

func wantNames(t *testing.T, s *store.Store, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, names(t, s)); diff != "" {
		t.Error(diff)
	}
}

func wantReason(t *testing.T, err error, kind fault.Kind, reason string) {
	t.Helper()
	var f *fault.Error
	if !errors.As(err, &f) || f.Kind != kind || f.Reason != reason {
		t.Fatalf("the error is %v, not %s", err, reason)
	}
}

func TestStore_KeepsWhatItHasConfirmed(t *testing.T) {
	t.Parallel()
	url := postgrestest.Database(t)
	s := open(t, url)
	testkit.NoError(t, add(s, "b", "a"))
	instance, revision := s.InstanceID(), s.Revision()
	testkit.NoError(t, s.Close())

	s = open(t, url)
	wantNames(t, s, "b", "a")
	if s.InstanceID() != instance || s.Revision() != revision || revision != 2 || !s.LastRun().Clean {
		t.Errorf("instance %d, revision %d, last run %+v", s.InstanceID(), s.Revision(), s.LastRun())
	}
	if got := admin(t, url, `SELECT epoch FROM meta`); got[0] != "2" {
		t.Error("the epoch is", got)
	}
}

// Every value comes back as it was stored.
func TestStore_KeepsEveryKindOfValue(t *testing.T) {
	t.Parallel()
	s := open(t, postgrestest.Database(t))
	type row struct {
		Name    string
		Content []byte
		Share   float64
		Null    bool
	}
	want := []row{
		{Name: "", Content: []byte{}, Share: -1.5}, {Name: "wörter", Content: []byte("with\x00zero"), Share: math.Inf(1)},
		{Name: strings.Repeat("large", 1<<18), Content: []byte(strings.Repeat("\xff", 1<<20)), Share: math.MaxFloat64}, {Name: "null", Null: true},
	}
	const insert = `INSERT INTO items (name, content, share) VALUES (?, ?, ?)`
	testkit.NoError(t, s.Write(t.Context(), func(tx *store.Tx) error {
		for _, r := range want {
			if r.Null {
				tx.Exec(insert, r.Name, nil, nil)
			} else {
				tx.Exec(insert, r.Name, r.Content, r.Share)
			}
		}
		return nil
	}))
	var got []row
	testkit.NoError(t, s.Read(t.Context(), func(snap *store.Snapshot) (err error) {
		got, err = store.Collect(snap.Query(`SELECT name, content, share, content IS NULL FROM items ORDER BY id`),
			func(r *store.Rows) (v row, err error) { return v, r.Scan(&v.Name, &v.Content, &v.Share, &v.Null) })
		return err
	}))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	var sum, half int64
	testkit.NoError(t, s.Read(t.Context(), func(snap *store.Snapshot) error {
		return snap.QueryRow(`SELECT sum(id), 7 / 2 FROM items WHERE id IN (SELECT CAST(value AS BIGINT) FROM json_each(?))`, "[1, 3]").Scan(&sum, &half)
	}))
	if sum != 4 || half != 3 {
		t.Error("sum", sum, "half", half)
	}
	// Integers have 64 bits, also beside small numbers; a position in a text has fewer.
	var big int64
	var part string
	testkit.NoError(t, s.Read(t.Context(), func(snap *store.Snapshot) error {
		return snap.QueryRow(`SELECT ? - CASE WHEN id > ? THEN 1 ELSE 0 END, substr(name, ?) FROM items WHERE id = 2`,
			math.MaxInt64, 1, 5).Scan(&big, &part)
	}))
	if big != math.MaxInt64-1 || part != "er" {
		t.Error(big, part)
	}
}

// Each function fails alone, however its statement fails, and leaves nothing.
func TestStore_AFunctionFailsAlone(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(*store.Tx) error{
		"by its own error": func(tx *store.Tx) error {
			tx.Exec(insertItem, "failed")
			return errors.New("no")
		},
		"by its own error after a read": func(tx *store.Tx) error {
			tx.Exec(insertItem, "failed")
			var n int
			testkit.NoError(t, tx.QueryRow(`SELECT count(*) FROM items`).Scan(&n))
			return errors.New("no")
		},
		"by a statement at its end": func(tx *store.Tx) error {
			tx.Exec(insertItem, "failed")
			tx.Exec(insertPart, 4711, "of nothing")
			return nil
		},
		"by a statement at once": func(tx *store.Tx) error {
			tx.Exec(insertItem, "failed")
			_, err := tx.ExecCount(insertPart, 4711, "of nothing")
			return err
		},
		"by a read": func(tx *store.Tx) error {
			var n int
			return tx.QueryRow(`SELECT 1 / (? - 1)`, 1).Scan(&n)
		},
		"by a read whose error it hides": func(tx *store.Tx) error {
			var n int
			_ = tx.QueryRow(`SELECT 1 / (? - 1)`, 1).Scan(&n)
			tx.Exec(insertItem, "failed")
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, postgrestest.Database(t))
			started, release := make(chan struct{}), make(chan struct{})
			done := make(chan error, 1)
			s.Submit(t.Context(), store.LaneFill, 0, func(*store.Tx) error { // so that the three share a batch
				select {
				case <-started:
				default:
					close(started)
					<-release
				}
				return nil
			}, func(error) {})
			<-started
			answers := []chan error{make(chan error, 1), make(chan error, 1)}
			one := func(name string) func(*store.Tx) error {
				return func(tx *store.Tx) error { tx.Exec(insertItem, name); return nil }
			}
			s.Submit(t.Context(), store.LaneFill, 0, one("before"), func(err error) { answers[0] <- err })
			s.Submit(t.Context(), store.LaneFill, 0, fail, func(err error) { done <- err })
			s.Submit(t.Context(), store.LaneFill, 0, one("after"), func(err error) { answers[1] <- err })
			close(release)
			for _, a := range answers {
				testkit.NoError(t, <-a)
			}
			if err := <-done; err == nil {
				t.Error("the function has not failed")
			}
			wantNames(t, s, "before", "after")
		})
	}
}

// The text of a statement may leave the type of an argument open. Its type then is that of the value, which may be
// another one the next time, and the transaction goes on.
func TestQuery_LeavesTheTypeOfAnArgumentOpen(t *testing.T) {
	t.Parallel()
	s := open(t, postgrestest.Database(t))
	const query = `SELECT name FROM items WHERE id <= 2 AND (? IS NULL OR name = CAST(? AS TEXT))`
	testkit.NoError(t, add(s, "a", "7"))
	cases := []struct {
		arg  any
		want int
	}{{nil, 2}, {"a", 1}, {int64(7), 1}, {"a", 1}, {nil, 2}}
	test := func(q store.Querier, from int) error {
		var first string
		if err := q.QueryRow(selectNames).Scan(&first); err != nil { // the transaction has begun
			return err
		}
		for _, c := range cases[from:] {
			all, err := store.Collect(q.Query(query, c.arg, c.arg), func(r *store.Rows) (name string, err error) { return name, r.Scan(&name) })
			if err != nil || len(all) != c.want {
				return fmt.Errorf("%v: %v, %w", c.arg, all, err)
			}
		}
		return nil
	}
	for from := range cases { // each time on another connection
		testkit.NoError(t, s.Read(t.Context(), func(snap *store.Snapshot) error { return test(snap, from) }))
	}
	testkit.NoError(t, s.Write(t.Context(), func(tx *store.Tx) error {
		tx.Exec(insertItem, "b")
		return test(tx, 0)
	}))
	wantNames(t, s, "a", "7", "b")
}

// A table gives a row the next key, also after rows that have brought their own.
func TestStore_KeysGoOnAfterThoseThatRowsBring(t *testing.T) {
	t.Parallel()
	url := postgrestest.Database(t)
	s := open(t, url)
	testkit.NoError(t, s.Write(t.Context(), func(tx *store.Tx) error {
		tx.Exec(`INSERT INTO items (id, name) VALUES (7, 'own')`)
		return nil
	}))
	testkit.NoError(t, s.Close())
	s = open(t, url)
	testkit.NoError(t, add(s, "next"))
	if got := admin(t, url, `SELECT max(id) FROM items`); got[0] != "8" {
		t.Error("the next key is", got)
	}
}

func TestOpen_RefusesAnUnfitDatabase(t *testing.T) {
	t.Parallel()
	t.Run("that another broker writes to", func(t *testing.T) {
		t.Parallel()
		url := postgrestest.Database(t)
		open(t, url)
		_, err := try(t, url)
		wantReason(t, err, fault.Precondition, "IN_USE")
	})
	t.Run("that is somebody else's", func(t *testing.T) {
		t.Parallel()
		url := postgrestest.Database(t)
		admin(t, url, `CREATE TABLE theirs (id INTEGER)`)
		_, err := try(t, url)
		wantReason(t, err, fault.Precondition, "FOREIGN_DATABASE")
	})
	t.Run("that sorts texts as a language does", func(t *testing.T) {
		t.Parallel()
		_, err := try(t, postgrestest.Database(t, `TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'de' LOCALE 'C'`))
		wantReason(t, err, fault.Precondition, "WRONG_COLLATION")
	})
	t.Run("that a newer broker has made", func(t *testing.T) {
		t.Parallel()
		url := postgrestest.Database(t)
		s := open(t, url)
		testkit.NoError(t, s.Close())
		_, err := try(t, url, func(o *store.Options) { o.Migrations = nil })
		wantReason(t, err, fault.Precondition, "NEWER_DATABASE")
	})
	t.Run("that was made with another migration", func(t *testing.T) {
		t.Parallel()
		url := postgrestest.Database(t)
		with := func(sql, server string) func(*store.Options) {
			return func(o *store.Options) { o.Migrations = []store.Migration{{Name: "test/001", SQL: sql, Server: server}} }
		}
		own := `CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT);`
		testkit.NoError(t, open(t, url, with(`SELECT 1;`, own)).Close())
		_, err := try(t, url, with(`SELECT 1;`, own+` CREATE INDEX items_name ON items (name);`))
		wantReason(t, err, fault.Precondition, "CHANGED_MIGRATION")
		testkit.NoError(t, open(t, url, with(`SELECT 2;`, own)).Close()) // which has not run here
	})
	t.Run("behind a pooler of transactions", func(t *testing.T) {
		t.Parallel()
		address := postgrestest.Database(t)
		pool := newPooler(t, address)
		_, err := try(t, pool.url)
		wantReason(t, err, fault.Precondition, "TRANSACTION_POOLER")
	})
	t.Run("that is not there", func(t *testing.T) {
		t.Parallel()
		u, err := url.Parse(postgrestest.Database(t))
		testkit.NoError(t, err)
		u.Path, u.User = "/missing", url.UserPassword("broker", "secret")
		_, err = try(t, u.String())
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Error(err)
		}
		_, err = try(t, "postgres://broker:secret@host:port/")
		if fault.KindOf(err) != fault.Invalid || strings.Contains(err.Error(), "secret") {
			t.Error(err)
		}
	})
}

const endBackends = `
SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = 'brokerd'`

// Connections that the server has ended between two transactions are not missed.
func TestConnection_IsMadeAgainBetweenTransactions(t *testing.T) {
	t.Parallel()
	url := postgrestest.Database(t)
	s := open(t, url)
	testkit.NoError(t, add(s, "before"))
	wantNames(t, s, "before")
	for range 3 {
		if ended := admin(t, url, endBackends); len(ended) < 2 {
			t.Errorf("%d backends were ended", len(ended))
		}
		testkit.NoError(t, s.Drain(t.Context(), func(tx *store.Tx) error {
			var n int
			return tx.QueryRow(`SELECT count(*) FROM items`).Scan(&n)
		}))
		wantNames(t, s, "before")
	}
	testkit.NoError(t, add(s, "after"))
	wantNames(t, s, "before", "after")
}

// A transaction whose connection is lost changes nothing, and the next one succeeds.
func TestConnection_LostInATransaction(t *testing.T) {
	t.Parallel()
	url := postgrestest.Database(t)
	s := open(t, url)
	err := s.Write(t.Context(), func(tx *store.Tx) error {
		var n int
		tx.Exec(insertItem, "lost")
		if err := tx.QueryRow(`SELECT count(*) FROM items`).Scan(&n); err != nil {
			return err
		}
		admin(t, url, endBackends)
		return tx.QueryRow(`SELECT count(*) FROM items`).Scan(&n)
	})
	wantReason(t, err, fault.Unavailable, "DATABASE_LOST")
	testkit.NoError(t, add(s, "after"))
	wantNames(t, s, "after")
	testkit.NoError(t, s.Halted())
}

// A statement that fails together with the commit refuses its function, and the next one goes on.
func TestCommit_WithAStatementThatFails(t *testing.T) {
	t.Parallel()
	s := open(t, postgrestest.Database(t))
	testkit.NoError(t, add(s, "before"))
	together := func(name string, part any) error {
		return s.Write(t.Context(), func(tx *store.Tx) error {
			tx.Exec(insertItem, name)
			tx.Exec(insertPart, part, "of "+name)
			return nil
		})
	}
	testkit.NoError(t, together("sound", 1)) // prepares the statements
	if err := together("refused", 4711); err == nil {
		t.Error("an item without a parent was added")
	}
	testkit.NoError(t, together("after", 1))
	wantNames(t, s, "before", "sound", "after")
}

func TestStore_SaysWhyItCannotWrite(t *testing.T) {
	t.Parallel()
	url := postgrestest.Database(t)
	s := open(t, url)
	testkit.NoError(t, add(s, "before"))
	name := admin(t, url, `SELECT current_database()`)[0]
	admin(t, url, `ALTER DATABASE `+name+` SET default_transaction_read_only = on`)
	admin(t, url, endBackends)
	wantReason(t, add(s, "refused"), fault.Unavailable, "READ_ONLY")
	wantReason(t, s.Halted(), fault.Unavailable, "READ_ONLY")
	wantNames(t, s, "before")
	admin(t, url, `BEGIN READ WRITE; ALTER DATABASE `+name+` RESET default_transaction_read_only; COMMIT`)
	admin(t, url, endBackends)
	testkit.NoError(t, add(s, "after"))
	wantNames(t, s, "before", "after")

	_, err := s.Backup(t.Context(), t.TempDir()+"/backup", nil, nil)
	wantReason(t, err, fault.Precondition, "ON_SERVER")
	problems, err := s.Check(t.Context())
	if err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}
}

// A transaction that another program leaves open holds no change up.
func TestStore_WritesBesideAnOpenTransaction(t *testing.T) {
	t.Parallel()
	url := postgrestest.Database(t)
	s := open(t, url)
	db, err := pgx.Connect(t.Context(), url)
	testkit.NoError(t, err)
	defer func() { testkit.NoError(t, db.Close(context.Background())) }()
	_, err = db.Exec(t.Context(), `BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT * FROM items`)
	testkit.NoError(t, err)
	begun := time.Now()
	for i := range 20 {
		testkit.NoError(t, add(s, fmt.Sprint(i)))
	}
	if took := time.Since(begun); took > testkit.Patience {
		t.Error("20 changes took", took)
	}
}

// Readers connect when they are needed, and those that follow each other share a connection.
func TestConnection_OfReadersIsMadeOnDemand(t *testing.T) {
	t.Parallel()
	url := postgrestest.Database(t)
	s := open(t, url)
	wantConnections := func(when, want string) {
		t.Helper()
		got := admin(t, url, `
			SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'brokerd'`)[0]
		if got != want {
			t.Errorf("%s connections %s, want %s", got, when, want)
		}
	}
	wantConnections("at the start", "1")
	for range 5 {
		names(t, s)
	}
	wantConnections("behind five reads", "2")
	testkit.NoError(t, s.Read(t.Context(), func(*store.Snapshot) error {
		names(t, s)
		return nil
	}))
	wantConnections("behind two reads at once", "3")
}

package work_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"brokerd/internal/store"
	"brokerd/internal/testkit"
	"brokerd/internal/work"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const things = `CREATE TABLE things (id INTEGER PRIMARY KEY, state INTEGER NOT NULL, due INTEGER)`

func open(t *testing.T, clock clockwork.Clock) *store.Store {
	t.Helper()
	return testkit.Store(t, t.TempDir(), clock, work.Migrations(), []store.Migration{{Name: "things", SQL: things}})
}

func write(t *testing.T, s *store.Store, fn func(tx *store.Tx) error) {
	t.Helper()
	if err := s.Write(t.Context(), fn); err != nil {
		t.Fatal(err)
	}
}

func count(t *testing.T, s *store.Store, query string, args ...any) (n int) {
	t.Helper()
	err := s.Read(t.Context(), func(snap *store.Snapshot) error { return snap.QueryRow(query, args...).Scan(&n) })
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// pages is the work of a test's backlog: each page changes three things behind the last one.
type pages struct {
	done chan work.Chore // the chores after each page
	fail string          // the name of chores that fail
}

func (p *pages) page(tx *store.Tx, c *work.Chore) (bool, error) {
	if c.Name == p.fail {
		return false, errors.New("damaged")
	}
	ids, err := store.Collect(tx.Query(`SELECT id FROM things WHERE id > ? AND id <= ? ORDER BY id LIMIT 3`, c.After, c.Bound),
		func(r *store.Rows) (id int64, err error) { return id, r.Scan(&id) })
	if err != nil {
		return false, err
	}
	for _, id := range ids {
		tx.Exec(`UPDATE things SET state = state + 1 WHERE id = ?`, id)
		c.After = id
	}
	after := *c
	tx.OnCommit(func() { p.done <- after })
	return len(ids) == 3, nil
}

func (p *pages) await(t *testing.T, name string, after int64) {
	t.Helper()
	for {
		select {
		case c := <-p.done:
			if c.Name == name && c.After >= after {
				return
			}
		case <-time.After(testkit.Patience):
			t.Fatalf("no page of %s reached %d", name, after)
		}
	}
}

func fill(t *testing.T, s *store.Store, n int) {
	t.Helper()
	write(t, s, func(tx *store.Tx) error {
		for i := range n {
			tx.Exec(`INSERT INTO things VALUES (?, 0, NULL)`, i+1)
		}
		return nil
	})
}

func TestBacklog_ResumesAfterARestartWhereItStopped(t *testing.T) {
	t.Parallel()
	clock := clockwork.NewFakeClock()
	s := open(t, clock)
	fill(t, s, 20)
	p := &pages{done: make(chan work.Chore, 100)}
	first := work.NewBacklog(s, "things", clock, zap.NewNop(), p.page) // never started: the program ends here
	var more bool
	write(t, s, func(tx *store.Tx) (err error) {
		more, err = first.Do(tx, work.Chore{Kind: "k", Session: 1, Name: "a", Bound: 10})
		return err
	})
	if !more || count(t, s, `SELECT count(*) FROM things WHERE state = 1`) != 3 {
		t.Fatal("the transaction of the change has no first page, or the whole chore")
	}
	second := work.NewBacklog(s, "things", clock, zap.NewNop(), p.page)
	if err := second.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer second.Stop()
	p.await(t, "a", 10)
	if n := count(t, s, `SELECT count(*) FROM things WHERE state = 1 AND id <= 10`); n != 10 {
		t.Errorf("%d of 10 things are changed once", n)
	}
	if n := count(t, s, `SELECT count(*) FROM things WHERE state > 0`); n != 10 {
		t.Errorf("%d things are changed, want 10", n)
	}
	second.Stop() // after the commit of the page
	if n := count(t, s, `SELECT count(*) FROM work_backlog`); n != 0 {
		t.Errorf("%d chores are left", n)
	}
}

func TestBacklog_FinishDoesAllPagesOfOneNameAlone(t *testing.T) {
	t.Parallel()
	s := open(t, clockwork.NewFakeClock())
	fill(t, s, 10)
	p := &pages{done: make(chan work.Chore, 100)}
	b := work.NewBacklog(s, "things", clockwork.NewFakeClock(), zap.NewNop(), p.page) // not started
	write(t, s, func(tx *store.Tx) error {
		b.Add(tx, work.Chore{Kind: "k", Session: 1, Name: "a", Bound: 5})
		b.Add(tx, work.Chore{Kind: "k", Session: 1, Name: "b", Bound: 9})
		return nil
	})
	bound, pending := int64(0), false
	look := func(name string) {
		t.Helper()
		err := s.Read(t.Context(), func(snap *store.Snapshot) (err error) {
			bound, pending, err = b.Pending(snap, "k", 1, name)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if look("a"); !pending || bound != 5 {
		t.Errorf("the chore of a is pending: %t, with the bound %d", pending, bound)
	}
	if err := b.Finish(t.Context(), "k", 1, "a"); err != nil {
		t.Fatal(err)
	}
	if look("a"); pending {
		t.Error("the chore of a is pending after Finish")
	}
	if look("b"); !pending {
		t.Error("Finish has done the chore of another name")
	}
	if n := count(t, s, `SELECT count(*) FROM things WHERE state = 1`); n != 5 {
		t.Errorf("%d things are changed, want 5", n)
	}
}

func TestBacklog_AChoreThatFailsStopsNoOther(t *testing.T) {
	t.Parallel()
	clock := clockwork.NewFakeClock()
	s := open(t, clock)
	fill(t, s, 10)
	p := &pages{done: make(chan work.Chore, 100), fail: "broken"}
	b := work.NewBacklog(s, "things", clock, zap.NewNop(), p.page)
	if err := b.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer b.Stop()
	write(t, s, func(tx *store.Tx) error {
		b.Add(tx, work.Chore{Kind: "k", Name: "broken", Bound: 9})
		b.Add(tx, work.Chore{Kind: "k", Name: "b", Bound: 9})
		return nil
	})
	p.await(t, "b", 9)
	if n := count(t, s, `SELECT count(*) FROM work_backlog WHERE name = 'broken'`); n != 1 {
		t.Errorf("%d chores that fail are kept, want 1", n)
	}
}

func TestItemCalendar_AnItemThatFailsDelaysNoOther(t *testing.T) {
	t.Parallel()
	clock := clockwork.NewFakeClock()
	s := open(t, clock)
	const damaged, items = 3, 250
	write(t, s, func(tx *store.Tx) error {
		for i := range items {
			tx.Exec(`INSERT INTO things VALUES (?, 0, ?)`, i+1, clock.Now().Add(time.Duration(i)*time.Millisecond))
		}
		return nil
	})
	tries := make(chan int64, 10*items)
	list := func(q store.Querier, limit int) ([]work.Entry[int64], error) {
		return store.Collect(q.Query(`SELECT id, due FROM things WHERE due IS NOT NULL ORDER BY due LIMIT ?`, limit),
			func(r *store.Rows) (e work.Entry[int64], err error) { return e, r.Scan(&e.Key, &e.At) })
	}
	do := func(tx *store.Tx, id int64) error {
		if id == damaged {
			tries <- id
			return errors.New("damaged")
		}
		tx.Exec(`UPDATE things SET state = state + 1, due = NULL WHERE id = ?`, id)
		tx.OnCommit(func() { tries <- id })
		return nil
	}
	c := work.NewItemCalendar(s, clock, zap.NewNop(), list, do)
	clock.Advance(time.Second)
	c.Start()
	defer c.Stop()
	var changed []int64
	for len(changed) < items-1 {
		select {
		case id := <-tries:
			if id != damaged {
				changed = append(changed, id)
			}
		case <-time.After(testkit.Patience):
			t.Fatalf("only %d items are changed", len(changed))
		}
	}
	slices.Sort(changed)
	if len(slices.Compact(changed)) != items-1 {
		t.Error("an item is changed twice")
	}
	// It tries the damaged item again, at growing intervals, and nothing in between.
	for pause := time.Second; pause < 10*time.Second; pause *= 2 {
		for len(tries) > 0 {
			<-tries
		}
		if err := clock.BlockUntilContext(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		for len(tries) > 0 {
			<-tries
		}
		clock.Advance(pause)
		if id := <-tries; id != damaged {
			t.Errorf("item %d is changed again", id)
		}
	}
}

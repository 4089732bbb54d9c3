package store_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jonboulle/clockwork"

	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

var errRefused = errors.New("refused")

func TestWrite_RefusedFunctionUndoesOnlyItself(t *testing.T) {
	t.Parallel()
	s := open(t)
	release := hold(t, s)
	first := submit(s, store.LaneFill, add("first"))
	refused := submit(s, store.LaneFill, func(tx *store.Tx) error {
		insert(tx, "refused", nil)
		tx.Exec(`DELETE FROM items WHERE name = ?`, "first")
		return errRefused
	})
	last := submit(s, store.LaneFill, add("last"))
	release()
	for _, outcome := range []<-chan error{first, last} {
		if err := <-outcome; err != nil {
			t.Error(err)
		}
	}
	if err := <-refused; !errors.Is(err, errRefused) {
		t.Errorf("got %v, want the function's own error", err)
	}
	if diff := cmp.Diff([]string{"first", "last"}, names(t, s)); diff != "" {
		t.Error(diff)
	}
	if n := s.Stats().Commits; n != 1 {
		t.Errorf("%d commits, want one batch", n)
	}
}

func TestWrite_FunctionSeesTheEarlierOnesOfItsBatch(t *testing.T) {
	t.Parallel()
	s := open(t)
	takeIfFree := func(name string) func(*store.Tx) error {
		return func(tx *store.Tx) error {
			var taken int
			if err := tx.QueryRow(`SELECT count(*) FROM items`).Scan(&taken); err != nil {
				return err
			}
			if taken > 0 {
				return errRefused
			}
			insert(tx, name, nil)
			return nil
		}
	}
	release := hold(t, s)
	winner, loser := submit(s, store.LaneFill, takeIfFree("winner")), submit(s, store.LaneFill, takeIfFree("loser"))
	release()
	if err := <-winner; err != nil {
		t.Error(err)
	}
	if err := <-loser; !errors.Is(err, errRefused) {
		t.Errorf("got %v: two functions of one batch have both won", err)
	}
}

func TestWrite_UnchangedBatchWritesNothing(t *testing.T) {
	t.Parallel()
	dir, clock := t.TempDir(), clockwork.NewFakeClock()
	s := open(t, inFolder(dir), withClock(clock))
	write(t, s, add("one"))
	before, size := s.Stats(), logFile(t, dir)
	clock.Advance(time.Second)
	write(t, s, func(tx *store.Tx) error {
		_, err := namesIn(tx)
		return err
	})
	write(t, s, func(tx *store.Tx) error {
		tx.Exec(`DELETE FROM items WHERE name = ?`, "nobody")
		return nil
	})
	err := s.Write(context.Background(), func(tx *store.Tx) error {
		insert(tx, "refused", nil)
		return errRefused
	})
	if !errors.Is(err, errRefused) {
		t.Errorf("got %v", err)
	}
	if after := s.Stats(); after.Commits != before.Commits || after.Batches != before.Batches+3 {
		t.Errorf("batches went from %d to %d and commits from %d to %d", before.Batches, after.Batches, before.Commits, after.Commits)
	}
	if after := logFile(t, dir); after != size {
		t.Errorf("the log grew from %d to %d bytes", size, after)
	}
}

func TestWrite_CallerGoneBeforePickUpIsNotRun(t *testing.T) {
	t.Parallel()
	s := open(t)
	release := hold(t, s)
	ctx, cancel := context.WithCancel(context.Background())
	gone := make(chan error)
	go func() { gone <- s.Write(ctx, add("never")) }()
	for s.Stats().Waiting == 0 {
		runtime.Gosched() // it is on its way into the lane
	}
	cancel()
	err := <-gone
	wantFault(t, err, fault.Canceled, "CANCELED")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v does not wrap context.Canceled", err)
	}
	last := submit(s, store.LaneFill, add("last"))
	release()
	if err := <-last; err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"last"}, names(t, s)); diff != "" {
		t.Error(diff)
	}
}

func TestWrite_DeadlineBeforePickUpIsTold(t *testing.T) {
	t.Parallel()
	s := open(t)
	ctx, cancel := context.WithDeadline(context.Background(), time.Unix(0, 0))
	defer cancel()
	wantFault(t, s.Write(ctx, add("never")), fault.Deadline, "DEADLINE_EXCEEDED")
}

func TestWrite_CallerGoneAfterPickUpWaitsForTheOutcome(t *testing.T) {
	t.Parallel()
	s := open(t)
	ctx, cancel := context.WithCancel(context.Background())
	picked, proceed := make(chan struct{}), make(chan struct{})
	outcome := make(chan error, 1)
	go func() {
		outcome <- s.Write(ctx, func(tx *store.Tx) error {
			close(picked)
			<-proceed
			insert(tx, "done", nil)
			return nil
		})
	}()
	<-picked
	cancel()
	select {
	case err := <-outcome:
		t.Fatalf("Write returned %v while its function was running", err)
	case <-time.After(20 * time.Millisecond): // that nothing happens has no signal
	}
	close(proceed)
	if err := <-outcome; err != nil {
		t.Errorf("got %v for a function that was committed", err)
	}
	if diff := cmp.Diff([]string{"done"}, names(t, s)); diff != "" {
		t.Error(diff)
	}
}

func TestWrite_PanicIsUndoneAndKillsNobody(t *testing.T) {
	t.Parallel()
	s := open(t)
	err := s.Write(context.Background(), func(tx *store.Tx) error {
		insert(tx, "lost", nil)
		rows := tx.Query(`SELECT name FROM items`)
		if !rows.Next() {
			return rows.Err()
		}
		panic("a defect, with rows left open")
	})
	wantFault(t, err, fault.Internal, "PANIC")
	s.Submit(context.Background(), store.LaneFill, 0, add("submitted"), func(error) { panic("a defect in done") })
	write(t, s, func(tx *store.Tx) error {
		tx.OnCommit(func() { panic("a defect in OnCommit") })
		insert(tx, "kept", nil)
		return nil
	})
	if diff := cmp.Diff([]string{"submitted", "kept"}, names(t, s)); diff != "" {
		t.Error(diff)
	}
}

func TestWrite_RowsLeftOpenHarmNobody(t *testing.T) {
	t.Parallel()
	s := open(t)
	write(t, s, add("a"))
	write(t, s, add("b"))
	var forgotten *store.Rows
	write(t, s, func(tx *store.Tx) error {
		forgotten = tx.Query(`DELETE FROM items RETURNING name`)
		forgotten.Next()
		return forgotten.Err()
	})
	if forgotten.Next() {
		t.Error("rows go on after their function has returned")
	}
	if left := names(t, s); len(left) != 0 {
		t.Errorf("%v are left", left)
	}
}

func TestWrite_SameQueryMayRunWhileItsRowsAreRead(t *testing.T) {
	t.Parallel()
	s := open(t)
	write(t, s, add("a"))
	write(t, s, add("b"))
	var pairs []string
	write(t, s, func(tx *store.Tx) error {
		const query = `SELECT name FROM items ORDER BY revision`
		outer := tx.Query(query)
		for outer.Next() {
			inner := tx.Query(query)
			for inner.Next() {
				var x, y string
				if err := errors.Join(outer.Scan(&x), inner.Scan(&y)); err != nil {
					return err
				}
				pairs = append(pairs, x+y)
			}
			if err := inner.Err(); err != nil {
				return err
			}
		}
		return outer.Err()
	})
	if diff := cmp.Diff([]string{"aa", "ab", "ba", "bb"}, pairs); diff != "" {
		t.Error(diff)
	}
}

// TestExec_ErrorFailsItsFunctionWhateverItReturns lets a function go on after an error that it cannot see. It fails alone, and
// nothing that it does after the error reaches the database.
func TestExec_ErrorFailsItsFunctionWhateverItReturns(t *testing.T) {
	t.Parallel()
	for name, plant := range map[string]struct {
		query    string
		argument any
		want     string
	}{
		"no such table":               {`DELETE FROM missing WHERE name = ?`, "x", "no such table"},
		"a constraint":                {`INSERT INTO items (name) VALUES (?)`, nil, "NOT NULL"},
		"rows that nobody reads":      {`INSERT INTO items (name) VALUES (?) RETURNING name`, "x", "returns rows"},
		"an argument of another type": {`DELETE FROM items WHERE name = ?`, struct{}{}, "cannot store a struct {}"},
		"a missing argument":          {`DELETE FROM items WHERE name = ? AND revision = ?`, "x", "1 arguments"},
	} {
		for end, fn := range map[string]func() error{
			"returns nil":           func() error { return nil },
			"returns another error": func() error { return errRefused },
			"panics":                func() error { panic(errRefused) },
		} {
			t.Run(name+" "+end, func(t *testing.T) {
				s := open(t)
				release := hold(t, s)
				before := submit(s, store.LaneFill, add("before"))
				failed := submit(s, store.LaneFill, func(tx *store.Tx) error {
					tx.Exec(`DELETE FROM items`)
					tx.Exec(plant.query, plant.argument)
					tx.Exec(`INSERT INTO items (name) VALUES ('stray')`)
					if _, err := tx.ExecCount(`DELETE FROM items`); err == nil {
						t.Error("a statement was run after an error")
					}
					if _, err := namesIn(tx); err == nil {
						t.Error("a query was run after an error")
					}
					return fn()
				})
				after := submit(s, store.LaneFill, add("after"))
				release()
				for _, outcome := range []<-chan error{before, after} {
					if err := <-outcome; err != nil {
						t.Error(err)
					}
				}
				if err := <-failed; err == nil || !strings.Contains(err.Error(), plant.want) || fault.KindOf(err) != fault.Internal {
					t.Errorf("got %v, want %q", err, plant.want)
				}
				if diff := cmp.Diff([]string{"before", "after"}, names(t, s)); diff != "" {
					t.Error(diff)
				}
			})
		}
	}
}

func TestTx_IsOfNoUseAfterItsFunction(t *testing.T) {
	t.Parallel()
	s := open(t)
	var kept *store.Tx
	write(t, s, func(tx *store.Tx) error { kept = tx; return nil })
	_, err := kept.ExecCount(`DELETE FROM items`)
	wantFault(t, err, fault.Internal, "TRANSACTION_OVER")
	wantFault(t, kept.QueryRow(`SELECT 1`).Scan(new(int)), fault.Internal, "TRANSACTION_OVER")
	defer func() {
		err, _ := recover().(error)
		wantFault(t, err, fault.Internal, "TRANSACTION_OVER")
	}()
	kept.Exec(`DELETE FROM items`)
}

// batches runs functions that all wait together and returns their names, with a bar after each commit.
func batches(t *testing.T, s *store.Store, submitAll func(note func(name string, fn func(*store.Tx) error) func(*store.Tx) error)) []string {
	t.Helper()
	var order []string
	var outcomes sync.WaitGroup
	bar := atEnd(s, func(tx *store.Tx) error {
		tx.OnCommit(func() { order = append(order, "|") })
		return nil
	})
	release := hold(t, s)
	submitAll(func(name string, fn func(*store.Tx) error) func(*store.Tx) error {
		return func(tx *store.Tx) error {
			order = append(order, name)
			bar.Note(tx, name, 0)
			return fn(tx)
		}
	})
	outcomes.Add(1)
	atEnd(s, nothing).Kick() // the last batch
	go func() {
		defer outcomes.Done()
		_ = s.Close()
	}()
	release()
	outcomes.Wait()
	return order
}

func nothing(*store.Tx) error { return nil }

func rows(n int) func(*store.Tx) error {
	return func(tx *store.Tx) error {
		for range n {
			insert(tx, "row", nil)
		}
		return nil
	}
}

func TestBatch_EndsAtAThousandRows(t *testing.T) {
	t.Parallel()
	s := open(t)
	order := batches(t, s, func(note func(string, func(*store.Tx) error) func(*store.Tx) error) {
		for i, n := range []int{499, 499, 2, 5, 1200, 1} {
			submit(s, store.LaneFill, note(fmt.Sprint(i), rows(n)))
		}
	})
	if diff := cmp.Diff([]string{"0", "1", "2", "|", "3", "4", "|", "5", "|"}, order); diff != "" {
		t.Error(diff)
	}
}

func TestBatch_EndsAfterFourMilliseconds(t *testing.T) {
	t.Parallel()
	clock := clockwork.NewFakeClock()
	s := open(t, withClock(clock))
	slow := func(d time.Duration) func(*store.Tx) error {
		return func(*store.Tx) error { clock.Advance(d); return nil }
	}
	order := batches(t, s, func(note func(string, func(*store.Tx) error) func(*store.Tx) error) {
		submit(s, store.LaneFill, note("0", slow(3*time.Millisecond)))
		submit(s, store.LaneFill, note("1", slow(time.Millisecond)))
		submit(s, store.LaneFill, note("2", nothing))
	})
	if diff := cmp.Diff([]string{"0", "1", "|", "2", "|"}, order); diff != "" {
		t.Error(diff)
	}
}

func TestDrain_GoesBeforeFillAndStarvesItNot(t *testing.T) {
	t.Parallel()
	s := open(t)
	order := batches(t, s, func(note func(string, func(*store.Tx) error) func(*store.Tx) error) {
		submit(s, store.LaneFill, note("fill 1", nothing))
		submit(s, store.LaneFill, note("fill 2", nothing))
		submit(s, store.LaneDrain, note("drain 1", rows(1000)))
		submit(s, store.LaneDrain, note("drain 2", rows(1000)))
		submit(s, store.LaneDrain, note("drain 3", nothing))
	})
	want := []string{"drain 1", "fill 1", "|", "drain 2", "fill 2", "|", "drain 3", "|"}
	if diff := cmp.Diff(want, order); diff != "" {
		t.Error(diff)
	}
}

func TestSubmit_KeepsTheOrderOfALane(t *testing.T) {
	t.Parallel()
	s := open(t)
	var want []string
	var last <-chan error
	for i := range 5000 {
		name := fmt.Sprint(i)
		want = append(want, name)
		last = submit(s, store.LaneFill, add(name))
	}
	testkit.NoError(t, <-last)
	if diff := cmp.Diff(want, names(t, s)); diff != "" {
		t.Error(diff)
	}
}

func TestWrite_ManyAtOnceLoseNothing(t *testing.T) {
	t.Parallel()
	s := open(t, withClock(clockwork.NewRealClock()))
	write(t, s, add("0"))
	const writers, each = 16, 100
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for i := range each {
				run := s.Write
				if (w+i)%2 == 0 {
					run = s.Drain
				}
				err := run(context.Background(), func(tx *store.Tx) error {
					var count int
					if err := tx.QueryRow(`SELECT CAST(name AS INTEGER) FROM items`).Scan(&count); err != nil {
						return err
					}
					tx.Exec(`UPDATE items SET name = ?`, fmt.Sprint(count+1))
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
		all.Go(func() {
			for range each {
				err := s.Read(context.Background(), func(snap *store.Snapshot) error {
					_, err := namesIn(snap)
					return err
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if diff := cmp.Diff([]string{fmt.Sprint(writers * each)}, names(t, s)); diff != "" {
		t.Error(diff)
	}
}

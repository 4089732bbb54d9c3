package store_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jonboulle/clockwork"

	"brokerd/internal/fault"
	"brokerd/internal/store"
)

func TestOnCommit_RunsInOrderAfterTheCommitAndBeforeAnyAnswer(t *testing.T) {
	t.Parallel()
	s := open(t)
	var order []string
	note := func(name string) func(*store.Tx) error {
		return func(tx *store.Tx) error {
			tx.OnCommit(func() {
				order = append(order, name)
				if diff := cmp.Diff([]string{"a", "b"}, names(t, s)); diff != "" {
					t.Errorf("on commit of %s: %s", name, diff)
				}
			})
			insert(tx, name, nil)
			return nil
		}
	}
	release := hold(t, s)
	s.Submit(context.Background(), store.LaneFill, 0, note("a"), func(err error) { order = append(order, "answer a") })
	s.Submit(context.Background(), store.LaneFill, 0, note("b"), func(err error) { order = append(order, "answer b") })
	release()
	write(t, s, nothing)
	if diff := cmp.Diff([]string{"a", "b", "answer a", "answer b"}, order); diff != "" {
		t.Error(diff)
	}
}

func TestOnCommit_IsDroppedWithItsFunction(t *testing.T) {
	t.Parallel()
	s := open(t)
	err := s.Write(context.Background(), func(tx *store.Tx) error {
		tx.OnCommit(func() { t.Error("told of a change that was undone") })
		insert(tx, "undone", nil)
		return errRefused
	})
	if !errors.Is(err, errRefused) {
		t.Error(err)
	}
}

func TestAtEnd_RunsOncePerKeyAfterAllFunctions(t *testing.T) {
	t.Parallel()
	s := open(t)
	var seen [][]string
	look := func(tx *store.Tx) error {
		found, err := namesIn(tx)
		seen = append(seen, found)
		insert(tx, "end", nil)
		return err
	}
	release := hold(t, s)
	for _, name := range []string{"a", "b", "c"} {
		submit(s, store.LaneFill, func(tx *store.Tx) error {
			tx.AtEnd("look", look)
			tx.AtEnd("look", look)
			insert(tx, name, nil)
			return nil
		})
	}
	release()
	write(t, s, nothing)
	if diff := cmp.Diff([][]string{{"a", "b", "c"}}, seen); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"a", "b", "c", "end"}, names(t, s)); diff != "" {
		t.Error(diff)
	}
	if n := s.Stats().Commits; n != 1 {
		t.Errorf("%d commits, want one", n)
	}
}

func TestAtEnd_IsDroppedIfOnlyRefusedFunctionsAsked(t *testing.T) {
	t.Parallel()
	s := open(t)
	ran := map[string]int{}
	refused := func(keys ...string) func(*store.Tx) error {
		return func(tx *store.Tx) error {
			for _, key := range keys {
				tx.AtEnd(key, func(*store.Tx) error { ran[key]++; return nil })
			}
			return errRefused
		}
	}
	release := hold(t, s)
	submit(s, store.LaneFill, refused("only", "both"))
	submit(s, store.LaneFill, func(tx *store.Tx) error {
		tx.AtEnd("both", func(*store.Tx) error { ran["both"]++; return nil })
		return nil
	})
	submit(s, store.LaneFill, refused("both"))
	release()
	write(t, s, nothing)
	if diff := cmp.Diff(map[string]int{"both": 1}, ran); diff != "" {
		t.Error(diff)
	}
}

func TestAtEnd_FailureUndoesOnlyItself(t *testing.T) {
	t.Parallel()
	s := open(t)
	write(t, s, func(tx *store.Tx) error {
		tx.AtEnd(1, func(tx *store.Tx) error {
			tx.OnCommit(func() { t.Error("told of a change that was undone") })
			insert(tx, "undone", nil)
			return errRefused
		})
		tx.AtEnd(2, func(tx *store.Tx) error {
			insert(tx, "undone as well", nil)
			panic("a defect")
		})
		tx.AtEnd(3, add("end"))
		insert(tx, "function", nil)
		return nil
	})
	if diff := cmp.Diff([]string{"function", "end"}, names(t, s)); diff != "" {
		t.Error(diff)
	}
}

func TestAtEnd_MayAskForMore(t *testing.T) {
	t.Parallel()
	s := open(t)
	told := false
	write(t, s, func(tx *store.Tx) error {
		tx.AtEnd("first", func(tx *store.Tx) error {
			tx.AtEnd("second", func(tx *store.Tx) error {
				tx.OnCommit(func() { told = true })
				insert(tx, "second", nil)
				return nil
			})
			insert(tx, "first", nil)
			return nil
		})
		return nil
	})
	if diff := cmp.Diff([]string{"first", "second"}, names(t, s)); diff != "" || !told {
		t.Error(diff, told)
	}
	if n := s.Stats().Commits; n != 1 {
		t.Errorf("%d commits, want one", n)
	}
}

func TestAtEnd_KeyAskedForAfterItHasRunWaitsForTheNextBatch(t *testing.T) {
	t.Parallel()
	s := open(t)
	again := make(chan struct{})
	var commitsBefore uint64
	var step func(tx *store.Tx) error
	step = func(tx *store.Tx) error {
		if s.Revision() > 0 {
			commitsBefore = s.Stats().Commits
			tx.OnCommit(func() { close(again) })
			return nil
		}
		tx.AtEnd("step", step)
		insert(tx, "one", nil)
		return nil
	}
	write(t, s, func(tx *store.Tx) error { tx.AtEnd("step", step); return nil })
	<-again
	if commitsBefore != 1 {
		t.Errorf("ran again after %d commits, want 1", commitsBefore)
	}
}

func TestKick_WakesAnIdleWriter(t *testing.T) {
	t.Parallel()
	s := open(t)
	done := make(chan struct{})
	s.Kick("mailbox", func(tx *store.Tx) error {
		tx.OnCommit(func() { close(done) })
		insert(tx, "kicked", nil)
		return nil
	})
	<-done
	if diff := cmp.Diff([]string{"kicked"}, names(t, s)); diff != "" {
		t.Error(diff)
	}
}

func TestKick_RunsOncePerKeyTogetherWithAtEnd(t *testing.T) {
	t.Parallel()
	s := open(t)
	release := hold(t, s)
	for range 3 {
		s.Kick("mailbox", add("kicked"))
	}
	s.Kick("another", add("another"))
	submit(s, store.LaneFill, func(tx *store.Tx) error {
		tx.AtEnd("mailbox", add("asked"))
		return nil
	})
	release()
	write(t, s, nothing)
	if diff := cmp.Diff([]string{"asked", "another"}, names(t, s)); diff != "" {
		t.Error(diff)
	}
	s.Kick("mailbox", add("kicked again"))
	write(t, s, nothing)
	if diff := cmp.Diff([]string{"asked", "another", "kicked again"}, names(t, s)); diff != "" {
		t.Error(diff)
	}
}

func TestKick_IsTriedAgainAfterALostBatch(t *testing.T) {
	t.Parallel()
	clock := clockwork.NewFakeClock()
	s := open(t, withClock(clock))
	store.FailNextCommit(s, ioError)
	done := make(chan struct{})
	s.Kick("mailbox", func(tx *store.Tx) error {
		tx.OnCommit(func() { close(done) })
		insert(tx, "kicked", nil)
		return nil
	})
	if err := clock.BlockUntilContext(context.Background(), 1); err != nil { // until it is to be tried again
		t.Fatal(err)
	}
	if found := names(t, s); len(found) != 0 {
		t.Fatalf("%v in a batch that was lost", found)
	}
	clock.Advance(time.Second)
	<-done
	if diff := cmp.Diff([]string{"kicked"}, names(t, s)); diff != "" {
		t.Error(diff)
	}
}

func snapshotNothing(*store.Snapshot) error { return nil }

func TestClose_FinishesWhatWasAcceptedAndTakesNothingMore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, inFolder(dir))
	release := hold(t, s)
	var outcomes []<-chan error
	for _, name := range []string{"a", "b"} {
		outcomes = append(outcomes, submit(s, store.LaneFill, add(name)), submit(s, store.LaneDrain, nothing))
	}
	s.Kick("kick", add("kicked"))
	closed := make(chan error)
	go func() { closed <- s.Close() }()
	for fault.KindOf(s.Read(context.Background(), snapshotNothing)) != fault.Unavailable {
		runtime.Gosched() // Close is on its way
	}
	release()
	if err := errors.Join(<-closed, s.Close()); err != nil {
		t.Fatal(err)
	}
	for _, outcome := range outcomes {
		if err := <-outcome; err != nil {
			t.Error(err)
		}
	}
	ctx := context.Background()
	wantFault(t, s.Write(ctx, nothing), fault.Unavailable, "SHUTTING_DOWN")
	wantFault(t, s.Drain(ctx, nothing), fault.Unavailable, "SHUTTING_DOWN")
	wantFault(t, <-submit(s, store.LaneFill, nothing), fault.Unavailable, "SHUTTING_DOWN")
	s.Kick("late", nothing)
	again := open(t, inFolder(dir))
	if diff := cmp.Diff([]string{"a", "b", "kicked"}, names(t, again)); diff != "" {
		t.Error(diff)
	}
}

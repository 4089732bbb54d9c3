package store_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jonboulle/clockwork"

	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
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

func TestEnding_RunsOnceAfterAllFunctionsWithTheirNotes(t *testing.T) {
	t.Parallel()
	s := open(t)
	var seen, noted [][]string
	look := store.NewEnding(s, func(tx *store.Tx, notes []string) error {
		found, err := namesIn(tx)
		seen, noted = append(seen, found), append(noted, slices.Clone(notes))
		insert(tx, "end", nil)
		return err
	})
	release := hold(t, s)
	for _, name := range []string{"a", "b", "c"} {
		submit(s, store.LaneFill, func(tx *store.Tx) error {
			look.Note(tx, name+"1", 0)
			look.Note(tx, name+"2", 0)
			insert(tx, name, nil)
			return nil
		})
	}
	release()
	write(t, s, nothing)
	if diff := cmp.Diff([][]string{{"a", "b", "c"}}, seen); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([][]string{{"a1", "a2", "b1", "b2", "c1", "c2"}}, noted); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"a", "b", "c", "end"}, names(t, s)); diff != "" {
		t.Error(diff)
	}
	if n := s.Stats().Commits; n != 1 {
		t.Errorf("%d commits, want one", n)
	}
}

func TestEnding_IsDroppedWithTheNotesOfRefusedFunctions(t *testing.T) {
	t.Parallel()
	s := open(t)
	ran := map[string][]string{}
	note := func(name string) store.Ending[string] {
		return store.NewEnding(s, func(_ *store.Tx, notes []string) error {
			ran[name] = append(ran[name], notes...)
			return nil
		})
	}
	only, both := note("only"), note("both")
	release := hold(t, s)
	refused := func(tx *store.Tx) error {
		only.Note(tx, "refused", 0)
		both.Note(tx, "refused", 0)
		return errRefused
	}
	submit(s, store.LaneFill, refused)
	submit(s, store.LaneFill, func(tx *store.Tx) error { both.Note(tx, "first", 0); return nil })
	submit(s, store.LaneFill, refused)
	submit(s, store.LaneFill, func(tx *store.Tx) error { both.Note(tx, "second", 0); return nil })
	release()
	write(t, s, nothing)
	if diff := cmp.Diff(map[string][]string{"both": {"first", "second"}}, ran); diff != "" {
		t.Error(diff)
	}
}

func TestEnding_FailureUndoesOnlyItself(t *testing.T) {
	t.Parallel()
	s := open(t)
	refused := atEnd(s, func(tx *store.Tx) error {
		tx.OnCommit(func() { t.Error("told of a change that was undone") })
		insert(tx, "undone", nil)
		return errRefused
	})
	panics := atEnd(s, func(tx *store.Tx) error {
		insert(tx, "undone as well", nil)
		panic("a defect")
	})
	end := atEnd(s, add("end"))
	write(t, s, func(tx *store.Tx) error {
		refused.Note(tx, "", 0)
		panics.Note(tx, "", 0)
		end.Note(tx, "", 0)
		insert(tx, "function", nil)
		return nil
	})
	if diff := cmp.Diff([]string{"function", "end"}, names(t, s)); diff != "" {
		t.Error(diff)
	}
}

// The notes of an ending that has failed are not lost: it gets them again a second later. It may fail by itself, or later
// by one of its statements.
func TestEnding_IsTriedAgainWithItsNotes(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(*store.Tx) error{
		"refused":     func(*store.Tx) error { return errRefused },
		"late defect": func(tx *store.Tx) error { insertAgain(tx); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clock := clockwork.NewFakeClock()
			s := open(t, withClock(clock))
			write(t, s, add("first"))
			done := make(chan []string, 1)
			fails := true
			end := store.NewEnding(s, func(tx *store.Tx, notes []string) error {
				if fails {
					return fail(tx)
				}
				notes = slices.Clone(notes)
				tx.OnCommit(func() { done <- notes })
				return nil
			})
			write(t, s, func(tx *store.Tx) error { end.Note(tx, "a", 0); return nil })
			if err := clock.BlockUntilContext(context.Background(), 1); err != nil { // until it is to be tried again
				t.Fatal(err)
			}
			write(t, s, func(tx *store.Tx) error {
				end.Note(tx, "b", 0)
				fails = false
				return nil
			})
			if diff := cmp.Diff([]string{"a", "b"}, <-done); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A batch that is lost takes its own notes with it, and leaves those of earlier batches.
func TestEnding_KeepsItsNotesOverALostBatch(t *testing.T) {
	t.Parallel()
	clock := clockwork.NewFakeClock()
	s := open(t, withClock(clock))
	done := make(chan []string, 1)
	fails := true
	end := store.NewEnding(s, func(tx *store.Tx, notes []string) error {
		if fails {
			fails = false
			return errRefused
		}
		notes = slices.Clone(notes)
		tx.OnCommit(func() { done <- notes })
		return nil
	})
	store.FailNextCommit(s, ioError) // that changes something
	write(t, s, func(tx *store.Tx) error { end.Note(tx, "a", 0); return nil })
	if err := clock.BlockUntilContext(context.Background(), 1); err != nil { // until it is to be tried again
		t.Fatal(err)
	}
	err := s.Write(context.Background(), func(tx *store.Tx) error {
		end.Note(tx, "lost", 0)
		insert(tx, "lost", nil)
		return nil
	})
	wantFault(t, err, fault.Unavailable, "IO_ERROR")
	write(t, s, func(tx *store.Tx) error { end.Note(tx, "b", 0); return nil })
	if diff := cmp.Diff([]string{"a", "b"}, <-done); diff != "" {
		t.Error(diff)
	}
}

func TestEnding_MayAskForMore(t *testing.T) {
	t.Parallel()
	s := open(t)
	told := false
	second := atEnd(s, func(tx *store.Tx) error {
		tx.OnCommit(func() { told = true })
		insert(tx, "second", nil)
		return nil
	})
	first := atEnd(s, func(tx *store.Tx) error {
		second.Note(tx, "", 0)
		insert(tx, "first", nil)
		return nil
	})
	write(t, s, func(tx *store.Tx) error { first.Note(tx, "", 0); return nil })
	if diff := cmp.Diff([]string{"first", "second"}, names(t, s)); diff != "" || !told {
		t.Error(diff, told)
	}
	if n := s.Stats().Commits; n != 1 {
		t.Errorf("%d commits, want one", n)
	}
}

func TestEnding_AskedForAfterItHasRunWaitsForTheNextBatch(t *testing.T) {
	t.Parallel()
	s := open(t)
	again := make(chan struct{})
	var commitsBefore uint64
	var step store.Ending[string]
	step = atEnd(s, func(tx *store.Tx) error {
		if s.Revision() > 0 {
			commitsBefore = s.Stats().Commits
			tx.OnCommit(func() { close(again) })
			return nil
		}
		step.Note(tx, "", 0)
		insert(tx, "one", nil)
		return nil
	})
	write(t, s, func(tx *store.Tx) error { step.Note(tx, "", 0); return nil })
	<-again
	if commitsBefore != 1 {
		t.Errorf("ran again after %d commits, want 1", commitsBefore)
	}
}

func TestKick_WakesAnIdleWriter(t *testing.T) {
	t.Parallel()
	s := open(t)
	done := make(chan struct{})
	atEnd(s, func(tx *store.Tx) error {
		tx.OnCommit(func() { close(done) })
		insert(tx, "kicked", nil)
		return nil
	}).Kick()
	<-done
	if diff := cmp.Diff([]string{"kicked"}, names(t, s)); diff != "" {
		t.Error(diff)
	}
}

func TestKick_RunsOnceTogetherWithNotes(t *testing.T) {
	t.Parallel()
	s := open(t)
	mailbox, another := atEnd(s, add("mailbox")), atEnd(s, add("another"))
	release := hold(t, s)
	for range 3 {
		mailbox.Kick()
	}
	another.Kick()
	submit(s, store.LaneFill, func(tx *store.Tx) error { mailbox.Note(tx, "", 0); return nil })
	release()
	write(t, s, nothing)
	if diff := cmp.Diff([]string{"mailbox", "another"}, names(t, s)); diff != "" {
		t.Error(diff)
	}
	mailbox.Kick()
	write(t, s, nothing)
	if diff := cmp.Diff([]string{"mailbox", "another", "mailbox"}, names(t, s)); diff != "" {
		t.Error(diff)
	}
}

func TestKick_IsTriedAgainAfterALostBatch(t *testing.T) {
	t.Parallel()
	clock := clockwork.NewFakeClock()
	s := open(t, withClock(clock))
	store.FailNextCommit(s, ioError)
	done := make(chan struct{})
	atEnd(s, func(tx *store.Tx) error {
		tx.OnCommit(func() { close(done) })
		insert(tx, "kicked", nil)
		return nil
	}).Kick()
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
	atEnd(s, add("kicked")).Kick()
	closed := make(chan error)
	go func() { closed <- s.Close() }()
	for fault.KindOf(s.Read(context.Background(), snapshotNothing)) != fault.Unavailable {
		runtime.Gosched() // Close is on its way
	}
	release()
	testkit.NoError(t, errors.Join(<-closed, s.Close()))
	for _, outcome := range outcomes {
		if err := <-outcome; err != nil {
			t.Error(err)
		}
	}
	ctx := context.Background()
	wantFault(t, s.Write(ctx, nothing), fault.Unavailable, "SHUTTING_DOWN")
	wantFault(t, s.Drain(ctx, nothing), fault.Unavailable, "SHUTTING_DOWN")
	wantFault(t, <-submit(s, store.LaneFill, nothing), fault.Unavailable, "SHUTTING_DOWN")
	atEnd(s, nothing).Kick()
	again := open(t, inFolder(dir))
	if diff := cmp.Diff([]string{"a", "b", "kicked"}, names(t, again)); diff != "" {
		t.Error(diff)
	}
}

package store_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

// submitNotes hands over a function that only notes.
func submitNotes(s *store.Store, fn func(*store.Tx) error) <-chan error {
	outcome := make(chan error, 1)
	s.SubmitNotes(context.Background(), store.LaneFill, 0, fn, func(err error) { outcome <- err })
	return outcome
}

// addAll returns a round that inserts an item for each note, and notes what it got each time.
func addAll(s *store.Store, runs *[][]string) *store.Round[string] {
	return store.NewRound(s, func(tx *store.Tx, notes []string) error {
		*runs = append(*runs, slices.Clone(notes))
		for _, name := range notes {
			insert(tx, name, nil)
			if name == "defect" {
				return errors.New("a defect")
			}
			if name == "late defect" {
				insertAgain(tx)
			}
		}
		return nil
	})
}

func noting(r *store.Round[string], name string) func(*store.Tx) error {
	return func(tx *store.Tx) error { r.Note(tx, name, 0); return nil }
}

// A round serves functions that only note together, and runs before any other function.
func TestRound_RunsBeforeAFunctionThatDoesNotOnlyNote(t *testing.T) {
	t.Parallel()
	s := open(t)
	var runs [][]string
	r := addAll(s, &runs)
	release := hold(t, s)
	submitNotes(s, noting(r, "a"))
	submitNotes(s, func(tx *store.Tx) error {
		r.Note(tx, "refused", 0)
		return errRefused
	})
	submitNotes(s, noting(r, "b"))
	var seen []string
	looked := submit(s, store.LaneFill, func(tx *store.Tx) (err error) {
		seen, err = namesIn(tx)
		r.Note(tx, "c", 0)
		return err
	})
	submitNotes(s, noting(r, "d"))
	release()
	write(t, s, nothing)
	testkit.NoError(t, <-looked)
	if diff := cmp.Diff([]string{"a", "b"}, seen); diff != "" {
		t.Error("what the function saw", diff)
	}
	if diff := cmp.Diff([][]string{{"a", "b"}, {"c", "d"}}, runs); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"a", "b", "c", "d"}, names(t, s)); diff != "" {
		t.Error(diff)
	}
}

// The failure of a round fails the functions whose notes it got, and no others: whether the round returns an error or
// one of its statements fails later.
func TestRound_FailureFailsItsFunctionAlone(t *testing.T) {
	t.Parallel()
	for _, defect := range []string{"defect", "late defect"} {
		t.Run(defect, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			write(t, s, add("first"))
			var runs [][]string
			r := addAll(s, &runs)
			told := 0
			end := atEnd(s, add("end"))
			fine := func(name string) func(*store.Tx) error {
				return func(tx *store.Tx) error {
					r.Note(tx, name, 0)
					end.Note(tx, name, 0)
					tx.OnCommit(func() { told++ })
					return nil
				}
			}
			release := hold(t, s)
			early := submitNotes(s, fine("early"))
			failed := submitNotes(s, fine(defect))
			late := submitNotes(s, fine("late"))
			release()
			write(t, s, nothing)
			if err := errors.Join(<-early, <-late); err != nil {
				t.Error(err)
			}
			if err := <-failed; err == nil {
				t.Error("the function succeeds whose round has failed")
			}
			if diff := cmp.Diff([]string{"first", "early", "late", "end"}, names(t, s)); diff != "" {
				t.Error(diff)
			}
			if told != 2 {
				t.Errorf("%d functions were told of the commit, want 2", told)
			}
		})
	}
}

func TestRound_FullDiskFailsTheBatch(t *testing.T) {
	t.Parallel()
	s := open(t)
	write(t, s, add("before"))
	limitPages(t, s, 2)
	large := make([]byte, 1<<20)
	r := store.NewRound(s, func(tx *store.Tx, notes []string) error {
		for _, name := range notes {
			insert(tx, name, large)
		}
		return nil
	})
	release := hold(t, s)
	noted := submitNotes(s, noting(r, "large"))
	plain := submit(s, store.LaneFill, add("plain"))
	release()
	wantFault(t, <-noted, fault.Unavailable, "DISK_FULL")
	wantFault(t, <-plain, fault.Unavailable, "DISK_FULL")
	if diff := cmp.Diff([]string{"before"}, names(t, s)); diff != "" {
		t.Error(diff)
	}
}

func TestExecEach_CountsTheRowsOfEachList(t *testing.T) {
	t.Parallel()
	s := open(t)
	for _, name := range []string{"a", "b", "b"} {
		write(t, s, add(name))
	}
	write(t, s, func(tx *store.Tx) error {
		names := []string{"b", "nobody", "a", "a"}
		insert(tx, "a", nil) // it is sent first
		changed, err := tx.ExecEach(`DELETE FROM items WHERE name = ?`, len(names), func(i int) []any { return []any{names[i]} })
		if diff := cmp.Diff([]int{2, 0, 2, 0}, changed); diff != "" {
			t.Error(diff)
		}
		return err
	})
}

func TestValue_GoesBackWithItsFunction(t *testing.T) {
	t.Parallel()
	s := open(t)
	var v store.Value[string]
	write(t, s, func(tx *store.Tx) error { v.Set(tx, "kept"); return nil })
	err := s.Write(context.Background(), func(tx *store.Tx) error {
		v.Set(tx, "refused")
		v.Set(tx, "refused again")
		return errRefused
	})
	if !errors.Is(err, errRefused) || v.Get() != "kept" {
		t.Error(v.Get(), err)
	}
	store.FailNextCommit(s, ioError)
	wantFault(t, s.Write(context.Background(), func(tx *store.Tx) error {
		v.Set(tx, "lost")
		insert(tx, "lost", nil)
		return nil
	}), fault.Unavailable, "IO_ERROR")
	if v.Get() != "kept" {
		t.Error(v.Get())
	}
}

package store_test

import (
	"context"
	"testing"
	"testing/synctest"

	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

// patient is add for somebody who is not in a hurry.
func patient(name string) func(*store.Tx) error {
	return func(tx *store.Tx) error {
		tx.Patient()
		insert(tx, name, nil)
		return nil
	}
}

// wantOpen waits until the writer has nothing to do, and wants nothing committed by then.
func wantOpen(t *testing.T, s *store.Store) {
	t.Helper()
	synctest.Wait()
	if n := s.Stats().Commits; n != 0 {
		t.Fatalf("%d commits, want the batch still open", n)
	}
}

func TestPatient_SharesTheCommitOfWhatComesNext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := open(t)
		first := submit(s, store.LaneFill, patient("first"))
		wantOpen(t, s)
		second := submit(s, store.LaneDrain, patient("second"))
		wantOpen(t, s)
		testkit.NoError(t, s.Write(context.Background(), add("third")))
		for _, outcome := range []<-chan error{first, second} {
			if err := <-outcome; err != nil {
				t.Error(err)
			}
		}
		if n := s.Stats().Commits; n != 1 {
			t.Errorf("%d commits, want one", n)
		}
	})
}

func TestPatient_IsCommittedWithoutCompany(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := open(t)
		alone := submit(s, store.LaneFill, patient("alone"))
		wantOpen(t, s)
		if err := <-alone; err != nil { // the bubble's time passes
			t.Fatal(err)
		}
		if n := len(names(t, s)); n != 1 {
			t.Errorf("%d rows, want one", n)
		}
	})
}

func TestPatient_IsCommittedWithAKickAndByClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := open(t)
		first := submit(s, store.LaneFill, patient("first"))
		wantOpen(t, s)
		atEnd(s, nothing).Kick()
		synctest.Wait()
		select {
		case err := <-first:
			if err != nil {
				t.Error(err)
			}
		default:
			t.Error("the kick waits")
		}
		second := submit(s, store.LaneFill, patient("second"))
		testkit.NoError(t, s.Close())
		if err := <-second; err != nil {
			t.Error(err)
		}
	})
}

func TestPatient_RefusedFunctionIsAnsweredAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := open(t)
		waits := submit(s, store.LaneFill, patient("waits"))
		wantOpen(t, s)
		refused := submit(s, store.LaneFill, func(tx *store.Tx) error {
			tx.Patient()
			return errRefused
		})
		synctest.Wait()
		for _, outcome := range []<-chan error{waits, refused} {
			select {
			case err := <-outcome:
				t.Log(err)
			default:
				t.Error("not answered")
			}
		}
	})
}

package store_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"brokerd/internal/fault"
	"brokerd/internal/store"
)

// as returns the context of a caller.
func as(caller string) context.Context {
	return store.WithCaller(context.Background(), caller)
}

// submitAs is submit for one caller.
func submitAs(s *store.Store, caller string, size int, fn func(*store.Tx) error) <-chan error {
	outcome := make(chan error, 1)
	s.Submit(as(caller), store.LaneFill, size, fn, func(err error) { outcome <- err })
	return outcome
}

func TestQueue_ServesCallersInTurnAndEachInItsOrder(t *testing.T) {
	t.Parallel()
	s := open(t)
	order := batches(t, s, func(note func(string, func(*store.Tx) error) func(*store.Tx) error) {
		for i := range 4 {
			submitAs(s, "a", 0, note(fmt.Sprint("a", i), nothing))
		}
		for i := range 2 {
			submitAs(s, "b", 0, note(fmt.Sprint("b", i), nothing))
		}
		submit(s, store.LaneFill, note("broker", nothing))
	})
	if diff := cmp.Diff([]string{"a0", "b0", "broker", "a1", "b1", "a2", "a3", "|"}, order); diff != "" {
		t.Error(diff)
	}
}

// TestQueue_CallerThatComesIsServedBeforeThoseServedAlready has b come while a has much queued, and
// come again at once: the second time it waits until a had its turn.
func TestQueue_CallerThatComesIsServedBeforeThoseServedAlready(t *testing.T) {
	t.Parallel()
	s := open(t)
	var order []string
	var again <-chan error
	note := func(name string, and func()) func(*store.Tx) error {
		return func(*store.Tx) error {
			order = append(order, name)
			and()
			return nil
		}
	}
	release := hold(t, s)
	submitAs(s, "a", 0, note("a0", func() {
		submitAs(s, "b", 0, note("b0", func() { again = submitAs(s, "b", 0, note("b1", func() {})) }))
	}))
	submitAs(s, "c", 0, note("c0", func() {}))
	var last <-chan error
	for i := 1; i < 4; i++ {
		last = submitAs(s, "a", 0, note(fmt.Sprint("a", i), func() {}))
	}
	release()
	if err := <-last; err != nil {
		t.Error(err)
	}
	if err := <-again; err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"a0", "c0", "b0", "a1", "b1", "a2", "a3"}, order); diff != "" {
		t.Error(diff)
	}
}

func TestQueue_CallerWaitsWhileItHasTooMuchQueued(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ size, most int }{
		"too many functions": {0, 1000},
		"too many bytes":     {3 << 20, 2}, // of 4 MiB: the second still begins below it
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := open(t)
				release := hold(t, s)
				const tries = 1500
				ran := 0
				var last <-chan error
				submitted := make(chan struct{})
				go func() {
					defer close(submitted)
					for range tries {
						last = submitAs(s, "floods", c.size, func(*store.Tx) error { ran++; return nil })
					}
				}()
				synctest.Wait()
				if n := s.Stats().Waiting; n != c.most {
					t.Errorf("%d functions of one caller are queued, want %d", n, c.most)
				}
				other := submitAs(s, "other", c.size, nothing)
				broker := submit(s, store.LaneFill, nothing)
				if n := s.Stats().Waiting; n != c.most+2 {
					t.Errorf("%d functions are queued: other callers wait as well", n)
				}
				release()
				for _, outcome := range []<-chan error{other, broker} {
					if err := <-outcome; err != nil {
						t.Error(err)
					}
				}
				<-submitted
				if err := <-last; err != nil || ran != tries {
					t.Errorf("%d functions ran, want %d (%v)", ran, tries, err)
				}
			})
		})
	}
}

func TestQueue_CallerThatWaitsMayGiveUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := open(t)
		release := hold(t, s)
		submitAs(s, "a", 8<<20, nothing)
		ctx, cancel := context.WithCancel(as("a"))
		outcomes := make(chan error, 2)
		go func() { outcomes <- s.Write(ctx, add("never")) }()
		go s.Submit(ctx, store.LaneFill, 0, add("never"), func(err error) { outcomes <- err })
		synctest.Wait()
		cancel()
		for range 2 {
			wantFault(t, <-outcomes, fault.Canceled, "CANCELED")
		}
		release()
		write(t, s, nothing)
		if found := names(t, s); len(found) > 0 {
			t.Errorf("%v of callers that gave up", found)
		}
	})
}

func TestQueue_CallerThatWaitsIsRefusedWhenTheStoreCloses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := open(t)
		release := hold(t, s)
		accepted := submitAs(s, "a", 8<<20, add("accepted"))
		outcome := make(chan error, 1)
		go s.Submit(as("a"), store.LaneFill, 0, add("late"), func(err error) { outcome <- err })
		synctest.Wait()
		closed := make(chan error)
		go func() { closed <- s.Close() }()
		synctest.Wait()
		release()
		wantFault(t, <-outcome, fault.Unavailable, "SHUTTING_DOWN")
		if err := <-accepted; err != nil {
			t.Error(err)
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
	})
}

func TestQueue_CallerOfHeavyFunctionsBeginsABatchSoThatOthersDoNotWait(t *testing.T) {
	t.Parallel()
	s := open(t)
	order := batches(t, s, func(note func(string, func(*store.Tx) error) func(*store.Tx) error) {
		for i := range 3 {
			submitAs(s, "heavy", 0, note(fmt.Sprint("heavy", i), rows(600)))
		}
		for i := range 3 {
			submitAs(s, "light", 0, note(fmt.Sprint("light", i), rows(1)))
		}
	})
	if diff := cmp.Diff([]string{"heavy0", "light0", "light1", "light2", "|", "heavy1", "|", "heavy2", "|"}, order); diff != "" {
		t.Error(diff)
	}
}

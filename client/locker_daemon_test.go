package client_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// wantRefusal wants the error of one request, and the field at fault, if one is.
func wantRefusal(t *testing.T, err error, code codes.Code, reason, field string) {
	t.Helper()
	var item *client.ItemError
	if !errors.As(err, &item) || item.Code != code || item.Reason != reason || item.Field != field {
		t.Fatalf("%v (%s), not an item's %v (%s, %q)", err, client.Reason(err), code, reason, field)
	}
	wantCode(t, err, code)
}

// lock locks paths that must be free.
func lock(t *testing.T, l *client.Locker, paths ...string) int64 {
	t.Helper()
	a, err := l.Acquire(t.Context(), lockOf(paths...))
	if err != nil || a.GetOutcome() != pb.AcquireOutcome_ACQUIRE_OUTCOME_GRANTED {
		t.Fatalf("%v, %v", a, err)
	}
	return a.GetFence()
}

// release gives a grant back that must stand.
func release(t *testing.T, l *client.Locker, fence int64) {
	t.Helper()
	back, err := l.Release(t.Context(), &pb.ReleaseLocksRequest{Fences: []int64{fence}})
	if err != nil || back.GetReleased() != 1 {
		t.Fatalf("%v, %v", back, err)
	}
}

func listLocks(t *testing.T, c *client.Client) *pb.ListLocksResponse {
	t.Helper()
	list, err := c.Locks().ListLocks(t.Context(), &pb.ListLocksRequest{PageSize: 1000})
	apptest.NoError(t, err)
	return list
}

// awaitTickets returns once so many requests wait.
func awaitTickets(t *testing.T, c *client.Client, count int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for ctx.Err() == nil {
		if len(listLocks(t, c).GetTickets()) == count {
			return
		}
	}
	t.Fatalf("there are never %d tickets", count)
}

func TestLocker_AcquiresExtendsAndReleases(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	c := d.agent(t, "a", "")
	l := newLocker(t, c)
	fence := lock(t, l, "src/a.go", "src/b.go")
	longer, err := l.Extend(t.Context(), &pb.ExtendLocksRequest{Fences: []int64{fence}, MaxHold: durationpb.New(5 * time.Hour)})
	if err != nil || len(longer.GetHeldUntil()) != 1 {
		t.Fatalf("%v, %v", longer, err)
	}
	list := listLocks(t, c).GetLocks()
	if len(list) != 1 || list[0].GetFence() != fence || list[0].GetHeldUntil().AsTime().Sub(longer.HeldUntil[0].AsTime()).Abs() > time.Minute {
		t.Fatalf("%v, not until %v", list, longer)
	}
	back, err := l.Release(t.Context(), &pb.ReleaseLocksRequest{Fences: []int64{fence}})
	if err != nil || back.GetReleased() != 2 {
		t.Fatalf("%v, %v", back, err)
	}
	if list := listLocks(t, c).GetLocks(); len(list) != 0 {
		t.Fatalf("%v", list)
	}
}

func TestLocker_RefusalsAreTypedErrorsAndDisturbNothing(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	l := newLocker(t, d.agent(t, "a", ""))
	_, err := l.Acquire(t.Context(), lockOf("a.go", "../x"))
	wantRefusal(t, err, codes.InvalidArgument, "INVALID_ARGUMENT", "paths[1]")
	_, err = l.Extend(t.Context(), &pb.ExtendLocksRequest{Fences: []int64{7}})
	wantRefusal(t, err, codes.FailedPrecondition, "LOCK_LOST", "")
	_, err = l.Release(t.Context(), &pb.ReleaseLocksRequest{})
	wantRefusal(t, err, codes.InvalidArgument, "INVALID_ARGUMENT", "fences")
	release(t, l, lock(t, l, "x"))
}

func TestLocker_EveryConcurrentRequestGetsItsOwnAnswer(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	c := d.agent(t, "a", "")
	l := newLocker(t, c)
	const workers, each = 16, 20
	var mu sync.Mutex
	paths := map[int64]string{} // by fence
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			for j := range each {
				path := fmt.Sprintf("%d/%d", i, j)
				a, err := l.Acquire(t.Context(), lockOf(path))
				if err != nil || a.GetFence() == 0 {
					t.Errorf("%s: %v, %v", path, a, err)
					return
				}
				if j%2 == 0 {
					back, err := l.Release(t.Context(), &pb.ReleaseLocksRequest{Fences: []int64{a.GetFence()}})
					if err != nil || back.GetReleased() != 1 {
						t.Errorf("%s: %v, %v", path, back, err)
						return
					}
					continue
				}
				mu.Lock()
				paths[a.GetFence()] = path
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	held := listLocks(t, c).GetLocks()
	if len(held) != workers*each/2 {
		t.Fatalf("%d are held", len(held))
	}
	for _, h := range held {
		if got := paths[h.GetFence()]; got != h.GetPaths()[0] {
			t.Errorf("fence %d of %s was the answer for %q", h.GetFence(), h.GetPaths()[0], got)
		}
	}
}

func TestLocker_RequestThatWaitsHoldsUpNone(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	a, b := newLocker(t, d.agent(t, "a", "")), newLocker(t, d.agent(t, "b", ""))
	fence := lock(t, a, "x")
	waits := lockLater(t.Context(), b, patientLockOf("x"))
	awaitTickets(t, d.agent(t, "c", ""), 1)
	for range 10 {
		release(t, b, lock(t, b, "y"))
	}
	select {
	case o := <-waits:
		t.Fatalf("%v, %v", o.answer, o.err)
	default:
	}
	release(t, a, fence)
	if o := next(t, waits); o.err != nil || o.answer.GetFence() <= fence || o.answer.GetAlreadyHeld() {
		t.Fatalf("%v, %v", o.answer, o.err)
	}
}

func TestLocker_RequestThatWaitsGoesOnOverARestartOfTheBroker(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	a, b, c := d.agent(t, "a", ""), d.agent(t, "b", ""), d.agent(t, "c", "")
	first, second, third := newLocker(t, a), newLocker(t, b), newLocker(t, c)
	fence := lock(t, first, "x")
	waits := lockLater(t.Context(), second, patientLockOf("x"))
	awaitTickets(t, a, 1)
	last := lockLater(t.Context(), third, patientLockOf("x"))
	awaitTickets(t, a, 2)
	d.restart(t)
	release(t, first, fence)
	o := next(t, waits)
	if o.err != nil || o.answer.GetFence() == 0 || o.answer.GetAlreadyHeld() {
		t.Fatalf("%v, %v", o.answer, o.err)
	}
	select {
	case o := <-last:
		t.Fatalf("out of turn: %v, %v", o.answer, o.err)
	default:
	}
	release(t, second, o.answer.GetFence())
	if o := next(t, last); o.err != nil || o.answer.GetFence() == 0 {
		t.Fatalf("%v, %v", o.answer, o.err)
	}
}

func TestLocker_RequestsWaitWhileTheBrokerIsAway(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	l := newLocker(t, d.agent(t, "a", ""))
	lock(t, l, "x")
	d.stop(t)
	ctx, cancel := context.WithCancel(t.Context())
	given, kept := lockLater(ctx, l, lockOf("given up")), lockLater(t.Context(), l, lockOf("kept"))
	cancel()
	wantIs(t, next(t, given).err, context.Canceled)
	select {
	case o := <-kept:
		t.Fatalf("%v, %v", o.answer, o.err)
	default:
	}
	d.start(t)
	o := next(t, kept)
	if o.err != nil || o.answer.GetFence() == 0 {
		t.Fatalf("%v, %v", o.answer, o.err)
	}
	release(t, l, o.answer.GetFence())
}

func TestLocker_RequestThatWasGivenUpStandsInNobodysWay(t *testing.T) {
	t.Parallel()
	clock := clockwork.NewFakeClockAt(time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC))
	d := newDaemonWith(t, clock)
	a, b := d.agent(t, "a", ""), d.agent(t, "b", "")
	for _, c := range []*client.Client{a, b} { // no lease ends here
		if _, err := c.Agents().RegisterAgent(t.Context(), &pb.RegisterAgentRequest{Lease: durationpb.New(7 * 24 * time.Hour)}); err != nil {
			t.Fatal(err)
		}
	}
	first, second := newLocker(t, a), newLocker(t, b)
	held := lockOf("x")
	held.MaxHold = durationpb.New(7 * 24 * time.Hour)
	apptest.NoError(t, apptest.Err(first.Acquire(t.Context(), held)))
	ctx, cancel := context.WithCancel(t.Context())
	waits := lockLater(ctx, second, patientLockOf("x"))
	awaitTickets(t, a, 1)
	cancel()
	wantIs(t, next(t, waits).err, context.Canceled)
	// Its place lapses 10 s after the broker has heard of it, and long before its wait is over.
	for passed := time.Duration(0); len(listLocks(t, a).GetTickets()) > 0; passed += time.Second {
		if passed > 12*time.Hour {
			t.Fatal("its place in the queue stays")
		}
		clock.Advance(time.Second)
	}
}

package locks_test

import (
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// shared returns a request for shared locks.
func shared(paths ...string) *pb.AcquireLocksRequest {
	return &pb.AcquireLocksRequest{Paths: paths, Mode: pb.LockMode_LOCK_MODE_SHARED}
}

// crowd registers n agents that hold 2,000 shared files each below src.
func (w *daemon) crowd(n int) {
	w.Helper()
	for i := range n {
		a := w.agent(fmt.Sprint("crowd", i))
		for part := range 2 {
			a.held(a.acquire(shared(files(fmt.Sprintf("src/%d/%d/", i, part), 1000, 0)...)))
		}
	}
}

func TestRelease_ReadsOnlySoManyHeldPathsForTheNextRequest(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b, c, d := w.agent("a"), w.agent("b"), w.agent("c"), w.agent("d")
	fence := a.lock("src/x")
	waiting := b.wait(shared("src/"))
	kept := shared("src/", "docs/")
	kept.KeepTicket = true
	want(t, "another", c.acquire(kept).Outcome, queued)
	next := d.waitFor("src/x")
	w.crowd(6)
	a.release(fence)
	apptest.Refused(t, (<-waiting).err, codes.ResourceExhausted, "LOCK_TOO_BROAD")
	d.gets(next) // no request before it remains
	w.awaitNoTickets()
	want(t, "notices", len(c.mail("lock_revoked")), 1)
}

func TestRelease_EndsARequestThatCannotBeSearchedForADeadlock(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.agent("a"), w.agent("b")
	fence, other := a.lock("src/x"), a.lock("y")
	broad, narrow := b.wait(shared("src/")), b.waitFor("y")
	w.crowd(6)
	a.release(other)
	b.gets(narrow)
	apptest.Refused(t, (<-broad).err, codes.ResourceExhausted, "LOCK_TOO_BROAD")
	a.release(fence)
}

func TestAcquire_EndsAnotherRequestThatCannotBeSearchedForADeadlock(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.agent("a"), w.agent("b")
	a.lock("src/x")
	broad := b.wait(shared("src/"))
	w.crowd(8)
	b.lock("z")
	apptest.Refused(t, (<-broad).err, codes.ResourceExhausted, "LOCK_TOO_BROAD")
}

// Each worker waits for the worker before it, so that a request of the first has all the others behind it.
func TestAcquire_RefusesToSearchALongChainOfWaitingRequests(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.agent("a"), w.agent("b")
	const workers = 100
	few := func(i int) []string { return files(fmt.Sprintf("%d/", i), 8, 0) }
	for i := range workers {
		a.held(a.acquire(&pb.AcquireLocksRequest{Paths: few(i), Holder: fmt.Sprint(i)}))
	}
	for i := 1; i < workers; i++ {
		out := a.acquire(&pb.AcquireLocksRequest{Paths: few(i - 1), Holder: fmt.Sprint(i), KeepTicket: true})
		want(t, "a request of the chain", out.Outcome, queued)
	}
	fence := b.lock("x")
	for range 2 {
		_, err := a.AcquireLocks(a.Ctx, &pb.AcquireLocksRequest{Paths: []string{"x"}, Holder: "0", KeepTicket: true})
		apptest.Refused(t, err, codes.ResourceExhausted, "LOCK_TOO_BROAD")
	}
	b.lock("y")
	b.release(fence)
	a.held(a.acquire(&pb.AcquireLocksRequest{Paths: []string{"x"}, Holder: "0"}))
}

// The paths of a large request are searched for the paths of the small ones that wait.
func TestAcquire_ComparesManyPathsWithManyWaitingRequests(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b, c := w.agent("a"), w.agent("b"), w.agent("c")
	a.lock("src/")
	for i := range 190 {
		b.acquire(&pb.AcquireLocksRequest{Paths: files(fmt.Sprintf("src/%d/", i), 10, 0), Holder: fmt.Sprint(i), KeepTicket: true})
	}
	c.lock(files("docs/", 1000, 0)...)
}

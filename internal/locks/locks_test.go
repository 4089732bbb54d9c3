package locks_test

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestAcquire_OneAgentHoldsAPathAtATime(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.agent("a"), w.agent("b")
	fence := a.lock("src/a.go")
	got := b.try("src/a.go")
	want(t, "outcome", got.Outcome, busy)
	want(t, "position", got.Position, 1)
	want(t, "obstacles", len(got.Obstacles), 1)
	want(t, "who", got.Obstacles[0].Agent, "a")
	want(t, "fence", got.Obstacles[0].Revision, fence)
	b.lock("src/b.go")
	want(t, "released", a.release(fence).Released, 1)
	want(t, "released again", a.release(fence).Released, 0)
	if again := b.lock("src/a.go"); again <= fence {
		t.Errorf("fence %d after %d", again, fence)
	}
}

func TestAcquire_ConflictsAreThoseOfPathsDirectoriesAndGlobs(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.agent("a"), w.agent("b")
	for _, c := range []struct {
		held, asked string
		free        bool
	}{
		{"src/a.go", "src/a.go", false},
		{"src/a.go", "src/", false},
		{"src/", "src/a.go", false},
		{"src/", "src/deep/a.go", false},
		{"src/deep/", "src/", false},
		{"src/*.go", "src/a.go", false},
		{"src/a.go", "src/*.go", false},
		{"**/a.go", "src/deep/a.go", false},
		{"src/deep/a.go", "**/a.go", false},
		{"src/", "**/a.go", false},
		{"src/*.go", "src/deep/", true},
		{"src/a.go", "src/a.gox", true},
		{"src/a.go", "src/b/", true},
		{"src", "src/", true},
		{"src/", "src2/a.go", true},
		{"*.go", "src/a.go", true},
		{"src/*.go", "src/*.md", true},
	} {
		fence := a.lock(c.held)
		got := b.try(c.asked)
		if free := got.Outcome == granted; free != c.free {
			t.Errorf("%s held, %s asked for: %v", c.held, c.asked, got)
		}
		a.release(fence)
		b.release(max(got.Fence, 1))
	}
}

func TestAcquire_SharedGoesWithSharedOnly(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b, c := w.agent("a"), w.agent("b"), w.agent("c")
	one, two := a.share("doc.md"), b.share("doc.md")
	want(t, "exclusive", c.try("doc.md").Outcome, busy)
	a.release(one)
	done := c.waitFor("doc.md")
	want(t, "shared behind an exclusive one", a.acquire(&pb.AcquireLocksRequest{Paths: []string{"doc.md"}, Mode: pb.LockMode_LOCK_MODE_SHARED}).Outcome, busy)
	b.release(two)
	c.gets(done)
}

func TestAcquire_AllPathsOrNone(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.agent("a"), w.agent("b")
	fence := a.lock("x")
	want(t, "outcome", b.try("w", "x", "y").Outcome, busy)
	a.lock("w", "y")
	done := b.waitFor("w", "x", "y")
	a.release(fence)
	want(t, "locks", len(a.list(&pb.ListLocksRequest{}).Tickets), 1)
	apptest.Must(t, a.ReleaseLocks, &pb.ReleaseLocksRequest{All: true})
	b.gets(done)
	want(t, "paths", len(b.list(&pb.ListLocksRequest{Agent: "b"}).Locks[0].Paths), 3)
}

func TestQueue_FirstComeFirstServed(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	all := w.agents("a", "b", "c", "d")
	fence := all[0].lock("x")
	var waits []<-chan outcome
	for _, a := range all[1:] {
		waits = append(waits, a.waitFor("x"))
	}
	for i, a := range all[1:] {
		all[i].release(fence)
		next := a.gets(waits[i])
		if next <= fence {
			t.Errorf("fence %d after %d", next, fence)
		}
		fence = next
	}
}

func TestQueue_ReleaseAndNextGrantAreOneCommit(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.agent("a"), w.agent("b")
	fence := a.lock("x")
	done := b.waitFor("x")
	revision := a.release(fence).Revision
	want(t, "fence", b.gets(done), revision+1)
}

func TestQueue_PassesWhoWaitsForTheRequester(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.agent("a"), w.agent("b")
	fence := a.lock("src/a.go")
	done := b.waitFor("src/")
	other := a.lock("src/b.go") // B waits for A: behind B, A would wait for itself
	a.release(fence)
	want(t, "tickets", len(a.list(&pb.ListLocksRequest{}).Tickets), 1)
	a.release(other)
	b.gets(done)
}

func TestDeadlock_TheYoungestIsToldTheWholeCircle(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.agent("a"), w.agent("b")
	a.lock("x")
	y := b.lock("y")
	done := a.waitFor("y")
	_, err := b.AcquireLocks(b.Ctx, &pb.AcquireLocksRequest{Paths: []string{"x"}, KeepTicket: true})
	apptest.Refused(t, err, codes.Aborted, "DEADLOCK")
	want(t, "events", len(w.Root().Events("lock.deadlock")), 1)
	b.release(y)
	a.gets(done)
}

func TestQueue_PassesWhoBeginsToWaitForTheRequester(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b, c := w.agent("a"), w.agent("b"), w.agent("c")
	a.lock("o")
	c.lock("p")
	b.keep("p", "q")
	ticket := a.keep("q") // behind b, who does not wait for a
	c.keep("o")           // now b waits for c, who waits for a
	want(t, "uncollected", a.list(&pb.ListLocksRequest{Agent: "a"}).Locks[1].Uncollected, true)
	if fence := a.lock("q"); fence < ticket {
		t.Errorf("fence %d", fence)
	}
}

func TestDeadlock_ClosedByAGrantEndsTheYoungestTicket(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b, c := w.agent("a"), w.agent("b"), w.agent("c")
	x := c.lock("x")
	y := b.lock("y")
	one := a.waitFor("x")
	two := b.waitFor("x")
	three := a.waitFor("y") // the youngest, once a has x and b waits for it
	c.release(x)
	fence := a.gets(one)
	err := (<-three).err
	apptest.Refused(t, err, codes.Aborted, "DEADLOCK")
	for _, part := range []string{"a waits for lock y, held by b", "b waits for lock x, held by a"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%v does not say that %s", err, part)
		}
	}
	a.release(fence)
	b.gets(two)
	b.release(y)
}

func TestDeadlock_TwoClosedByOneGrantEndBeforeAnybodyPasses(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b, c, d := w.agent("a"), w.agent("b"), w.agent("c"), w.agent("d")
	held := c.lock("p", "v")
	b.lock("q")
	a.keep("p")
	a.keep("q", "z")
	b.keep("p", "z")      // waits for a, once a has p, and a waits for b
	d.keep("v", "w", "z") // behind a
	b.keep("p", "w")      // as well; and behind d, so that a waits for d until this ticket ends
	c.release(held)
	want(t, "deadlocks", len(w.Root().Events("lock.deadlock")), 2)
	want(t, "tickets", len(d.list(&pb.ListLocksRequest{Agent: "d"}).Tickets), 1)
}

func TestDeadlock_ClosedByAGrantLetsNobodyPassAnEarlierTicket(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b, c, d, e, o := w.agent("a"), w.agent("b"), w.agent("c"), w.agent("d"), w.agent("e"), w.agent("o")
	keepShared := func(a *agent, paths ...string) {
		out := a.acquire(&pb.AcquireLocksRequest{Paths: paths, Mode: pb.LockMode_LOCK_MODE_SHARED, KeepTicket: true})
		want(t, a.Name+" waits", out.Outcome, queued)
	}
	o.lock("z")
	a.lock("p")
	held := b.lock("x", "q")
	c.keep("x")
	d.keep("p")             // d waits for a
	keepShared(a, "q")      // the first in the queue for q
	e.keep("z")             // e waits for o
	a.keep("x", "z")        // behind e
	d.keep("q")             // behind a
	e.keep("q")             // behind d: now a waits for d, so d may pass a
	keepShared(c, "p", "q") // once c has x, c waits for a, and a waits for c
	b.release(held)
	want(t, "deadlocks", len(w.Root().Events("lock.deadlock")), 1)
	var has []string
	for _, l := range a.list(&pb.ListLocksRequest{Agent: "a"}).Locks {
		has = append(has, l.Paths...)
	}
	slices.Sort(has)
	want(t, "locks of a", strings.Join(has, " "), "p q")
}

func TestDeadlock_KeptTicketIsToldByMail(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b, c := w.agent("a"), w.agent("b"), w.agent("c")
	x := c.lock("x")
	b.lock("y")
	a.keep("x")
	b.keep("x")
	a.keep("y")
	c.release(x)
	told := a.mail("lock_deadlock")
	want(t, "told", len(told), 1)
	want(t, "tickets", len(a.list(&pb.ListLocksRequest{Agent: "a"}).Tickets), 0)
}

package locks_test

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestLocks_RefusalsNameTheField(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a := w.agent("a")
	for _, path := range []string{"../x", strings.Repeat("x", 1025)} {
		r := &pb.AcquireLocksRequest{Paths: []string{"x", path}}
		apptest.Invalid(t, apptest.Err(a.AcquireLocks(a.Ctx, r)), "paths[1]")
	}
	apptest.Invalid(t, apptest.Err(a.ReleaseLocks(a.Ctx, &pb.ReleaseLocksRequest{})), "fences")
	apptest.Invalid(t, apptest.Err(a.ListLocks(a.Ctx, &pb.ListLocksRequest{Path: "/x"})), "path")
}

func TestAcquire_AThousandPathsAtOnce(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.agent("a"), w.agent("b")
	var paths []string
	for i := range 1000 {
		paths = append(paths, fmt.Sprintf("src/%d.go", i))
	}
	fence := a.lock(paths...)
	want(t, "already held", a.lock(paths...), fence)
	done := b.waitFor(paths...)
	out := apptest.Must(t, a.ReleaseLocks, &pb.ReleaseLocksRequest{Paths: paths})
	want(t, "released", out.Released, 1000)
	b.gets(done)
}

func TestAcquire_GlobsOfASessionAreLimited(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.agent("a"), w.agent("b")
	var globs []string
	for i := range 63 {
		globs = append(globs, fmt.Sprintf("%d/*", i))
	}
	fence := a.lock(globs...)
	_, err := b.AcquireLocks(b.Ctx, &pb.AcquireLocksRequest{Paths: []string{"x*", "y*"}})
	apptest.Refused(t, err, codes.ResourceExhausted, "TOO_MANY_GLOBS")
	b.lock("x*")
	b.lock("y/", "z")
	a.release(fence)
	b.lock("y*", "z*")
}

func TestAcquire_TicketsOfASessionAreLimited(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.agent("a"), w.agent("b")
	fence := a.lock("x")
	for i := range 1000 {
		b.acquire(&pb.AcquireLocksRequest{Paths: []string{"x"}, Holder: fmt.Sprint(i), KeepTicket: true})
	}
	_, err := b.AcquireLocks(b.Ctx, &pb.AcquireLocksRequest{Paths: []string{"x"}, KeepTicket: true})
	apptest.Refused(t, err, codes.ResourceExhausted, "TOO_MANY_TICKETS")
	want(t, "who holds", a.lock("x"), fence)
	want(t, "without a place", b.try("x").Position, 1001)
	b.lock("y")
	a.release(fence)
}

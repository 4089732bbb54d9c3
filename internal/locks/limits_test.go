package locks_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestAcquire_RefusesWhatIsBeyondItsLimits(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a := w.agent("a")
	for field, r := range map[string]*pb.AcquireLocksRequest{
		"paths":    {},
		"paths[1]": {Paths: []string{"x", "../x"}},
		"paths[0]": {Paths: []string{strings.Repeat("x", 1025)}},
		"mode":     {Paths: []string{"x"}, Mode: 3},
		"wait":     {Paths: []string{"x"}, Wait: durationpb.New(25 * time.Hour)},
		"max_hold": {Paths: []string{"x"}, MaxHold: durationpb.New(8 * 24 * time.Hour)},
		"holder":   {Paths: []string{"x"}, Holder: strings.Repeat("x", 129)},
		"reason":   {Paths: []string{"x"}, Reason: strings.Repeat("x", 513)},
	} {
		_, err := a.AcquireLocks(a.Ctx, r)
		apptest.Invalid(t, err, field)
	}
	_, err := a.AcquireLocks(a.Ctx, &pb.AcquireLocksRequest{Paths: make([]string, 10_000)})
	apptest.Invalid(t, err, "paths")
	_, err = a.ReleaseLocks(a.Ctx, &pb.ReleaseLocksRequest{})
	apptest.Invalid(t, err, "fences")
	_, err = a.ReleaseLocks(a.Ctx, &pb.ReleaseLocksRequest{Paths: make([]string, 1001)})
	apptest.Invalid(t, err, "paths")
	_, err = a.ReleaseLocks(a.Ctx, &pb.ReleaseLocksRequest{Tickets: []int64{-1}})
	apptest.Invalid(t, err, "tickets[0]")
	_, err = a.ExtendLocks(a.Ctx, &pb.ExtendLocksRequest{})
	apptest.Invalid(t, err, "fences")
	_, err = a.ListLocks(a.Ctx, &pb.ListLocksRequest{Path: "/x"})
	apptest.Invalid(t, err, "path")
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

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
	"brokerd/internal/testkit"
)

// files returns the names of n files, each with so many bytes.
func files(prefix string, n, bytes int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("%s%04d", prefix, i)
		list[i] += strings.Repeat("x", max(0, bytes-len(list[i])))
	}
	return list
}

// sql changes the database behind the daemon's back.
func (w *daemon) sql(statements ...string) {
	w.Helper()
	for _, statement := range statements {
		testkit.Change(w, w.Dir(), statement)
	}
}

func TestAcquire_RefusesPathsBeyondTheBoundsOfACall(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a := w.agent("a")
	for name, c := range map[string]struct {
		paths []string
		field string
	}{
		"65 segments":           {[]string{"ok", strings.Repeat("d/", 64) + "f"}, "paths[1]"},
		"a folder of 65":        {[]string{strings.Repeat("d/", 65)}, "paths[0]"},
		"a glob of 257 bytes":   {[]string{strings.Repeat("g", 256) + "*"}, "paths[0]"},
		"more bytes than 128 K": {files("src/", 1000, 132), "paths"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, dry := range []bool{false, true} {
				_, err := a.AcquireLocks(a.Ctx, &pb.AcquireLocksRequest{Paths: c.paths, DryRun: dry})
				apptest.Invalid(t, err, c.field)
			}
		})
	}
	a.lock(strings.Repeat("d/", 63)+"f", strings.Repeat("e/", 64), strings.Repeat("g", 255)+"*")
	a.lock(files("src/", 1000, 131)...)
}

func TestAcquire_RefusesToCompareWithMoreGlobsThanACallMay(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.agent("a"), w.agent("b")
	usual, long := make([]string, 0, 63), make([]string, 0, 63)
	for i := range 63 {
		usual = append(usual, fmt.Sprintf("pkg%d/**/*.go", i))
		long = append(long, strings.Repeat("*a", 120)+fmt.Sprint(i)+"*")
	}
	fence := a.lock(usual...)
	b.release(b.lock(files("src/internal/features/a-usual-name-of-a-file-", 1000, 0)...)) // no glob is near
	a.release(fence)
	a.lock(long...)
	for _, dry := range []bool{false, true} {
		_, err := b.AcquireLocks(b.Ctx, &pb.AcquireLocksRequest{Paths: files("", 1000, 130), DryRun: dry})
		apptest.Refused(t, err, codes.ResourceExhausted, "LOCK_TOO_BROAD")
	}
	b.lock(files("", 10, 130)...)
}

func TestAcquire_RefusesToReadMoreHeldPathsThanACallMay(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	for i := range 11 {
		a := w.agent(fmt.Sprint("a", i))
		a.lock(files(fmt.Sprintf("src/%d/0/", i), 1000, 0)...)
		a.lock(files(fmt.Sprintf("src/%d/1/", i), 1000, 0)...)
	}
	b := w.agent("b")
	for _, dry := range []bool{false, true} {
		_, err := b.AcquireLocks(b.Ctx, &pb.AcquireLocksRequest{Paths: []string{"src/"}, DryRun: dry})
		apptest.Refused(t, err, codes.ResourceExhausted, "LOCK_TOO_BROAD")
	}
	apptest.Refuses(t, b.ListLocks, &pb.ListLocksRequest{Path: "src/"}, codes.ResourceExhausted, "LOCK_TOO_BROAD")
	want(t, "a folder in it", b.try("src/3/").Outcome, busy)
	want(t, "locks beside it", len(b.list(&pb.ListLocksRequest{Path: "src/3/"}).Locks), 2)
	b.lock("docs/")
	o := w.operator()
	_, err := o.ForceReleaseLocks(o.Ctx, &pb.ForceReleaseLocksRequest{Paths: []string{"src/3/", "src/4/"}, Reason: "r"})
	apptest.Refused(t, err, codes.ResourceExhausted, "TOO_MANY_RELEASES")
	out := apptest.Must(t, o.ForceReleaseLocks, &pb.ForceReleaseLocksRequest{Paths: []string{"src/3/"}, Reason: "r"})
	want(t, "released", len(out.Released), 2)
	b.lock("src/3/")
}

func TestAcquire_AnAgentHoldsAndWaitsForSoManyPaths(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.agent("a"), w.agent("b")
	fence := a.lock(files("0/", 1000, 0)...)
	b.lock("1/0000")
	a.keep(files("1/", 999, 0)...)
	_, err := a.AcquireLocks(a.Ctx, &pb.AcquireLocksRequest{Paths: []string{"2/0", "2/1"}})
	apptest.Refused(t, err, codes.ResourceExhausted, "TOO_MANY_LOCKS")
	a.lock("2/0")
	_, err = a.AcquireLocks(a.Ctx, &pb.AcquireLocksRequest{Paths: []string{"2/1"}, Holder: "another"})
	apptest.Refused(t, err, codes.ResourceExhausted, "TOO_MANY_LOCKS")
	a.release(fence)
	w.Restart()
	a.lock(files("3/", 1000, 0)...)
	_, err = a.AcquireLocks(a.Ctx, &pb.AcquireLocksRequest{Paths: []string{"2/1"}})
	apptest.Refused(t, err, codes.ResourceExhausted, "TOO_MANY_LOCKS")
	b.lock("2/1")
}

func TestAcquire_TheRequestsOfASessionWaitForSoManyPaths(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	w.agent("holder").lock("src/")
	for i := range 5 {
		a := w.agent(fmt.Sprint("a", i))
		a.keep(files(fmt.Sprintf("src/%d/0/", i), 1000, 0)...)
		a.keep(files(fmt.Sprintf("src/%d/1/", i), 1000, 0)...)
	}
	b := w.agent("b")
	_, err := b.AcquireLocks(b.Ctx, &pb.AcquireLocksRequest{Paths: []string{"src/x"}, KeepTicket: true})
	apptest.Refused(t, err, codes.ResourceExhausted, "TOO_MANY_TICKETS")
	want(t, "without a place", b.try("src/x").Outcome, busy)
}

// The 9,000 paths of 300 requests take several functions of the writer, and no request overtakes another.
func TestRelease_GrantsAllRequestsOfALongQueue(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	holder, late := w.agent("holder"), w.agent("late")
	fence := holder.lock("src/")
	for i := range 5 {
		a := w.agent(fmt.Sprint("a", i))
		for n := range 60 {
			prefix := fmt.Sprintf("src/%d/%d/", i, n)
			a.acquire(&pb.AcquireLocksRequest{Paths: files(prefix, 30, 0), KeepTicket: true, Holder: fmt.Sprint(n)})
		}
	}
	holder.release(fence)
	want(t, "the last path", late.try("src/4/59/0029").Outcome, busy) // held, or waited for longer
	w.awaitNoTickets()
	locks := 0
	for i := range 5 {
		locks += len(holder.list(&pb.ListLocksRequest{Agent: fmt.Sprint("a", i), PageSize: 1000}).Locks)
	}
	want(t, "grants", locks, 300)
}

// awaitNoTickets returns once no request waits.
func (w *daemon) awaitNoTickets() {
	w.Helper()
	o := w.operator()
	for len(o.list(&pb.ListLocksRequest{Waiting: true, PageSize: 1}).Tickets) > 0 {
	}
}

func TestRestart_GrantsRequestsThatSettlingHadLeft(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.agent("a"), w.agent("b")
	fence := a.lock("x")
	b.keep("x")
	w.Restart(func() { // as if the broker had stopped between two functions of one release
		w.sql(fmt.Sprintf(`DELETE FROM lock_grants WHERE fence = %d`, fence), fmt.Sprintf(`DELETE FROM lock_paths WHERE fence = %d`, fence))
	})
	w.awaitNoTickets()
	want(t, "the holder", w.operator().list(&pb.ListLocksRequest{}).Locks[0].Agent, "b")
}

func TestLocks_OfAnOlderBrokerWithDeeperPathsStay(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.agent("a"), w.agent("b")
	deep := strings.Repeat("d/", 200) + "f"
	first, second := a.lock("1"), a.lock("2")
	third := a.held(a.acquire(&pb.AcquireLocksRequest{Paths: []string{"3"}, MaxHold: durationpb.New(10 * time.Second)}))
	w.Restart(func() {
		for i, fence := range []int64{first, second, third} {
			path := deep + fmt.Sprint(i+1)
			w.sql(fmt.Sprintf(`UPDATE lock_grants SET text = '%s' WHERE fence = %d`, path, fence),
				fmt.Sprintf(`UPDATE lock_paths SET place = '%s' WHERE fence = %d`, path, fence))
		}
	})
	want(t, "listed", len(a.list(&pb.ListLocksRequest{Path: deep + "2"}).Locks), 1)
	want(t, "above it", b.try("d/d/").Outcome, busy)
	a.release(first)
	out := apptest.Must(t, a.ReleaseLocks, &pb.ReleaseLocksRequest{Paths: []string{deep + "2"}})
	want(t, "released by its path", out.Released, 1)
	after := b.keep("d/d/")
	w.Clock.Advance(38 * time.Second) // the grace after a start, and four fifths of the hold
	w.await("lock.expiring", after)
	w.Clock.Advance(2 * time.Second)
	w.await("lock.expired", after)
	w.awaitNoTickets()
}

func TestSession_ClosesWithMoreLocksThanOneFunctionReleases(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	o := w.in("project", "")
	apptest.Must(t, w.operator().CreateSession, &pb.CreateSessionRequest{Name: "project"})
	for i := range 5 {
		a := w.in("project", fmt.Sprint("a", i))
		apptest.Must(t, a.RegisterAgent, &pb.RegisterAgentRequest{})
		a.lock(files(fmt.Sprintf("%d/0/", i), 1000, 0)...)
		a.lock(files(fmt.Sprintf("%d/1/", i), 1000, 0)...)
	}
	apptest.Must(t, o.CloseSession, &pb.CloseSessionRequest{Name: "project"})
	for len(o.list(&pb.ListLocksRequest{}).Locks) > 0 {
	}
	out := apptest.Must(t, o.ListEvents,
		&pb.ListEventsRequest{Filter: &pb.EventFilter{Types: []string{"lock.released"}}})
	want(t, "releases", len(out.Events), 10)
}

package locks_test

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestAcquire_SameAgainIsTheSameFence(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a := w.agent("a")
	fence := a.lock("x", "src/", "doc/*.md")
	for _, r := range []*pb.AcquireLocksRequest{
		{Paths: []string{"src/", "x", "doc/*.md", "x"}},
		{Paths: []string{"x"}},
		{Paths: []string{"src/deep/a.go", "doc/a.md"}},
		{Paths: []string{"src/*.go", "src/deep/"}},
		{Paths: []string{"x"}, Mode: pb.LockMode_LOCK_MODE_SHARED},
	} {
		got := a.acquire(r)
		if got.Fence != fence || !got.AlreadyHeld {
			t.Errorf("%v: %v, not fence %d", r, got, fence)
		}
	}
	if more := a.try("x", "y"); more.Outcome != granted || more.Fence == fence || more.AlreadyHeld {
		t.Errorf("more than what is held: %v", more)
	}
	if wider := a.try("doc/"); wider.Outcome != granted || wider.Fence == fence {
		t.Errorf("wider than what is held: %v", wider)
	}
}

func TestAcquire_HoldersOfOneAgentExcludeEachOther(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a := w.agent("a")
	fence := a.held(a.acquire(&pb.AcquireLocksRequest{Paths: []string{"x"}, Holder: "one"}))
	got := a.acquire(&pb.AcquireLocksRequest{Paths: []string{"x"}, Holder: "two"})
	want(t, "outcome", got.Outcome, busy)
	want(t, "holder", got.Obstacles[0].Holder, "one")
	done := a.wait(&pb.AcquireLocksRequest{Paths: []string{"x"}, Holder: "two"}) // no circle: the other worker goes on
	out := apptest.Must(t, a.ReleaseLocks, &pb.ReleaseLocksRequest{All: true, Holder: "two's other name"})
	want(t, "released", out.Released+out.Cancelled, 0)
	a.release(fence)
	a.gets(done)
}

func TestAcquire_UpgradeWaitsForTheOtherReaders(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.agent("a"), w.agent("b")
	a.share("x")
	fence := b.share("x")
	done := a.waitFor("x") // its own reading is not in its way
	_, err := b.AcquireLocks(b.Ctx, &pb.AcquireLocksRequest{Paths: []string{"x"}, Wait: durationpb.New(time.Second)})
	apptest.Refused(t, err, codes.Aborted, "DEADLOCK") // each would wait for the other's reading
	b.release(fence)
	a.gets(done)
	want(t, "locks", len(a.list(&pb.ListLocksRequest{}).Locks), 2)
}

func TestAcquire_SameRequestGoesOnWaitingAndKeepsItsAnswer(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b, c := w.agent("a"), w.agent("b"), w.agent("c")
	fence := a.lock("x")
	request := func() *pb.AcquireLocksRequest {
		return &pb.AcquireLocksRequest{RequestId: "0197f3a0-5c4e-7b1d-8f21-9a0b1c2d3e4f", Paths: []string{"x"}, Wait: durationpb.New(apptest.LongWait)}
	}
	one := b.wait(request())
	other := c.waitFor("x")
	two := b.wait(request())
	a.release(fence)
	next := b.gets(one)
	want(t, "fence", b.gets(two), next)
	b.release(next)
	c.gets(other)
	want(t, "kept answer", b.acquire(request()).Fence, next)
	changed := request()
	changed.Paths = []string{"y"}
	apptest.Refuses(t, b.AcquireLocks, changed, codes.AlreadyExists, "REQUEST_ID_REUSED")
}

func TestAcquire_BusyIsNotKept(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.agent("a"), w.agent("b")
	fence := a.lock("x")
	request := &pb.AcquireLocksRequest{RequestId: newUUID(), Paths: []string{"x"}}
	want(t, "outcome", b.acquire(request).Outcome, busy)
	a.release(fence)
	want(t, "outcome", b.acquire(request).Outcome, granted)
}

func TestAcquire_DryRunChangesNothing(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.agent("a"), w.agent("b")
	free := a.acquire(&pb.AcquireLocksRequest{Paths: []string{"x"}, DryRun: true})
	want(t, "outcome", free.Outcome, granted)
	want(t, "fence", free.Fence, 0)
	a.lock("x")
	taken := b.acquire(&pb.AcquireLocksRequest{Paths: []string{"x"}, DryRun: true, Wait: durationpb.New(time.Hour), KeepTicket: true})
	want(t, "outcome", taken.Outcome, busy)
	want(t, "who", taken.Obstacles[0].Agent, "a")
	want(t, "events", len(w.Root().Events("lock.*")), 1)
}

func TestAcquire_AnswerNamesHoldersAndEarlierRequests(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	all := w.agents("a", "b", "c", "d")
	fence := all[0].held(all[0].acquire(&pb.AcquireLocksRequest{Paths: []string{"src/a.go"}, Reason: "rewrite", MaxHold: durationpb.New(time.Minute)}))
	ticket := all[1].keep("src/")
	all[2].share("doc.md")
	got := all[3].try("src/*.go", "doc.md")
	want(t, "position", got.Position, 3)
	want(t, "obstacles", len(got.Obstacles), 3)
	first := got.Obstacles[0]
	want(t, "first", first.Revision, fence)
	want(t, "resource", first.Resource, "src/a.go")
	want(t, "reason", first.Reason, "rewrite")
	want(t, "until", first.HeldUntil.AsTime(), w.Clock.Now().Add(time.Minute).UTC())
	last := got.Obstacles[2]
	want(t, "last", last.Revision, ticket)
	want(t, "waits", last.Waiting, true)
	want(t, "resource", last.Resource, "src/")
}

func TestAcquire_OnlyRegisteredAgentsHoldLocks(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	o := w.operator()
	_, err := o.AcquireLocks(o.Ctx, &pb.AcquireLocksRequest{Paths: []string{"x"}})
	apptest.Refused(t, err, codes.FailedPrecondition, "AGENT_REQUIRED")
	stranger := w.in("default", "stranger")
	_, err = stranger.AcquireLocks(stranger.Ctx, &pb.AcquireLocksRequest{Paths: []string{"x"}})
	apptest.Refused(t, err, codes.FailedPrecondition, "AGENT_NOT_REGISTERED")
}

func TestAcquire_SessionsDoNotMeet(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	o := w.operator()
	apptest.Must(t, o.CreateSession, &pb.CreateSessionRequest{Name: "s"})
	a, b := w.agent("a"), w.in("s", "a")
	apptest.Must(t, b.RegisterAgent, &pb.RegisterAgentRequest{})
	fence := a.lock("x")
	want(t, "released", b.release(fence).Released, 0)
	_, err := b.ExtendLocks(b.Ctx, &pb.ExtendLocksRequest{Fences: []int64{fence}})
	apptest.Refused(t, err, codes.FailedPrecondition, "LOCK_LOST")
	want(t, "locks", len(b.list(&pb.ListLocksRequest{}).Locks), 0)
	b.lock("x")
}

func TestAcquire_CaseIsFoldedIfTheSessionSaysSo(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b, o := w.agent("a"), w.agent("b"), w.operator()
	different := []int64{a.lock("README.md"), b.lock("readme.md")}
	a.release(different[0])
	b.release(different[1])
	fold := true
	apptest.Must(t, o.ConfigureSession,
		&pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{FoldCase: &fold}})
	a.lock("Makefile")
	want(t, "outcome", b.try("makefile").Outcome, busy)
	out := apptest.Must(t, a.ReleaseLocks, &pb.ReleaseLocksRequest{Paths: []string{"MAKEFILE"}})
	want(t, "released", out.Released, 1)
}

func TestList_Pages(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.agent("a"), w.agent("b")
	first := a.lock("src/a.go")
	second := b.lock("src/b.go")
	third := a.lock("doc/")
	ticket := b.keep("src/a.go")
	last := w.agent("c").keep("src/b.go", "doc/b.md")
	all := func(request *pb.ListLocksRequest) (got []int64) {
		for {
			out := a.list(request)
			for _, l := range out.Locks {
				got = append(got, l.Fence)
			}
			for _, k := range out.Tickets {
				got = append(got, k.Ticket)
			}
			if request.PageToken = out.NextPageToken; request.PageToken == "" {
				return got
			}
		}
	}
	wantList(t, "all", all(&pb.ListLocksRequest{PageSize: 1}), first, second, third, ticket, last)
	wantList(t, "waiting", all(&pb.ListLocksRequest{Waiting: true, PageSize: 1}), ticket, last)
	wantList(t, "waiting on src", all(&pb.ListLocksRequest{Waiting: true, Path: "src/a.go"}), ticket)
	out := a.list(&pb.ListLocksRequest{Path: "src/*.go"})
	want(t, "locks on src", len(out.Locks), 2)
	want(t, "tickets on src", len(out.Tickets), 2)
	want(t, "waiting", out.Locks[0].Waiting, 1)
	out = a.list(&pb.ListLocksRequest{Path: "doc/", Agent: "a"})
	want(t, "doc of a", len(out.Locks), 1)
	want(t, "tickets of a", len(out.Tickets), 0)
	want(t, "of nobody", len(a.list(&pb.ListLocksRequest{Agent: "nobody"}).Locks), 0)
}

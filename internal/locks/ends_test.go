package locks_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestHold_EndsWarnedAndToldWhenItIsOver(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.agent("a"), w.agent("b")
	fence := a.held(a.acquire(&pb.AcquireLocksRequest{Paths: []string{"x"}, MaxHold: durationpb.New(10 * time.Second)}))
	ticket := b.keep("x")
	w.Clock.Advance(8 * time.Second)
	w.await("lock.expiring", fence)
	want(t, "warnings", len(a.mail("lock_expiring")), 1)
	w.Clock.Advance(2 * time.Second)
	expired := w.await("lock.expired", fence)
	want(t, "next", w.await("lock.granted", fence).Source, "b")
	if expired.Revision <= ticket {
		t.Errorf("expired at %d", expired.Revision)
	}
	want(t, "told", len(a.mail("lock_expired")), 1)
	want(t, "told", len(b.mail("lock_granted")), 1)
	b.lock("x")
}

func TestExtend_BeginsTheHoldAnew(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.agent("a"), w.agent("b")
	fence := a.held(a.acquire(&pb.AcquireLocksRequest{Paths: []string{"x"}, MaxHold: durationpb.New(10 * time.Second)}))
	w.Clock.Advance(7 * time.Second)
	out := apptest.Must(t, a.ExtendLocks, &pb.ExtendLocksRequest{Fences: []int64{fence}})
	want(t, "end", out.HeldUntil[0].AsTime(), w.Clock.Now().Add(10*time.Second).UTC())
	want(t, "end", a.list(&pb.ListLocksRequest{}).Locks[0].HeldUntil.AsTime(), out.HeldUntil[0].AsTime())
	w.Clock.Advance(7 * time.Second)
	want(t, "outcome", b.try("x").Outcome, busy)
	_, err := b.ExtendLocks(b.Ctx, &pb.ExtendLocksRequest{Fences: []int64{fence}})
	apptest.Refused(t, err, codes.FailedPrecondition, "LOCK_LOST")
	a.release(fence)
	_, err = a.ExtendLocks(a.Ctx, &pb.ExtendLocksRequest{Fences: []int64{fence}})
	apptest.Refused(t, err, codes.FailedPrecondition, "LOCK_LOST")
}

func TestHold_OwnerIsToldOnceThatOthersWait(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.agent("a"), w.agent("b")
	fence := a.lock("src/")
	b.keep("src/b.go")
	w.Clock.Advance(time.Minute)
	w.await("lock.contested", fence)
	want(t, "told", len(a.mail("lock_contested")), 1)
	w.agent("c").keep("src/c.go")
	w.Clock.Advance(61 * time.Second)
	w.agent("d")
	want(t, "told", len(a.mail("lock_contested")), 1)
}

func TestTicket_LapsesWhenNobodyWaitsForIt(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b, c := w.agent("a"), w.agent("b"), w.agent("c")
	fence := a.lock("x")
	done := b.waitFor("x")
	w.Clock.Advance(apptest.LongWait)
	want(t, "outcome", (<-done).Outcome, queued)
	w.Clock.Advance(10 * time.Second)
	w.await("lock.lapsed", fence)
	after := c.waitFor("x")
	a.release(fence)
	c.gets(after)
}

func TestTicket_WhoComesBackGoesOnInTheSamePlace(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b, c := w.agent("a"), w.agent("b"), w.agent("c")
	fence := a.lock("x")
	done := b.wait(&pb.AcquireLocksRequest{Paths: []string{"x"}})
	other := c.waitFor("x")
	w.Clock.Advance(apptest.LongWait)
	first := <-done
	apptest.NoError(t, first.err)
	want(t, "outcome", first.Outcome, queued)
	want(t, "position", first.Position, 1)
	want(t, "position", (<-other).Position, 2)
	w.Clock.Advance(9 * time.Second)
	again := b.wait(&pb.AcquireLocksRequest{Paths: []string{"x"}})
	a.release(fence)
	b.gets(again)
}

func TestGrant_PassesOnIfNobodyCollectsIt(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b, c := w.agent("a"), w.agent("b"), w.agent("c")
	fence := a.lock("x")
	done := b.wait(&pb.AcquireLocksRequest{Paths: []string{"x"}})
	last := c.keep("x")
	w.Clock.Advance(apptest.LongWait)
	ticket := (<-done).Ticket
	a.release(fence)
	locks := a.list(&pb.ListLocksRequest{}).Locks
	want(t, "owner", locks[0].Agent, "b")
	want(t, "uncollected", locks[0].Uncollected, true)
	w.Clock.Advance(10 * time.Second)
	w.await("lock.expired", ticket)
	want(t, "owner", a.list(&pb.ListLocksRequest{}).Locks[0].Agent, "c")
	want(t, "told", len(c.mail("lock_granted")), 1)
	w.Clock.Advance(2 * time.Minute)
	w.await("lock.expired", last+3)
	a.lock("x")
}

// TestTold_… has the calls that break off while the broker answers them.
func TestGrant_ToACallThatHasBrokenOffPassesOn(t *testing.T) {
	t.Parallel()
	w := newDaemon(t, apptest.WithMetrics())
	a, b := w.agent("a"), w.agent("b")
	fence := a.lock("x")
	ctx, cancel := context.WithCancel(b.Ctx)
	done := b.waitIn(ctx, &pb.AcquireLocksRequest{Paths: []string{"x"}})
	cancel()
	<-done
	want(t, "broken off", w.Ended("LockService/AcquireLocks", 2)["Canceled"], 1)
	a.release(fence)
	w.awaitUncollected("b")
	w.agent("c") // the writer has done by now what comes with it
	w.Clock.Advance(10 * time.Second)
	w.await("lock.expired", fence)
	a.lock("x")
}

func TestTicket_GivenUpEndsItsCall(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b, c := w.agent("a"), w.agent("b"), w.agent("c")
	a.lock("x")
	done := b.waitFor("x", "y")
	after := c.waitFor("y")
	out := apptest.Must(t, b.ReleaseLocks, &pb.ReleaseLocksRequest{All: true})
	want(t, "cancelled", out.Cancelled, 1)
	apptest.Refused(t, (<-done).err, codes.FailedPrecondition, "TICKET_RELEASED")
	c.gets(after)
}

func TestRelease_OfATicketReleasesWhatItHasBecome(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.agent("a"), w.agent("b")
	fence := a.lock("x")
	ticket := b.keep("x")
	a.release(fence)
	out := apptest.Must(t, b.ReleaseLocks, &pb.ReleaseLocksRequest{Tickets: []int64{ticket}})
	want(t, "released", out.Released, 1)
	a.lock("x")
}

func TestRelease_OfSomePathsFreesThese(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.agent("a"), w.agent("b")
	a.lock("x", "y", "src/", "*.go")
	done := b.waitFor("x", "src/a.go")
	out := apptest.Must(t, a.ReleaseLocks, &pb.ReleaseLocksRequest{Paths: []string{"x", "src/", "*.go", "none"}})
	want(t, "released", out.Released, 3)
	b.gets(done)
	want(t, "y", b.try("y").Outcome, busy)
	wantList(t, "left", a.list(&pb.ListLocksRequest{Agent: "a"}).Locks[0].Paths, "y")
	apptest.Must(t, a.ReleaseLocks, &pb.ReleaseLocksRequest{Paths: []string{"y"}})
	b.lock("y")
}

func TestRelease_IsForTheOwnersAgentOnly(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.agent("a"), w.agent("b")
	fence := a.lock("x")
	ticket := b.keep("x")
	want(t, "released", b.release(fence).Released, 0)
	out := apptest.Must(t, a.ReleaseLocks, &pb.ReleaseLocksRequest{Tickets: []int64{ticket}, Paths: []string{"y"}})
	want(t, "changed", out.Released+out.Cancelled+int32(out.Revision), 0)
}

func TestForceRelease_TakesAndTells(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b, o := w.agent("a"), w.agent("b"), w.operator()
	fence := a.lock("src/a.go")
	other := a.share("doc.md")
	done := b.waitFor("src/")
	out := apptest.Must(t, o.ForceReleaseLocks,
		&pb.ForceReleaseLocksRequest{Paths: []string{"src/*.go"}, Reason: "stuck"})
	want(t, "locks", len(out.Released), 1)
	want(t, "fence", out.Released[0].Fence, fence)
	b.gets(done)
	want(t, "told", len(a.mail("lock_revoked")), 1)
	_, err := o.ForceReleaseLocks(o.Ctx, &pb.ForceReleaseLocksRequest{Revisions: []int64{other}})
	apptest.Invalid(t, err, "reason")
	out = apptest.Must(t, o.ForceReleaseLocks, &pb.ForceReleaseLocksRequest{Agent: "a", Reason: "gone"})
	want(t, "fence", out.Released[0].Fence, other)
	_, err = a.ForceReleaseLocks(a.Ctx, &pb.ForceReleaseLocksRequest{Agent: "b", Reason: "mine"})
	want(t, "another agent", status.Code(err), codes.PermissionDenied)
}

func TestForceRelease_EndsAWaitingCall(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b, o := w.agent("a"), w.agent("b"), w.operator()
	a.lock("x")
	done := b.waitFor("x")
	apptest.Must(t, o.ForceReleaseLocks, &pb.ForceReleaseLocksRequest{Agent: "b", Reason: "enough"})
	apptest.Refused(t, (<-done).err, codes.FailedPrecondition, "TICKET_REVOKED")
}

func TestAgentEnded_NextIsGrantedInTheSameTransaction(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b, c := w.agent("a"), w.agent("b"), w.agent("c")
	y := c.lock("y")
	a.lock("x")
	gone := a.waitFor("y")
	done := b.waitFor("x")
	last := b.wait(&pb.AcquireLocksRequest{Paths: []string{"y"}, Holder: "second"})
	out := apptest.Must(t, a.DeregisterAgent, &pb.DeregisterAgentRequest{})
	apptest.Refused(t, (<-gone).err, codes.FailedPrecondition, "AGENT_NOT_REGISTERED")
	if fence := b.gets(done); fence > out.Revision+3 {
		t.Errorf("fence %d, deregistered at %d", fence, out.Revision)
	}
	c.release(y)
	b.gets(last)
}

func TestSession_ClosedEndsAll(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	o := w.operator()
	apptest.Must(t, o.CreateSession, &pb.CreateSessionRequest{Name: "s"})
	a, b := w.in("s", "a"), w.in("s", "b")
	apptest.Must(t, a.RegisterAgent, &pb.RegisterAgentRequest{})
	apptest.Must(t, b.RegisterAgent, &pb.RegisterAgentRequest{})
	a.lock("x", "src/")
	done := b.waitFor("x")
	apptest.Must(t, o.CloseSession, &pb.CloseSessionRequest{Name: "s"})
	apptest.Refused(t, (<-done).err, codes.FailedPrecondition, "SESSION_CLOSED")
	list := a.list(&pb.ListLocksRequest{})
	want(t, "locks", len(list.Locks)+len(list.Tickets), 0)
	_, err := a.AcquireLocks(a.Ctx, &pb.AcquireLocksRequest{Paths: []string{"y"}})
	apptest.Refused(t, err, codes.FailedPrecondition, "SESSION_CLOSED")
	apptest.Must(t, o.DeleteSession, &pb.DeleteSessionRequest{Name: "s"})
}

func TestRestart_KeepsGrantsAndTickets(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b, c := w.agent("a"), w.agent("b"), w.agent("c")
	fence := a.held(a.acquire(&pb.AcquireLocksRequest{Paths: []string{"x"}, MaxHold: durationpb.New(10 * time.Second)}))
	ticket := b.keep("x")
	lapses := c.waitFor("x")
	w.Clock.Advance(7 * time.Second)
	w.Restart()
	if err := (<-lapses).err; err == nil {
		t.Error("a call goes on waiting over a restart")
	}
	list := a.list(&pb.ListLocksRequest{})
	want(t, "fence", list.Locks[0].Fence, fence)
	want(t, "end", list.Locks[0].HeldUntil.AsTime(), w.Clock.Now().Add(40*time.Second).UTC())
	want(t, "ticket", list.Tickets[0].Ticket, ticket)
	w.Clock.Advance(10 * time.Second)
	w.await("lock.lapsed", fence)
	w.Clock.Advance(28 * time.Second)
	w.await("lock.expiring", fence)
	w.Clock.Advance(2 * time.Second)
	w.await("lock.expired", fence)
	b.lock("x")
}

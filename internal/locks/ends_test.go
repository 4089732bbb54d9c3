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
	w.pass(8 * time.Second)
	w.await("lock.expiring", fence)
	want(t, "warnings", len(a.mail("lock_expiring")), 1)
	w.pass(2 * time.Second)
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
	w.pass(7 * time.Second)
	out, err := a.ExtendLocks(a.ctx, &pb.ExtendLocksRequest{Fences: []int64{fence}})
	must(t, err)
	want(t, "end", out.HeldUntil[0].AsTime(), w.Clock.Now().Add(10*time.Second).UTC())
	want(t, "end", a.list(&pb.ListLocksRequest{}).Locks[0].HeldUntil.AsTime(), out.HeldUntil[0].AsTime())
	w.pass(7 * time.Second)
	want(t, "outcome", b.try("x").Outcome, busy)
	_, err = b.ExtendLocks(b.ctx, &pb.ExtendLocksRequest{Fences: []int64{fence}})
	wantError(t, err, codes.FailedPrecondition, "LOCK_LOST")
	a.release(fence)
	_, err = a.ExtendLocks(a.ctx, &pb.ExtendLocksRequest{Fences: []int64{fence}})
	wantError(t, err, codes.FailedPrecondition, "LOCK_LOST")
}

func TestHold_OwnerIsToldOnceThatOthersWait(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.agent("a"), w.agent("b")
	fence := a.lock("src/")
	b.keep("src/b.go")
	w.pass(time.Minute)
	w.await("lock.contested", fence)
	want(t, "told", len(a.mail("lock_contested")), 1)
	w.agent("c").keep("src/c.go")
	w.pass(61 * time.Second)
	w.agent("d")
	want(t, "told", len(a.mail("lock_contested")), 1)
}

func TestTicket_LapsesWhenNobodyWaitsForIt(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b, c := w.agent("a"), w.agent("b"), w.agent("c")
	fence := a.lock("x")
	done := b.waitFor("x")
	w.pass(longWait)
	want(t, "outcome", (<-done).Outcome, queued)
	w.pass(10 * time.Second)
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
	w.pass(longWait)
	first := <-done
	must(t, first.err)
	want(t, "outcome", first.Outcome, queued)
	want(t, "position", first.Position, 1)
	want(t, "position", (<-other).Position, 2)
	w.pass(9 * time.Second)
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
	w.pass(longWait)
	ticket := (<-done).Ticket
	a.release(fence)
	locks := a.list(&pb.ListLocksRequest{}).Locks
	want(t, "owner", locks[0].Agent, "b")
	want(t, "uncollected", locks[0].Uncollected, true)
	w.pass(10 * time.Second)
	w.await("lock.expired", ticket)
	want(t, "owner", a.list(&pb.ListLocksRequest{}).Locks[0].Agent, "c")
	want(t, "told", len(c.mail("lock_granted")), 1)
	w.pass(2 * time.Minute)
	w.await("lock.expired", last+3)
	a.lock("x")
}

// TestTold_… has the calls that break off while the broker answers them.
func TestGrant_ToACallThatHasBrokenOffPassesOn(t *testing.T) {
	t.Parallel()
	w := newDaemon(t, apptest.WithMetrics())
	a, b := w.agent("a"), w.agent("b")
	fence := a.lock("x")
	ctx, cancel := context.WithCancel(b.ctx)
	done := b.waitIn(ctx, &pb.AcquireLocksRequest{Paths: []string{"x"}})
	cancel()
	<-done
	want(t, "broken off", w.Ended("LockService/AcquireLocks", 2)["Canceled"], 1)
	a.release(fence)
	w.awaitUncollected("b")
	w.agent("c") // the writer has done by now what comes with it
	w.pass(10 * time.Second)
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
	out, err := b.ReleaseLocks(b.ctx, &pb.ReleaseLocksRequest{All: true})
	must(t, err)
	want(t, "cancelled", out.Cancelled, 1)
	wantError(t, (<-done).err, codes.FailedPrecondition, "TICKET_RELEASED")
	c.gets(after)
}

func TestRelease_OfATicketReleasesWhatItHasBecome(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.agent("a"), w.agent("b")
	fence := a.lock("x")
	ticket := b.keep("x")
	a.release(fence)
	out, err := b.ReleaseLocks(b.ctx, &pb.ReleaseLocksRequest{Tickets: []int64{ticket}})
	must(t, err)
	want(t, "released", out.Released, 1)
	a.lock("x")
}

func TestRelease_OfSomePathsFreesThese(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.agent("a"), w.agent("b")
	a.lock("x", "y", "src/", "*.go")
	done := b.waitFor("x", "src/a.go")
	out, err := a.ReleaseLocks(a.ctx, &pb.ReleaseLocksRequest{Paths: []string{"x", "src/", "*.go", "none"}})
	must(t, err)
	want(t, "released", out.Released, 3)
	b.gets(done)
	want(t, "y", b.try("y").Outcome, busy)
	wantList(t, "left", a.list(&pb.ListLocksRequest{Agent: "a"}).Locks[0].Paths, "y")
	must(t, drop(a.ReleaseLocks(a.ctx, &pb.ReleaseLocksRequest{Paths: []string{"y"}})))
	b.lock("y")
}

func TestRelease_IsForTheOwnersAgentOnly(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.agent("a"), w.agent("b")
	fence := a.lock("x")
	ticket := b.keep("x")
	want(t, "released", b.release(fence).Released, 0)
	out, err := a.ReleaseLocks(a.ctx, &pb.ReleaseLocksRequest{Tickets: []int64{ticket}, Paths: []string{"y"}})
	must(t, err)
	want(t, "changed", out.Released+out.Cancelled+int32(out.Revision), 0)
}

func TestForceRelease_TakesAndTells(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b, o := w.agent("a"), w.agent("b"), w.operator()
	fence := a.lock("src/a.go")
	other := a.share("doc.md")
	done := b.waitFor("src/")
	out, err := o.ForceReleaseLocks(o.ctx, &pb.ForceReleaseLocksRequest{Paths: []string{"src/*.go"}, Reason: "stuck"})
	must(t, err)
	want(t, "locks", len(out.Released), 1)
	want(t, "fence", out.Released[0].Fence, fence)
	b.gets(done)
	want(t, "told", len(a.mail("lock_revoked")), 1)
	_, err = o.ForceReleaseLocks(o.ctx, &pb.ForceReleaseLocksRequest{Revisions: []int64{other}})
	wantField(t, err, "reason")
	out, err = o.ForceReleaseLocks(o.ctx, &pb.ForceReleaseLocksRequest{Agent: "a", Reason: "gone"})
	must(t, err)
	want(t, "fence", out.Released[0].Fence, other)
	_, err = a.ForceReleaseLocks(a.ctx, &pb.ForceReleaseLocksRequest{Agent: "b", Reason: "mine"})
	want(t, "another agent", status.Code(err), codes.PermissionDenied)
}

func TestForceRelease_EndsAWaitingCall(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b, o := w.agent("a"), w.agent("b"), w.operator()
	a.lock("x")
	done := b.waitFor("x")
	must(t, drop(o.ForceReleaseLocks(o.ctx, &pb.ForceReleaseLocksRequest{Agent: "b", Reason: "enough"})))
	wantError(t, (<-done).err, codes.FailedPrecondition, "TICKET_REVOKED")
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
	out, err := a.registry.DeregisterAgent(a.ctx, &pb.DeregisterAgentRequest{})
	must(t, err)
	wantError(t, (<-gone).err, codes.FailedPrecondition, "AGENT_NOT_REGISTERED")
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
	must(t, drop(o.sessions.CreateSession(o.ctx, &pb.CreateSessionRequest{Name: "s"})))
	a, b := w.in("s", "a"), w.in("s", "b")
	must(t, drop(a.registry.RegisterAgent(a.ctx, &pb.RegisterAgentRequest{})))
	must(t, drop(b.registry.RegisterAgent(b.ctx, &pb.RegisterAgentRequest{})))
	a.lock("x", "src/")
	done := b.waitFor("x")
	must(t, drop(o.sessions.CloseSession(o.ctx, &pb.CloseSessionRequest{Name: "s"})))
	wantError(t, (<-done).err, codes.FailedPrecondition, "SESSION_CLOSED")
	list := a.list(&pb.ListLocksRequest{})
	want(t, "locks", len(list.Locks)+len(list.Tickets), 0)
	_, err := a.AcquireLocks(a.ctx, &pb.AcquireLocksRequest{Paths: []string{"y"}})
	wantError(t, err, codes.FailedPrecondition, "SESSION_CLOSED")
	must(t, drop(o.sessions.DeleteSession(o.ctx, &pb.DeleteSessionRequest{Name: "s"})))
}

func TestRestart_KeepsGrantsAndTickets(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b, c := w.agent("a"), w.agent("b"), w.agent("c")
	fence := a.held(a.acquire(&pb.AcquireLocksRequest{Paths: []string{"x"}, MaxHold: durationpb.New(10 * time.Second)}))
	ticket := b.keep("x")
	lapses := c.waitFor("x")
	w.pass(7 * time.Second)
	w.Restart()
	if err := (<-lapses).err; err == nil {
		t.Error("a call goes on waiting over a restart")
	}
	list := a.list(&pb.ListLocksRequest{})
	want(t, "fence", list.Locks[0].Fence, fence)
	want(t, "end", list.Locks[0].HeldUntil.AsTime(), w.Clock.Now().Add(40*time.Second).UTC())
	want(t, "ticket", list.Tickets[0].Ticket, ticket)
	w.pass(10 * time.Second)
	w.await("lock.lapsed", fence)
	w.pass(28 * time.Second)
	w.await("lock.expiring", fence)
	w.pass(2 * time.Second)
	w.await("lock.expired", fence)
	b.lock("x")
}

package locks_test

import (
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
)

// A talk is a Lock stream of an agent.
type talk struct {
	pb.LockService_LockClient
	t      apptest.TB
	number int64
	cut    context.CancelFunc
}

func (a *agent) talk() *talk {
	a.Helper()
	ctx, cut := context.WithCancel(a.Ctx)
	stream, err := a.Lock(ctx)
	apptest.NoError(a, err)
	a.Cleanup(cut)
	return &talk{stream, a, 0, cut}
}

// ask sends a request, and returns its number.
func (l *talk) ask(r any) int64 {
	l.t.Helper()
	l.number++
	out := &pb.LockRequest{Number: l.number}
	switch x := r.(type) {
	case *pb.AcquireLocksRequest:
		out.Request = &pb.LockRequest_Acquire{Acquire: x}
	case *pb.ExtendLocksRequest:
		out.Request = &pb.LockRequest_Extend{Extend: x}
	case *pb.ReleaseLocksRequest:
		out.Request = &pb.LockRequest_Release{Release: x}
	}
	apptest.NoError(l.t, l.Send(out))
	return l.number
}

func (l *talk) lock(paths ...string) int64 {
	l.t.Helper()
	return l.ask(&pb.AcquireLocksRequest{Paths: paths})
}

func (l *talk) waitFor(paths ...string) int64 {
	l.t.Helper()
	return l.ask(&pb.AcquireLocksRequest{Paths: paths, Wait: durationpb.New(apptest.LongWait)})
}

func (l *talk) breakOff(number int64) {
	l.t.Helper()
	apptest.NoError(l.t, l.Send(&pb.LockRequest{Number: number, Request: &pb.LockRequest_Cancel{Cancel: &pb.LockCancel{}}}))
}

// hear returns the next answer, which must be the one with a number.
func (l *talk) hear(number int64) *pb.LockResponse {
	l.t.Helper()
	out, err := l.Recv()
	apptest.NoError(l.t, err)
	want(l.t, "number", out.Number, number)
	return out
}

// held returns the fence that the next answer grants.
func (l *talk) held(number int64) int64 {
	l.t.Helper()
	out := l.hear(number)
	want(l.t, fmt.Sprint("outcome of ", out), out.GetAcquired().GetOutcome(), granted)
	return out.GetAcquired().Fence
}

// refused wants the next answer to be an error.
func (l *talk) refused(number int64, code codes.Code, reason string) *pb.ItemError {
	l.t.Helper()
	e := l.hear(number).GetError()
	want(l.t, fmt.Sprint("code of ", e), codes.Code(e.GetCode()), code)
	want(l.t, fmt.Sprint("reason of ", e), e.GetReason(), reason)
	return e
}

// ends wants the stream to end.
func (l *talk) ends() error {
	l.t.Helper()
	out, err := l.Recv()
	if err == nil {
		l.t.Fatal("one more answer:", out)
	}
	return err
}

func TestLock_AnswersEachRequestByItsNumber(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	l := w.agent("a").talk()
	l.lock("src/a.go")
	l.lock("src/b.go")
	a, b := l.held(1), l.held(2)
	want(t, "fences grow", b > a, true)
	ends := l.hear(l.ask(&pb.ExtendLocksRequest{Fences: []int64{b, a}, MaxHold: durationpb.New(time.Hour)})).GetExtended()
	want(t, "ends", len(ends.GetHeldUntil()), 2)
	want(t, "end", ends.HeldUntil[0].AsTime(), w.Clock.Now().Add(time.Hour))
	back := l.hear(l.ask(&pb.ReleaseLocksRequest{Fences: []int64{a}})).GetReleased()
	want(t, "released", back.GetReleased(), 1)
	list := w.operator().list(&pb.ListLocksRequest{})
	want(t, "held", len(list.Locks), 1)
	want(t, "fence", list.Locks[0].Fence, b)
	apptest.NoError(t, l.CloseSend())
	want(t, "end of the stream", l.ends(), io.EOF)
}

func TestLock_RequestsBeginInTheirOrder(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	l := w.agent("a").talk()
	const rounds = 200
	for range rounds {
		l.lock("x")
		l.ask(&pb.ReleaseLocksRequest{Paths: []string{"x"}})
	}
	for n := range int64(rounds) {
		out := l.hear(2*n + 1)
		want(t, "granted", out.GetAcquired().GetOutcome(), granted)
		want(t, "held before", out.GetAcquired().AlreadyHeld, false)
		want(t, "released", l.hear(2*n+2).GetReleased().GetReleased(), 1)
	}
	want(t, "held", len(w.operator().list(&pb.ListLocksRequest{}).Locks), 0)
}

func TestLock_RequestThatWaitsHoldsUpNone(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.agent("a"), w.agent("b")
	fence := b.lock("x")
	l := a.talk()
	waits := l.waitFor("x")
	other := l.held(l.lock("y"))
	want(t, "released", l.hear(l.ask(&pb.ReleaseLocksRequest{Fences: []int64{other}})).GetReleased().GetReleased(), 1)
	b.release(fence)
	l.held(waits)
}

func TestLock_RefusalDoesNotEndTheStream(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	l := w.agent("a").talk()
	e := l.refused(l.lock("../x"), codes.InvalidArgument, "INVALID_ARGUMENT")
	want(t, "field", e.Field, "paths[0]")
	l.refused(l.ask(&pb.ExtendLocksRequest{Fences: []int64{7}}), codes.FailedPrecondition, "LOCK_LOST")
	e = l.refused(l.ask(&pb.ReleaseLocksRequest{}), codes.InvalidArgument, "INVALID_ARGUMENT")
	want(t, "field", e.Field, "fences")
	e = l.refused(l.ask(nil), codes.InvalidArgument, "INVALID_ARGUMENT")
	want(t, "field", e.Field, "request")
	l.held(l.lock("x"))
}

func TestLock_NumberThatCannotBeEndsTheStream(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.agents("a", "b")[0], w.agent("c")
	l := a.talk()
	l.number = -1
	l.lock("x")
	apptest.Invalid(t, l.ends(), "number")

	b.lock("x")
	l = a.talk()
	l.waitFor("x")
	l.number = 0
	l.lock("y")
	apptest.Invalid(t, l.ends(), "number")
}

func TestLock_CancelBreaksARequestOff(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.agent("a"), w.agent("b")
	fence := b.lock("x")
	l := a.talk()
	waits := l.waitFor("x")
	<-w.Waits
	l.breakOff(waits + 1) // nobody's
	l.breakOff(waits)
	l.refused(waits, codes.Canceled, "CANCELED")
	want(t, "tickets", len(w.operator().list(&pb.ListLocksRequest{}).Tickets), 1)
	w.Clock.Advance(10 * time.Second)
	w.await("lock.lapsed", 0)
	b.release(fence)
	want(t, "held", len(w.operator().list(&pb.ListLocksRequest{}).Locks), 0)
}

func TestLock_RequestsOfABrokenStreamAreBrokenOff(t *testing.T) {
	t.Parallel()
	w := newDaemon(t, apptest.WithMetrics())
	a, b := w.agent("a"), w.agent("b")
	fence := b.lock("x")
	l := a.talk()
	l.waitFor("x")
	<-w.Waits
	l.cut()
	_ = l.ends()
	w.Ended("LockService/Lock", 1) // the broker knows that the stream is broken
	b.release(fence)
	w.awaitUncollected("a")
	l = a.talk() // in the same place
	again := l.hear(l.lock("x")).GetAcquired()
	want(t, "outcome", again.GetOutcome(), granted)
	want(t, "held before", again.AlreadyHeld, false)
}

func TestLock_NoMoreThanAThousandRequestsOfAStreamWait(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.agent("a"), w.agent("b")
	fence := b.lock("x")
	l := a.talk()
	const most = 1000
	for range most {
		l.waitFor("x")
		<-w.Waits
	}
	e := l.refused(l.waitFor("x"), codes.ResourceExhausted, "TOO_MANY_WAITS")
	want(t, "retry", e.RetryAfter != nil, true)
	l.held(l.lock("y")) // what does not wait is carried out
	b.release(fence)
	for range most {
		out, err := l.Recv()
		apptest.NoError(t, err)
		want(t, "outcome", out.GetAcquired().GetOutcome(), granted)
	}
}

func TestLock_BrokerThatStopsAnswersWhatWaits(t *testing.T) {
	t.Parallel()
	w := newDaemon(t, apptest.With(func(c *app.Config) { c.StopTimeout = apptest.Patience }))
	a, b := w.agent("a"), w.agent("b")
	b.lock("x")
	idle := b.talk()
	idle.held(idle.lock("y"))
	l := a.talk()
	waits := l.waitFor("x")
	<-w.Waits
	w.Restart()
	l.refused(waits, codes.Unavailable, "SHUTTING_DOWN")
	apptest.Refused(t, l.ends(), codes.Unavailable, "SHUTTING_DOWN")
	apptest.Refused(t, idle.ends(), codes.Unavailable, "SHUTTING_DOWN")
}

func TestLock_OnlyAgentsHold(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	l := w.operator().talk()
	l.refused(l.lock("x"), codes.FailedPrecondition, "AGENT_REQUIRED")
	l = w.in("default", "nobody").talk()
	l.refused(l.lock("x"), codes.FailedPrecondition, "AGENT_NOT_REGISTERED")
}

package locks_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// Each change makes a notice untrue, and withdraws it in the same transaction.

func TestNotice_OfAPassIsWithdrawnWhenTheTokenIsCollected(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.player("a", ""), w.player("b", "")
	a.take()
	a.passTo("b")
	want(t, "before", len(b.mail("token_passed")), 1)
	b.take()
	want(t, "after", len(b.mail("token_passed")), 0)
}

func TestNotice_OfAPassToARoleIsWithdrawnFromAllAgentsOfIt(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b, c := w.player("a", ""), w.player("b", "critic"), w.player("c", "critic")
	a.take()
	a.passToRole("critic")
	want(t, "before", len(b.mail("token_passed"))+len(c.mail("token_passed")), 2)
	c.take()
	want(t, "after", len(b.mail("token_passed"))+len(c.mail("token_passed")), 0)
}

func TestNotice_OfAPassIsWithdrawnWhenTheTokenPassesOn(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.player("a", ""), w.player("b", "")
	fence := a.take().Fence
	a.passTo("b")
	w.Clock.Advance(2 * time.Minute)
	w.await("token.expired", fence)
	want(t, "passed", len(b.mail("token_passed")), 0)
	want(t, "lost", len(b.mail("token_expired")), 1)
}

func TestNotice_OfTheFirstPlaceIsWithdrawnWhenItIsTakenOrGivenUp(t *testing.T) {
	t.Parallel()
	for name, act := range map[string]func(b *player){
		"taken":    func(b *player) { b.take() },
		"given up": func(b *player) { b.giveBack() },
	} {
		t.Run(name, func(t *testing.T) {
			w := newDaemon(t)
			a, b := w.player("a", ""), w.playing("default", "b")
			apptest.Must(t, b.RegisterAgent,
				&pb.RegisterAgentRequest{Lease: durationpb.New(10 * time.Second)})
			start := a.take().Fence
			w.Clock.Advance(10 * time.Second)
			w.await("agent.failed", start)
			a.passTo("b")
			want(t, "before", len(b.mail("token_passed")), 1)
			act(b)
			want(t, "after", len(b.mail("token_passed")), 0)
		})
	}
}

func TestNotice_OfAGrantIsWithdrawnWhenItIsCollected(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.agent("a"), w.agent("b")
	fence := a.lock("x")
	b.keep("x")
	a.release(fence)
	want(t, "before", len(b.mail("lock_granted")), 1)
	b.lock("x")
	want(t, "after", len(b.mail("lock_granted")), 0)
}

func TestNotice_OfAnEndIsWithdrawnByAnExtensionAndByARelease(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a := w.agent("a")
	hold := func(path string) int64 {
		fence := a.held(a.acquire(&pb.AcquireLocksRequest{Paths: []string{path}, MaxHold: durationpb.New(10 * time.Second)}))
		w.Clock.Advance(8 * time.Second)
		w.await("lock.expiring", fence)
		want(t, "before", len(a.mail("lock_expiring")), 1)
		return fence
	}
	extended := hold("x")
	apptest.Must(t, a.ExtendLocks,
		&pb.ExtendLocksRequest{Fences: []int64{extended}, MaxHold: durationpb.New(time.Hour)})
	want(t, "extended", len(a.mail("lock_expiring")), 0)
	a.release(hold("y"))
	want(t, "released", len(a.mail("lock_expiring")), 0)
}

func TestNotice_OfAContestStaysUntilTheLockIsReleased(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.agent("a"), w.agent("b")
	fence := a.lock("x")
	b.keep("x")
	w.Clock.Advance(time.Minute)
	w.await("lock.contested", fence)
	apptest.Must(t, a.ExtendLocks, &pb.ExtendLocksRequest{Fences: []int64{fence}})
	want(t, "extended", len(a.mail("lock_contested")), 1)
	a.release(fence)
	want(t, "released", len(a.mail("lock_contested")), 0)
}

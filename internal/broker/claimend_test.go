package broker_test

import (
	"testing"
	"time"

	"github.com/jonboulle/clockwork"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
)

// A waitClock is a fake clock that stands still. The test ends the timers of LongWait itself.
type waitClock struct {
	apptest.WatchedClock
	ended chan time.Time
}

// NewTimer implements clockwork.Clock.
func (c waitClock) NewTimer(d time.Duration) clockwork.Timer {
	timer := c.WatchedClock.NewTimer(d)
	if d == apptest.LongWait {
		return waitTimer{timer, c.ended}
	}
	return timer
}

type waitTimer struct {
	clockwork.Timer
	ended chan time.Time
}

// Chan implements clockwork.Timer.
func (t waitTimer) Chan() <-chan time.Time { return t.ended }

// The wait of a call ends while the batch is open that gives it a message. The call returns the claim: the agent would
// see it in its next call, and lose it while the broker puts it back.
func TestClaim_OfTheBatchInWhichItsWaitEnds(t *testing.T) {
	t.Parallel()
	clock, writer := waitClock{apptest.NewWatchedClock(), make(chan time.Time)}, newHeldWriter()
	w := &world{Broker: apptest.Start(t, apptest.With(writer.configure),
		apptest.With(func(c *app.Config) { c.Clock, c.StopTimeout = clock, apptest.Patience }))}
	w.Waits = clock.Waits
	a, b := w.agent("a", "worker"), w.agent("b", "worker")
	call := w.wait(b, &pb.ClaimMessagesRequest{Max: 1})
	a.claim(1) // with the end of this batch, the broker may give messages to the call
	writer.hold()
	sent := make(chan error, 1)
	go func() { sent <- drop(a.SendMessages(a.Ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{to("b")}})) }()
	writer.awaitRun(nil)
	clock.ended <- clock.Now()
	<-writer.queued
	writer.release()
	apptest.NoError(t, <-sent)
	if got := call.answer(); len(got.GetClaims()) != 1 {
		t.Errorf("the call returns %v", got)
	}
}

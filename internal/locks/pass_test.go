package locks_test

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestPass_ToAnAgentWhateverTheQueue(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b, c := w.player("a", ""), w.player("b", ""), w.player("c", "")
	old := a.take().Fence
	c.queue()
	out := a.passTo("b")
	want(t, "passed to", out.Agent, "b")
	if out.Fence <= old || out.Revision <= old || out.Fence < out.Revision {
		t.Errorf("fence %d, revision %d after %d", out.Fence, out.Revision, old)
	}
	now := w.token().Token
	want(t, "owner", now.Agent, "b")
	want(t, "uncollected", now.Uncollected, true)
	mail := b.mail("token_passed")
	want(t, "messages", len(mail), 1)
	want(t, "payload", mail[0].Payload, fmt.Sprintf(`{"passed_by":"a","note":"your turn","fence":%d,"holder":"","token":"review/x"}`, out.Fence))
	want(t, "a tries", a.ask(&pb.AcquireTokenRequest{}).Outcome, busy)
	_, err := a.PassToken(a.Ctx, &pb.PassTokenRequest{Type: "review", Scope: "x", To: &pb.PassTokenRequest_Agent{Agent: "c"}})
	apptest.Refused(t, err, codes.FailedPrecondition, "TOKEN_LOST")
	want(t, "a dry run", b.ask(&pb.AcquireTokenRequest{DryRun: true}).Outcome, granted)

	got := b.as("worker-7").take() // whichever of its workers asks first
	want(t, "fence", got.Fence, out.Fence)
	want(t, "passed by", got.PassedBy, "a")
	want(t, "note", got.Note, "your turn")
	want(t, "already held", got.AlreadyHeld, false)
	want(t, "another worker", b.ask(&pb.AcquireTokenRequest{}).Outcome, busy)
	want(t, "holder", w.token().Token.Holder, "worker-7")
	again := b.as("worker-7").take()
	want(t, "again: already held", again.AlreadyHeld, true)
	want(t, "again: note", again.Note, "your turn")
	b.as("worker-7").giveBack()
	want(t, "then the queue", c.take().Note, "")
	_, err = c.PassToken(c.Ctx, &pb.PassTokenRequest{Type: "review", Scope: "x", To: &pb.PassTokenRequest_Agent{Agent: "nobody"}})
	apptest.Refused(t, err, codes.NotFound, "AGENT_NOT_FOUND")
	want(t, "still held by", w.token().Token.Agent, "c")
}

func TestPass_CallThatWaitsHasItAtOnce(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b, c := w.player("a", ""), w.player("b", "critic"), w.player("c", "")
	a.take()
	c.queue()
	waits := b.as("w").await()
	a.passTo("b")
	got := <-waits
	apptest.NoError(t, got.err)
	want(t, "passed by", got.PassedBy, "a")
	want(t, "note", got.Note, "your turn")
	want(t, "uncollected", w.token().Token.Uncollected, false)
	want(t, "messages", len(b.mail("token_passed")), 0)

	// And back, by the role.
	a = &player{a.agent, "w"}
	back := a.await()
	b.as("w").pass(&pb.PassTokenRequest{To: &pb.PassTokenRequest_Agent{Agent: "a"}, MaxHold: durationpb.New(time.Minute)})
	got = <-back
	want(t, "held for", got.HeldUntil.AsTime().Sub(w.Clock.Now()), time.Minute)
	waits = b.await()
	out := a.passToRole("critic")
	want(t, "passed to", out.Agent, "b")
	want(t, "note", (<-waits).Note, "who is free?")
	want(t, "waiting", w.token().Token.Waiting, 1)
}

func TestPass_ReceiverThatDoesNotCollectLosesItToTheQueue(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b, c := w.player("a", ""), w.player("b", ""), w.player("c", "")
	a.take()
	c.queue()
	out := a.passTo("b")
	w.Clock.Advance(time.Minute)
	w.await("token.contested", out.Fence)
	w.Clock.Advance(59 * time.Second)
	want(t, "owner before", w.token().Token.Agent, "b")
	w.Clock.Advance(time.Second)
	expired := w.await("token.expired", out.Fence)
	want(t, "whose", expired.Source, "b")
	want(t, "next", w.await("token.granted", out.Fence).Source, "c")
	want(t, "told", len(b.mail("token_expired")), 1)
	want(t, "c has it", c.take().PassedBy, "")
	want(t, "b comes too late", b.ask(&pb.AcquireTokenRequest{}).Outcome, busy)

	// Who does not want it gives it back.
	c.passTo("b")
	want(t, "given back", b.as("other").giveBack(), true)
	want(t, "state", w.token().Token.State, available)
}

func TestPass_ToARoleTheFirstThatCollectsHasIt(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b, c, d := w.player("a", ""), w.player("b", "critic"), w.player("c", "critic"), w.player("d", "")
	a.take()
	d.queue()
	out := a.passToRole("critic")
	want(t, "agent", out.Agent, "")
	now := w.token().Token
	want(t, "role", now.PassedToRole, "critic")
	want(t, "agent", now.Agent, "")
	want(t, "uncollected", now.Uncollected, true)
	want(t, "messages", len(b.mail("token_passed"))+len(c.mail("token_passed")), 2)
	for _, other := range []*player{a, d} {
		got := other.ask(&pb.AcquireTokenRequest{})
		if got.Outcome == granted || got.Obstacles[0].Agent != "" || got.Obstacles[0].Reason != "passed on by a to the role critic" {
			t.Errorf("%s got %v", other.Name, got)
		}
	}
	got := c.take()
	want(t, "fence", got.Fence, out.Fence)
	want(t, "passed by", got.PassedBy, "a")
	want(t, "note", got.Note, "who is free?")
	want(t, "the second", b.ask(&pb.AcquireTokenRequest{}).Outcome, busy)
	now = w.token().Token
	want(t, "role", now.PassedToRole, "")
	want(t, "agent", now.Agent, "c")
	want(t, "event", w.Root().Events("token.collected")[0].Source, "c")

	out = c.passToRole("critic")
	w.Clock.Advance(time.Minute)
	w.await("token.contested", out.Fence)
	w.Clock.Advance(time.Minute)
	w.await("token.expired", out.Fence)
	want(t, "after 2 min", w.await("token.granted", out.Fence).Source, "d")
	d.take()
	out = d.passToRole("nobody-has-it")
	w.Clock.Advance(2 * time.Minute)
	w.await("token.expired", out.Fence)
	want(t, "and then nobody", w.token().Token.State, available)
}

func TestPass_TheSameRequestIsDoneOnce(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.player("a", ""), w.player("b", "")
	id := newUUID()
	got := a.ask(&pb.AcquireTokenRequest{RequestId: id})
	want(t, "acquired again", a.ask(&pb.AcquireTokenRequest{RequestId: id}).Fence, got.Fence)
	pass := &pb.PassTokenRequest{RequestId: newUUID(), To: &pb.PassTokenRequest_Agent{Agent: "b"}}
	first := a.pass(pass)
	b.take()
	again := a.pass(pass)
	want(t, "fence", again.Fence, first.Fence)
	want(t, "still held by", w.token().Token.Agent, "b")
	pass.Note = "another"
	apptest.Refuses(t, a.PassToken, pass, codes.AlreadyExists, "REQUEST_ID_REUSED")
	release := &pb.ReleaseTokenRequest{RequestId: newUUID(), Type: "review", Scope: "x"}
	for range 2 {
		out := apptest.Must(t, b.ReleaseToken, release)
		want(t, "released", out.Released, true)
	}
}

func TestPass_DeadlockThatItClosesIsNamedToTheYoungest(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b, c := w.player("a", ""), w.player("b", ""), w.player("c", "")
	a.take()
	c.lock("src/")
	waits := b.waitFor("src/a.go") // for c
	youngest := c.await()          // for a
	a.passTo("b")
	got := <-youngest
	apptest.Refused(t, got.err, codes.Aborted, "DEADLOCK")
	circle := w.Root().Events("token.deadlock")
	want(t, "events", len(circle), 1)
	want(t, "the token", w.token().Token.Agent, "b")
	apptest.Must(t, c.ReleaseLocks, &pb.ReleaseLocksRequest{All: true})
	b.gets(waits)
}

func TestPass_ReceiverNeedNotWaitForThoseWhoWaitForItNow(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b, c, d := w.player("a", ""), w.player("b", ""), w.player("c", ""), w.player("d", "")
	a.take()
	d.lock("src/x")
	src := c.keep("src/") // for d
	turn := c.queue()     // for a
	waits := b.waitFor("src/y")
	a.passTo("b") // c waits for b from now on
	b.gets(waits)
	want(t, "c waits on", src < turn, true)
}

func TestPass_ToAnAgentThatIsAwayGoesToTheQueueAndItComesFirst(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b, c, d := w.player("a", ""), w.playing("default", "b"), w.player("c", ""), w.player("d", "")
	apptest.Must(t, b.RegisterAgent, &pb.RegisterAgentRequest{Lease: durationpb.New(10 * time.Second)})
	start := a.take().Fence
	w.Clock.Advance(10 * time.Second)
	w.await("agent.failed", start)
	c.queue()
	d.queue()
	out := a.passTo("b")
	want(t, "the head of the queue", out.Agent, "c")
	want(t, "its fence", out.Fence, w.token().Token.Fence)
	want(t, "its note", c.take().Note, "")
	a.queue()

	first := b.queue() // it is back
	want(t, "told", len(b.mail("token_passed")), 1)
	queue := w.token().Tickets
	want(t, "head", queue[0].Ticket, first)
	wantList(t, "queue", []string{queue[0].Agent, queue[1].Agent, queue[2].Agent}, "b", "d", "a")
	w.Restart()
	want(t, "head after a restart", w.token().Tickets[0].Ticket, first)
	c.giveBack()
	got := b.take()
	want(t, "passed by", got.PassedBy, "a")
	want(t, "note", got.Note, "your turn")
	b.giveBack()
	want(t, "then the queue again", d.take().PassedBy, "")
	want(t, "b comes first once", b.queue() > first, true)
	d.giveBack()
	want(t, "a was there before", a.take().PassedBy, "")

	// With nobody in the queue it is free, and whoever comes takes it.
	b.giveBack()
	w.Clock.Advance(10 * time.Second)
	w.await("agent.failed", first)
	out = a.passTo("b")
	want(t, "nobody", out.Agent, "")
	want(t, "no fence", out.Fence, 0)
	want(t, "state", w.token().Token.State, available)
	want(t, "by b, who is back", b.take().Note, "your turn")
}

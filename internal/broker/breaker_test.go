package broker_test

import (
	"strconv"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
)

// A failing is an agent whose claims have failed so often that its breaker is open.
type failing struct {
	*world
	lead, a *agent
}

// broken returns an agent whose breaker is open, with as many messages waiting for it.
func broken(t testing.TB, waiting int) *failing {
	t.Helper()
	w := newWorld(t)
	f := &failing{w, w.agent("lead", ""), w.agent("a", "builder")}
	for range 5 {
		f.lead.send(to("a", subject("bad")))
		f.a.kill()
	}
	for n := range waiting {
		f.lead.send(to("a", subject(strconv.Itoa(n))))
	}
	return f
}

// shut checks that nothing is handed out, until a time that is known.
func (f *failing) shut(until time.Duration) {
	f.Helper()
	out := f.a.claimWith(&pb.ClaimMessagesRequest{Consumer: newUUID()})
	want(f, "claims", len(out.Claims), 0)
	want(f, "reason", out.EmptyReason, pb.EmptyReason_EMPTY_REASON_BREAKER_OPEN)
	if until == 0 {
		if out.NextDue != nil {
			f.Fatalf("next at %v", out.NextDue)
		}
		return
	}
	want(f, "next", out.NextDue.AsTime(), f.Clock.Now().Add(until))
}

func TestBreaker_OpensAfterFailuresInARow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "")
	fail := func(n int) {
		for range n {
			lead.send(to("a", attempts(1)))
			a.nack(&pb.Nack{ClaimId: a.claim1().ClaimId, Error: "no"})
		}
	}
	fail(4)
	lead.send(to("a"))
	a.ack(a.claim1().ClaimId) // nothing in a row any more
	fail(4)
	want(t, "degraded", len(w.Root().Events("agent.degraded")), 0)
	fail(1)
	e := w.Root().Events("agent.degraded")
	want(t, "degraded", len(e), 1)
	want(t, "severity", e[0].Severity, pb.Severity_SEVERITY_WARNING)
	want(t, "details", e[0].Details, `{"agent":"a","failures":5,"until":"2026-01-02T03:05:05Z"}`)
	lead.send(to("a"))
	(&failing{w, lead, a}).shut(time.Minute)
}

func TestBreaker_CountsClaimsThatRanOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "")
	for range 5 {
		lead.send(to("a"))
	}
	want(t, "claims", len(a.claim(5)), 5)
	w.Clock.Advance(lease)
	w.await("it is degraded", func() bool { return len(w.Root().Events("agent.degraded")) == 1 })
}

func TestBreaker_ReleasesCountNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "")
	lead.send(to("a"))
	for range 10 {
		a.release(a.claim1().ClaimId)
	}
	want(t, "claims", len(a.claim(1)), 1)
}

func TestBreaker_LetsDirectivesThroughAndLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	f := broken(t, 3)
	b := f.agent("b", "builder")
	f.operator().send(to("a", kind("nudge"), subject("hello")))
	wantList(t, "directive", subjectsOf(f.a.claim(5)), "hello")
	f.shut(time.Minute)
	f.lead.send(toRole("builder", subject("role")))
	wantList(t, "another's", subjectsOf(b.claim(5)), "role")
}

func TestBreaker_ProbeDecides(t *testing.T) {
	t.Parallel()
	f := broken(t, 3)
	c := f.a.taker(&pb.ClaimOpen{MaxInFlight: 10})
	c.idle()
	f.Clock.Advance(time.Minute)
	probe := c.take(1)
	wantList(t, "probe", subjectsOf(probe), "0")
	c.idle()
	f.shut(0)

	c.settle(&pb.ClaimRequest{Nacks: []*pb.Nack{{ClaimId: probe[0].ClaimId, Delay: durationpb.New(0)}}})
	want(t, "degraded again", len(f.Root().Events("agent.degraded")), 2)
	f.shut(time.Minute)
	f.Clock.Advance(time.Minute)
	probe = c.take(1)
	wantList(t, "another probe", subjectsOf(probe), "0")

	c.settle(&pb.ClaimRequest{Releases: []string{probe[0].ClaimId}})
	probe = c.take(1)
	want(t, "after a release", probe[0].ClaimId, strconv.FormatInt(probe[0].Message.Revision, 10)+".3")
	c.ack(probe...)
	wantList(t, "all that waits", subjectsOf(c.take(2)), "1", "2")
	want(t, "recovered", len(f.Root().Events("agent.recovered")), 1)
}

func TestBreaker_OneProbeForAllConsumers(t *testing.T) {
	t.Parallel()
	f := broken(t, 0)
	var all []*taker
	for n := range 5 {
		all = append(all, f.a.taker(&pb.ClaimOpen{MaxInFlight: 5, Consumer: "c" + strconv.Itoa(n)}))
	}
	f.Clock.Advance(time.Minute)
	f.lead.sendAll(to("a", subject("1")), toRole("builder", subject("2")), to("a", subject("3")))
	f.lead.sendAll(to("a", subject("4")))
	want(t, "claimed", f.operator().status().Claimed, 1)
	f.shut(0)
	f.Clock.Advance(lease) // no consumer settles it, and a stream holds it for longer
	want(t, "claimed", f.operator().status().Claimed, 1)
	for _, c := range all {
		c.end()
	}
}

func TestBreaker_ProbeThatRunsOutOpensItAgain(t *testing.T) {
	t.Parallel()
	f := broken(t, 2)
	f.Clock.Advance(time.Minute)
	wantList(t, "probe", subjectsOf(f.a.claim(5)), "0")
	f.Clock.Advance(lease)
	f.await("degraded again", func() bool { return len(f.Root().Events("agent.degraded")) == 2 })
	f.shut(time.Minute)
}

func TestBreaker_WaitingCallGetsTheProbe(t *testing.T) {
	t.Parallel()
	f := broken(t, 0)
	f.Root().Configure(&pb.SessionSettings{BreakerTime: durationpb.New(5 * time.Second)})
	f.lead.send(to("a", attempts(1)))
	f.Clock.Advance(time.Minute)
	f.a.kill() // opens it again, for the shorter time
	f.lead.sendAll(to("a", subject("1")), to("a", subject("2")))
	call := f.wait(f.a, &pb.ClaimMessagesRequest{Max: 5})
	f.Clock.Advance(5 * time.Second)
	wantList(t, "probe", subjectsOf(call.answer().Claims), "1")
}

func TestBreaker_LastsOverRestart(t *testing.T) {
	t.Parallel()
	f := broken(t, 2)
	f.Clock.Advance(20 * time.Second)
	f.Restart()
	f.shut(40 * time.Second)
	c := f.a.taker(&pb.ClaimOpen{MaxInFlight: 5})
	c.idle()
	f.Clock.Advance(40 * time.Second)
	probe := c.take(1)
	c.end()
	f.Restart()
	f.shut(0)
	f.a.ack(probe[0].ClaimId)
	want(t, "closed", len(f.a.claim(5)), 1)
}

func TestBreaker_RegisteringAgainClosesIt(t *testing.T) {
	t.Parallel()
	f := broken(t, 2)
	c := f.a.taker(&pb.ClaimOpen{MaxInFlight: 5})
	f.a.Register("builder")
	wantList(t, "claims", subjectsOf(c.take(2)), "0", "1")
	want(t, "recovered", len(f.Root().Events("agent.recovered")), 1)
}

func TestBreaker_CanBeSwitchedOff(t *testing.T) {
	t.Parallel()
	f := broken(t, 2)
	c := f.a.taker(&pb.ClaimOpen{MaxInFlight: 50})
	f.Root().Configure(&pb.SessionSettings{BreakerFailures: new(int32(0))})
	want(t, "claims", len(c.take(2)), 2)
	for range 20 {
		f.lead.send(to("a"))
		c.settle(&pb.ClaimRequest{Nacks: []*pb.Nack{{ClaimId: c.take(1)[0].ClaimId, Fatal: true}}})
	}
}

func TestBreaker_ClaimsFromBeforeDecideNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := &failing{w, w.agent("lead", ""), w.agent("a", "")}
	for range 8 {
		f.lead.send(to("a"))
	}
	claims := f.a.claim(8)
	for _, c := range claims[:5] {
		f.a.nack(&pb.Nack{ClaimId: c.ClaimId, Fatal: true})
	}
	w.Clock.Advance(10 * time.Second)
	f.a.ack(claims[5].ClaimId)
	f.a.nack(&pb.Nack{ClaimId: claims[6].ClaimId, Fatal: true})
	want(t, "degraded once", len(w.Root().Events("agent.degraded")), 1)
	f.shut(50 * time.Second)
}

package broker_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestDirective_OnlyOperatorsAndDirectorsSendThem(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.agent("l", "lead"), w.agent("b", "builder")
	for _, c := range []string{"nudge", "halt", "resume", "terminate", "shutdown_request"} {
		err := builder.refused(to("l", kind(c)))
		apptest.Refused(t, err, codes.PermissionDenied, "NOT_A_DIRECTOR")
		for _, told := range []string{c, "lead or overseer", "directors", `"builder"`} {
			if !strings.Contains(status.Convert(err).Message(), told) {
				t.Errorf("%v says nothing of %s", err, told)
			}
		}
		lead.send(to("b", kind(c)))
		w.operator().send(to("b", kind(c)))
	}
	builder.send(to("l", kind("halting")))
	w.Root().Configure(&pb.SessionSettings{Directors: &pb.Names{Names: []string{"builder"}}})
	builder.send(to("l", kind("nudge")))
	apptest.Refused(t, lead.refused(to("b", kind("nudge"))), codes.PermissionDenied, "NOT_A_DIRECTOR")
}

func TestDirective_RefusedOnAStreamLeavesTheOthersAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.agent("a", "builder"), w.agent("b", "builder")
	s := a.sender()
	got := s.exchange(&pb.SendRequest{Messages: []*pb.Message{to("b", subject("1")), to("b", kind("halt")), to("b", subject("2"))}})
	want(t, "reason", got[1].GetError().GetReason(), "NOT_A_DIRECTOR")
	wantList(t, "claims", subjectsOf(b.claim(5)), "1", "2")
	s.close()
}

func TestDirective_GoesToAgentsAndNotToAQueue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agents("builder", "b1", "b2")
	o := w.operator()
	apptest.Invalid(t, o.refused(toRole("builder", kind("nudge"), one)), "messages[0].reach")
	apptest.Invalid(t, o.refused(toChannel("news", kind("nudge"), one)), "messages[0].reach")
	apptest.Invalid(t, o.refused(to("b1", kind("nudge"), due(w.now(time.Hour)))), "messages[0].not_before")
	apptest.Invalid(t, o.refused(to("b1", kind("nudge"), key("k"))), "messages[0].ordering_key")
	sent := o.send(toRole("builder", kind("nudge")))
	wantList(t, "recipients", recipients(t, sent), "b1", "b2")
	m := o.get(sent.Id).Message
	want(t, "reach", m.Reach, pb.Reach_REACH_ALL)
	want(t, "priority", m.Priority, 10)
}

func TestDirective_IsHandedOutBeforeAnythingElse(t *testing.T) {
	t.Parallel()
	for name, ageing := range map[string]time.Duration{"ageing": 5 * time.Minute, "strict": 0} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.Root().Configure(&pb.SessionSettings{Ageing: durationpb.New(ageing)})
			o, a := w.operator(), w.agent("a", "builder")
			o.sendAll(to("a", subject("old 10"), priority(10)), toRole("builder", subject("role 10"), priority(10)))
			w.Clock.Advance(300 * 24 * time.Hour)
			o.sendAll(to("a", subject("new 10"), priority(10)), to("a", kind("nudge"), subject("first"), priority(1)))
			w.Clock.Advance(time.Second)
			o.send(to("a", kind("terminate"), subject("second"), priority(9)))
			// The ranks of the others are computed anew, those of directives stay.
			w.Root().Configure(&pb.SessionSettings{Ageing: durationpb.New(24 * time.Hour)})
			wantList(t, "claims", subjectsOf(a.claim(9)), "first", "second", "old 10", "role 10", "new 10")
		})
	}
}

func TestDirective_RedrivenIsStillFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o, a := w.operator(), w.agent("a", "")
	id := o.send(to("a", kind("nudge"), subject("directive"))).Id
	a.kill()
	o.send(to("a", subject("work"), priority(10)))
	want(t, "redriven", o.redrive(id), 1)
	wantList(t, "claims", subjectsOf(a.claim(2)), "directive", "work")
}

func TestDirective_GoesIntoAFullMailbox(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Root().Configure(&pb.SessionSettings{MailboxLimit: new(int64(1))})
	o, a := w.operator(), w.agent("a", "")
	o.send(to("a", subject("work")))
	want(t, "refused work", o.send(to("a")).RefusedCount, 1)
	want(t, "refused directives", o.send(to("a", kind("halt"), subject("stop"))).RefusedCount, 0)
	wantList(t, "claims", subjectsOf(a.claim(2)), "stop")
}

func TestHalt_HandsOutDirectivesOnlyUntilTheResume(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("l", "lead"), w.agent("a", "builder")
	c := a.taker(&pb.ClaimOpen{MaxInFlight: 10})
	lead.send(to("a", subject("held")))
	held := c.take(1)
	lead.send(to("a", kind("halt"), subject("stop")))
	stop := c.take(1)
	wantList(t, "directive", subjectsOf(stop), "stop")
	lead.sendAll(to("a", subject("low"), priority(1)), toRole("builder", subject("role")), to("a", subject("high"), priority(9)))
	lead.send(to("a", kind("nudge"), subject("hello")))
	got := c.take(1)
	wantList(t, "directive while halted", subjectsOf(got), "hello")
	c.ack(append(got, held...)...) // what it holds stays its own
	c.idle()
	items, _ := a.receive(&pb.ReceiveRequest{})
	wantList(t, "shown", subjectsIn(items), "stop", "low", "high")
	c.ack(stop...)
	lead.send(to("a", kind("resume"), subject("go")))
	wantList(t, "all that waits", subjectsOf(c.take(4)), "go", "high", "role", "low")
	want(t, "halted", len(w.Root().Events("agent.halted")), 1)
	want(t, "resumed", len(w.Root().Events("agent.resumed")), 1)
}

// What was sent in one batch with the resume does not overtake what waits.
func TestHalt_ResumeKeepsTheOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o, a := w.operator(), w.agent("a", "builder")
	c := a.taker(&pb.ClaimOpen{})
	o.send(to("a", kind("halt")))
	c.ack(c.take(1)...)
	o.sendAll(to("a", subject("1")), toRole("builder", subject("2")), to("a", subject("3"), priority(1)))
	o.sendAll(to("a", kind("resume")), to("a", subject("new")))
	c.ack(c.take(1)...)
	for _, next := range []string{"1", "2", "new", "3"} {
		got := c.take(1)
		wantList(t, "next", subjectsOf(got), next)
		c.ack(got...)
	}
}

func TestHalt_EndsWithTheResume(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o, a := w.operator(), w.agent("a", "builder")
	o.send(to("a", kind("halt"), subject("claimed")))
	claimed := a.claim1()
	o.send(to("a", kind("halt"), subject("nacked")))
	a.nack(&pb.Nack{ClaimId: a.claim(2)[1].ClaimId, Delay: durationpb.New(time.Hour)})
	o.sendAll(to("a", kind("nudge"), subject("hello")), to("a", kind("halt"), subject("unread")))
	o.sendAll(to("a", kind("resume"), subject("go")), to("a", kind("halt"), subject("later")))
	wantList(t, "directives", subjectsOf(a.claim(9)), "hello", "go", "later")
	a.ack(claimed.ClaimId) // the broker has acknowledged it already
	o.send(to("a", kind("resume"), subject("go again")))
	wantList(t, "directives", subjectsOf(a.claim(9)), "hello", "go", "go again")
}

func TestHalt_CallsSayThatTheyGetNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o, a := w.operator(), w.agent("a", "builder")
	o.sendAll(to("a", kind("halt")), to("a", subject("own")), toRole("builder", subject("role")))
	a.ack(a.claim1().ClaimId)
	out := a.claimWith(&pb.ClaimMessagesRequest{})
	want(t, "reason", out.EmptyReason, pb.EmptyReason_EMPTY_REASON_HALTED)
	if out.NextDue != nil {
		t.Errorf("next at %v", out.NextDue)
	}
	call := w.wait(a, &pb.ClaimMessagesRequest{Max: 5, Types: []string{"message"}})
	o.send(to("a", kind("resume")))
	wantList(t, "woken", subjectsOf(call.answer().Claims), "own", "role")
}

func TestHalt_LastsOverRestartAndRegistration(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o, a := w.operator(), w.agent("a", "")
	o.sendAll(to("a", kind("halt")), to("a", subject("work")))
	a.ack(a.claim1().ClaimId)
	w.Restart()
	want(t, "after a restart", len(a.claim(1)), 0)
	a.Register("builder")
	want(t, "registered again", len(a.claim(1)), 0)
	o.send(to("a", kind("halt")))
	want(t, "halted once", len(w.Root().Events("agent.halted")), 1)
	a.deregister()
	a.Register("builder")
	o.send(to("a", subject("anew")))
	wantList(t, "a new registration", subjectsOf(a.claim(1)), "anew")
}

func TestHalt_StopsOnlyThoseWhoGetIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.operator()
	a := w.agents("builder", "b1", "b2", "t1")
	o.send(toPattern("b*", kind("halt")))
	for _, b := range a[:2] {
		b.ack(b.claim1().ClaimId)
	}
	one, two := a[0].taker(&pb.ClaimOpen{}), a[2].taker(&pb.ClaimOpen{MaxInFlight: 20})
	for range 10 {
		o.send(toRole("builder"))
	}
	want(t, "all go to the third", len(two.take(10)), 10)
	one.idle()
	want(t, "names", w.Root().Events("agent.halted")[0].Details[:23], `{"agents":["b1","b2"],"`)
}

func TestDirective_FourRolesDirectByDefault(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent("b", "builder")
	for _, role := range []string{"lead", "overseer", "orchestrator", "project_manager"} {
		w.agent(role, role).send(to("b", kind("nudge")))
	}
}

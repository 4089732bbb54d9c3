package broker_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func thread(id string) change      { return func(m *pb.Message) { m.ThreadId = id } }
func correlation(id string) change { return func(m *pb.Message) { m.CorrelationId = id } }

func TestClaim_ByThreadTaskCorrelationOrSender(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, other, a := w.agent("lead", ""), w.agent("other", ""), w.agent("a", "builder")
	start := lead.send(to("a", subject("start")))
	lead.sendAll(
		to("a", subject("low"), task("t1"), priority(3)), toRole("builder", subject("high"), task("t1"), priority(9)),
		to("a", subject("other task"), task("t2"), correlation("c1")), to("a", subject("named"), thread("login")),
	)
	other.send(to("a", subject("answer"), answers(start.Id)))
	for _, c := range []struct {
		name   string
		r      *pb.ClaimMessagesRequest
		wanted []string
	}{
		{"task", &pb.ClaimMessagesRequest{TaskId: "t1", Max: 9}, []string{"high", "low"}},
		{"task and type", &pb.ClaimMessagesRequest{TaskId: "t1", Types: []string{"other"}, Max: 9}, nil},
		{"task and priority", &pb.ClaimMessagesRequest{TaskId: "t1", LowestPriority: 5, Max: 9}, []string{"high"}},
		{"correlation", &pb.ClaimMessagesRequest{CorrelationId: "c1", Max: 9}, []string{"other task"}},
		{"thread by name", &pb.ClaimMessagesRequest{ThreadId: "login", Max: 9}, []string{"named"}},
		{"thread by first message", &pb.ClaimMessagesRequest{ThreadId: start.Id, Max: 9}, []string{"start", "answer"}},
		{"one of the thread", &pb.ClaimMessagesRequest{ThreadId: start.Id}, []string{"start"}},
		{"sender", &pb.ClaimMessagesRequest{Senders: []string{"other", "nobody"}, Max: 9}, []string{"answer"}},
		{"sender and thread", &pb.ClaimMessagesRequest{Senders: []string{"lead"}, ThreadId: start.Id, Max: 9}, []string{"start"}},
		{"nothing", &pb.ClaimMessagesRequest{TaskId: "t", Max: 9}, nil},
	} {
		got := a.claimWith(c.r)
		wantList(t, c.name, subjectsOf(got.Claims), c.wanted...)
		want(t, c.name+": a reason", got.EmptyReason != 0, c.wanted == nil)
		for _, claim := range got.Claims {
			want(t, c.name+": resumed", claim.Resumed, false)
			a.release(claim.ClaimId)
		}
	}
}

func TestClaim_OfATaskResumesClaimsOfTheTaskOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "builder")
	lead.sendAll(to("a", subject("first"), task("t1")), to("a", subject("second"), task("t2")), to("a", subject("third"), task("t2")))
	a.claim(1)
	r := &pb.ClaimMessagesRequest{TaskId: "t2"}
	got := a.claimWith(r).Claims
	wantList(t, "claimed beside another claim", subjectsOf(got), "second")
	want(t, "resumed", got[0].Resumed, false)
	got = a.claimWith(r).Claims
	wantList(t, "held", subjectsOf(got), "second")
	want(t, "resumed", got[0].Resumed, true)
	r.Max = 5
	wantList(t, "filled up", subjectsOf(a.claimWith(r).Claims), "second", "third")
	wantList(t, "all held", subjectsOf(a.claim(5)), "first", "second", "third")
}

func TestClaim_OfAThreadWaitsForTheThread(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a, b := w.agent("lead", ""), w.agent("a", "builder"), w.agent("b", "builder")
	start := lead.send(to("lead"))
	for _, c := range []struct {
		name string
		r    *pb.ClaimMessagesRequest
		send *pb.Message
	}{
		{"thread", &pb.ClaimMessagesRequest{ThreadId: start.Id}, toRole("builder", answers(start.Id))},
		{"task", &pb.ClaimMessagesRequest{TaskId: "t1"}, toRole("builder", task("t1"))},
		{"correlation", &pb.ClaimMessagesRequest{CorrelationId: "c1"}, toRole("builder", correlation("c1"))},
		{"sender", &pb.ClaimMessagesRequest{Senders: []string{"lead"}}, toRole("builder")},
	} {
		c.r.Wait = durationpb.New(apptest.LongWait)
		got := make(chan *pb.ClaimMessagesResponse, 1)
		go func() {
			out, err := a.ClaimMessages(a.Ctx, c.r)
			if err != nil {
				t.Error(err)
			}
			got <- out
		}()
		<-w.Waits
		w.operator().send(toRole("builder", subject("something else")))
		lead.send(c.send)
		out := (<-got).GetClaims()
		want(t, c.name+": claims", len(out), 1)
		want(t, c.name+": what was sent", out[0].Message.Subject, "")
		wantList(t, c.name+": left", subjectsOf(b.claim(5)), "something else")
		a.ack(out[0].ClaimId)
		b.ack()
	}
}

func TestClaim_GivenMessagesOutOfOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "builder")
	a.subscribe("news")
	sent := lead.sendAll(
		to("a", subject("urgent"), priority(9)), toRole("builder", subject("role")), to("a", subject("low"), priority(1)),
		toChannel("news", one, subject("channel")),
	)
	got := a.claimWith(&pb.ClaimMessagesRequest{Ids: []string{sent[2].Id, rev(sent[3]), sent[1].Id, sent[2].Id}, ClaimFor: durationpb.New(time.Minute)})
	wantList(t, "claimed", subjectsOf(got.Claims), "low", "channel", "role")
	want(t, "mailbox", got.Claims[2].Mailbox, "role:builder")
	want(t, "attempt", got.Claims[0].Attempt, 1)
	for _, id := range []string{sent[1].Id, sent[2].Id, sent[3].Id} {
		want(t, "holder", lead.delivery(id).Holder, "a")
	}
	lead.wantState(sent[0].Id, pending)
	// What the consumer holds is resumed, beside new claims, and no other claim is returned.
	got = a.claimWith(&pb.ClaimMessagesRequest{Ids: []string{sent[0].Id, sent[1].Id}})
	wantList(t, "again", subjectsOf(got.Claims), "role", "urgent")
	want(t, "resumed", got.Claims[0].Resumed, true)
	want(t, "new", got.Claims[1].Resumed, false)
	a.ack(got.Claims[0].ClaimId, got.Claims[1].ClaimId)
	// The claims run out as all do.
	w.Clock.Advance(time.Minute)
	w.await("low has failed", func() bool { return lead.delivery(sent[2].Id).Attempts == 1 })
}

func TestClaim_AGivenMessageSaysWhyItCannotBeClaimed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a, b := w.agent("lead", "lead"), w.agent("a", "builder"), w.agent("b", "builder")
	sent := lead.sendAll(
		toRole("builder", subject("held")), to("a", subject("done")), to("a", subject("delayed"), due(w.now(time.Hour))),
		to("a", subject("first"), key("k")), to("a", subject("second"), key("k")), to("b"), toRole("lead"), to("a", ttl(time.Minute)),
		to("a", subject("free")),
	)
	b.claimWith(&pb.ClaimMessagesRequest{Ids: []string{sent[0].Id}, Consumer: "worker"})
	a.ack(sent[1].Id)
	own := a.send(toRole("builder"))
	w.Clock.Advance(time.Minute)
	for _, c := range []struct {
		id     string
		code   codes.Code
		reason string
		text   string
	}{
		{sent[0].Id, codes.FailedPrecondition, "ALREADY_CLAIMED", `agent "b" holds it (consumer "worker")`},
		{sent[1].Id, codes.FailedPrecondition, "FINISHED", `(ACKED by "a")`},
		{sent[2].Id, codes.FailedPrecondition, "DELAYED", "delayed until 2026-01-02T04:04:05Z"},
		{sent[4].Id, codes.FailedPrecondition, "BLOCKED_BY_ORDER", "ordering key"},
		{sent[5].Id, codes.NotFound, "MESSAGE_NOT_FOUND", "in no mailbox"},
		{sent[6].Id, codes.NotFound, "MESSAGE_NOT_FOUND", "in no mailbox"},
		{sent[7].Id, codes.FailedPrecondition, "FINISHED", "(EXPIRED)"},
		{own.Id, codes.FailedPrecondition, "OWN_MESSAGE", "another one must take it"},
		{newUUID(), codes.NotFound, "MESSAGE_NOT_FOUND", "there is no message"},
	} {
		_, err := a.ClaimMessages(a.Ctx, &pb.ClaimMessagesRequest{Ids: []string{sent[8].Id, c.id}})
		apptest.Refused(t, err, c.code, c.reason)
		wantText(t, err, c.text)
	}
	lead.wantState(sent[8].Id, pending) // all or none
	_, err := a.ClaimMessages(a.Ctx, &pb.ClaimMessagesRequest{Ids: []string{sent[8].Id}, Mailboxes: []string{"role:builder"}})
	apptest.Refused(t, err, codes.NotFound, "MESSAGE_NOT_FOUND")
	_, err = a.ClaimMessages(a.Ctx, &pb.ClaimMessagesRequest{Ids: []string{sent[8].Id}, Mailboxes: []string{"b"}})
	apptest.Refused(t, err, codes.PermissionDenied, "NOT_YOUR_MAILBOX")
	a.claimWith(&pb.ClaimMessagesRequest{Ids: []string{sent[8].Id}, Consumer: "one"})
	_, err = a.ClaimMessages(a.Ctx, &pb.ClaimMessagesRequest{Ids: []string{sent[8].Id}, Consumer: "two"})
	apptest.Refused(t, err, codes.FailedPrecondition, "ALREADY_CLAIMED")
	wantText(t, err, `agent "a" holds it (consumer "one")`)
	want(t, "claims of the given messages alone", len(w.Root().Events("message.claimed")), 2)
}

func TestClaim_AGivenMessageStopsAtHaltAndBreaker(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Root().Configure(&pb.SessionSettings{BreakerFailures: new(int32(1))})
	lead, a := w.agent("lead", "lead"), w.agent("a", "builder")
	sent := lead.sendAll(to("a"), to("a"), to("a"))
	claim := func(ids ...string) error { return drop(a.ClaimMessages(a.Ctx, &pb.ClaimMessagesRequest{Ids: ids})) }
	halt := lead.send(to("a", kind("halt")))
	apptest.Refused(t, claim(sent[0].Id), codes.FailedPrecondition, "HALTED")
	apptest.NoError(t, claim(halt.Id))
	a.ack(halt.Id)
	a.ack(lead.send(to("a", kind("resume"))).Id)
	apptest.NoError(t, claim(sent[0].Id))
	a.nack(&pb.Nack{ClaimId: sent[0].Id, Fatal: true})
	err := claim(sent[1].Id)
	apptest.Refused(t, err, codes.FailedPrecondition, "BREAKER_OPEN")
	w.Clock.Advance(time.Minute)
	// One probe passes, and what fails as a whole leaves the probe to the next call.
	apptest.Refused(t, claim(sent[1].Id, sent[2].Id), codes.FailedPrecondition, "BREAKER_OPEN")
	apptest.NoError(t, claim(sent[2].Id))
	apptest.Refused(t, claim(sent[1].Id), codes.FailedPrecondition, "BREAKER_OPEN")
	a.ack(sent[2].Id)
	apptest.NoError(t, claim(sent[1].Id))
}

func TestClaim_ChecksGivenIDsAndTopics(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "builder")
	id := a.send(to("a")).Id
	long := string(make([]byte, 129))
	for _, c := range []struct {
		field string
		r     *pb.ClaimMessagesRequest
	}{
		{"ids", &pb.ClaimMessagesRequest{Ids: []string{id}, Max: 1}}, {"ids", &pb.ClaimMessagesRequest{Ids: []string{id}, TaskId: "t"}},
		{"ids", &pb.ClaimMessagesRequest{Ids: []string{id}, Wait: durationpb.New(time.Second)}},
		{"ids", &pb.ClaimMessagesRequest{Ids: []string{id}, Types: []string{"t"}}}, {"ids[0]", &pb.ClaimMessagesRequest{Ids: []string{"7.1"}}},
		{"thread_id", &pb.ClaimMessagesRequest{ThreadId: long}}, {"task_id", &pb.ClaimMessagesRequest{TaskId: long}},
		{"correlation_id", &pb.ClaimMessagesRequest{CorrelationId: long}}, {"senders[0]", &pb.ClaimMessagesRequest{Senders: []string{" "}}},
	} {
		_, err := a.ClaimMessages(a.Ctx, c.r)
		apptest.Invalid(t, err, c.field)
	}
}

// wantText checks that an error says something.
func wantText(t testing.TB, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("%v does not say %q", err, text)
	}
}

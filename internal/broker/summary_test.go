package broker_test

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func (a *agent) summary() *pb.GetInboxSummaryResponse {
	a.Helper()
	return apptest.Must(a, a.GetInboxSummary, &pb.GetInboxSummaryRequest{})
}

func (a *agent) beat() *pb.HeartbeatResponse {
	a.Helper()
	return apptest.Must(a, a.Heartbeat, &pb.HeartbeatRequest{})
}

// self is the agent as the registry shows it.
func (a *agent) self() *pb.Agent {
	a.Helper()
	return apptest.Must(a, a.GetAgent, &pb.GetAgentRequest{}).Agent
}

func TestSummary_CountsWhatAnAgentHasBeforeIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "builder")
	empty := a.summary()
	want(t, "nothing", empty.Total+empty.Unread+empty.Claimable+empty.Claimed, 0)
	if empty.OldestAt != nil || empty.BreakerOpenUntil != nil {
		t.Errorf("empty: %v", empty)
	}
	oldest := w.Clock.Now()
	lead.sendAll(to("a", kind("x")), to("a", kind("y"), priority(9)), to("a", kind("x"), key("k")))
	w.Clock.Advance(time.Second)
	lead.sendAll(to("a", kind("x"), key("k")), toRole("builder"), to("a", due(w.now(time.Hour))))
	a.list(&pb.ListMessagesRequest{PageSize: 1, MarkRead: true})
	a.claim1()
	s := a.summary()
	want(t, "total", s.Total, 4)
	want(t, "unread", s.Unread, 3)
	want(t, "claimable", s.Claimable, 3)
	want(t, "claimed", s.Claimed, 1)
	want(t, "oldest", s.OldestAt.AsTime(), oldest)
	want(t, "priorities", len(s.ByPriority), 2)
	want(t, "highest", s.ByPriority[0].Priority, 9)
	want(t, "of it", s.ByPriority[0].Count, 1)
	want(t, "normal", s.ByPriority[1].Count, 3)
	want(t, "types", len(s.ByType), 2)
	want(t, "most frequent", s.ByType[0].Type, "x")
	want(t, "of it", s.ByType[0].Count, 3)
	if s.Revision <= empty.Revision {
		t.Errorf("revision %d after %d", s.Revision, empty.Revision)
	}
	_, err := w.in("default", "ghost").GetInboxSummary(a.Ctx, &pb.GetInboxSummaryRequest{})
	apptest.Refused(t, err, codes.FailedPrecondition, "AGENT_NOT_REGISTERED")
}

func TestSummary_ShowsOpenQuestions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "builder")
	question := func(m *pb.Message) { m.RequiresResponse = true }
	mine := a.send(to("lead", question, subject("mine")))
	own := lead.send(to("a", question, subject("own")))
	w.Clock.Advance(time.Second)
	queued := lead.send(toRole("builder", question, subject("queued"), priority(9)))
	lead.sendAll(to("a"), to("a", question, due(w.now(time.Hour)), subject("not yet")))
	s := a.summary()
	want(t, "asked", len(s.Asked), 1)
	want(t, "asked", s.Asked[0].Id, mine.Id)
	want(t, "owed", len(s.Owed), 1)
	want(t, "owed", s.Owed[0].Id, own.Id)
	want(t, "subject", s.Owed[0].Subject, "own")
	want(t, "from", s.Owed[0].Sender, "lead")
	a.claim1()
	want(t, "owed once it is claimed", a.summary().Owed[1].Id, queued.Id)
	apptest.Must(t, a.Reply, &pb.ReplyRequest{Id: own.Id, Message: &pb.Message{Body: "so it is"}})
	want(t, "owed", len(a.summary().Owed), 1)
	want(t, "asked of the lead", len(lead.summary().Asked), 2)
}

func TestSummary_ShowsDirectivesAndGates(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o, a := w.operator(), w.agent("a", "")
	o.sendAll(to("a"), to("a", kind("nudge"), subject("1")), to("a", kind("halt"), subject("2")))
	s := a.summary()
	want(t, "directives", len(s.Directives), 2)
	want(t, "oldest", s.Directives[0].Subject, "1")
	want(t, "newest", s.Directives[1].Subject, "2")
	want(t, "halted", s.Halted, true)
	wantList(t, "heartbeat", a.beat().Directives, "nudge", "halt")
	want(t, "in the registry", a.self().Halted, true)
	a.ack(a.claim1().ClaimId)
	wantList(t, "unfinished", a.beat().Directives, "halt")
	o.send(to("a", kind("resume")))
	want(t, "halted", a.summary().Halted, false)
	want(t, "in the registry", a.self().Halted, false)
}

func TestSummary_ShowsTheBreaker(t *testing.T) {
	t.Parallel()
	f := broken(t, 1)
	want(t, "open until", f.a.summary().BreakerOpenUntil.AsTime(), f.Clock.Now().Add(time.Minute))
	want(t, "degraded", f.a.self().Degraded, true)
	f.Clock.Advance(time.Minute)
	c := f.a.claimWith(&pb.ClaimMessagesRequest{ClaimFor: durationpb.New(time.Hour)}).Claims[0]
	want(t, "degraded while the probe is out", f.a.self().Degraded, true)
	f.a.ack(c.ClaimId)
	want(t, "degraded", f.a.self().Degraded, false)
	if until := f.a.summary().BreakerOpenUntil; until != nil {
		t.Errorf("still open until %v", until.AsTime())
	}
}

func TestCounts_EndAtAThousand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "builder")
	oldest := w.Clock.Now()
	for range 4 {
		batch := make([]*pb.Message, 300)
		for i := range batch {
			batch[i] = to("a", kind("x"))
		}
		lead.sendAll(batch...)
		w.Clock.Advance(time.Second)
	}
	lead.sendAll(toRole("builder"), to("a", kind("y")))
	s := a.summary()
	want(t, "total", s.Total, 1000)
	want(t, "unread", s.Unread, 1000)
	want(t, "claimable", s.Claimable, 1000)
	want(t, "oldest", s.OldestAt.AsTime(), oldest)
	want(t, "most frequent", s.ByType[0].Count, 999)
	want(t, "newest", s.ByType[1].Type, "y")
	beat := a.beat()
	want(t, "unread", beat.Unread, 1000)
	want(t, "claimable", beat.Claimable, 1000)

	a.list(&pb.ListMessagesRequest{PageSize: 500, NewestFirst: true, MarkRead: true})
	want(t, "unread", a.beat().Unread, 500)
	a.deregister()
	w.await("the mail is dead-lettered", func() bool { return len(w.Root().Events("message.dead")) > 0 })
	status := w.operator().status()
	want(t, "mailboxes", len(status.Mailboxes), 2)
	want(t, "mailbox", status.Mailboxes[1].Mailbox, "a")
	want(t, "dead", status.Mailboxes[1].Dead, 1000)
	want(t, "dead in all", status.Dead, 1201)
}

func TestDirectives_AreFoundWhateverTheirState(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o, a := w.operator(), w.agent("a", "builder")
	o.sendAll(to("a"), to("a", kind("nudge")), to("a", kind("terminate")), to("a", kind("shutdown_request")))
	nudge := a.claim1()
	a.nack(&pb.Nack{ClaimId: nudge.ClaimId, Error: "busy"})
	a.claim1()
	a.claimWith(&pb.ClaimMessagesRequest{Types: []string{"task"}})
	wantList(t, "directives", a.beat().Directives, "nudge", "terminate", "shutdown_request")
	want(t, "in the summary", len(a.summary().Directives), 3)
}

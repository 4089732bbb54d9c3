package broker_test

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestDeregister_ClaimsGoBackUncountedAndOwnMailIsDead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a, b := w.agent("lead", ""), w.agent("a", "builder"), w.agent("b", "builder")
	own := lead.sendAll(to("a"), to("a", key("k")), to("a", key("k")), to("a", due(w.now(time.Hour))))
	queued := lead.send(toRole("builder", subject("queued"), key("k")))
	done := lead.send(to("a", priority(10)))
	a.ack(a.claim1().ClaimId)
	want(t, "claims", len(a.claim(10)), 3) // two of its own and the queued one
	a.deregister()

	d := lead.delivery(queued.Id)
	want(t, "queued", d.State, pending)
	want(t, "attempts", d.Attempts, 0)
	wantList(t, "another takes it", subjectsOf(b.claim(5)), "queued")
	for _, r := range own {
		d := lead.delivery(r.Id)
		want(t, "own", d.State, dead)
		want(t, "error", d.History[len(d.History)-1].Error, "AGENT_GONE: done")
		want(t, "finished_at", d.FinishedAt.AsTime(), w.Clock.Now())
	}
	lead.wantState(done.Id, acked)
	want(t, "dead letters", len(w.operator().deadLetters()), 4)
	apptest.Refused(t, lead.refused(to("a")), codes.NotFound, "AGENT_NOT_FOUND")
	want(t, "everyone", lead.send(toEveryone()).RecipientCount, 1)
}

func TestDeregister_EndsStreamsAndWaitingCalls(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "builder")
	c := a.taker(&pb.ClaimOpen{MaxInFlight: 10})
	lead.sendAll(toRole("builder", subject("1")), toRole("builder", subject("2")))
	held := c.take(2)
	r := a.reader(&pb.ReceiveRequest{Follow: true})
	r.page()
	call := w.wait(a, &pb.ClaimMessagesRequest{Consumer: "call"})
	a.deregister()

	for n := 0; n < 2; {
		revoked := c.revoked()
		want(t, "reason", revoked.Reason, pb.RevokeReason_REVOKE_REASON_SETTLED)
		n += len(revoked.ClaimIds)
	}
	apptest.Refused(t, c.ended(), codes.FailedPrecondition, "AGENT_NOT_REGISTERED")
	<-call.out
	apptest.Refused(t, <-call.err, codes.FailedPrecondition, "AGENT_NOT_REGISTERED")
	apptest.Refused(t, apptest.Err(r.stream.Recv()), codes.FailedPrecondition, "AGENT_NOT_REGISTERED")
	for _, m := range held {
		lead.wantState(m.Message.Id, pending)
		want(t, "attempts", lead.delivery(m.Message.Id).Attempts, 0)
	}
	lead.send(toRole("builder", subject("3")))
	wantList(t, "nobody had them since", subjectsOf(w.agent("b", "builder").claim(5)), "1", "2", "3")
}

func TestDeregister_EndsSubscriptions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "")
	a.subscribe("news")
	a.deregister()
	want(t, "subscribers", len(lead.channelList(&pb.ListChannelsRequest{})[0].Subscribers), 0)
	want(t, "recipients", lead.send(toChannel("news")).RecipientCount, 0)
}

func TestDeregister_RegisteringAgainBringsTheMailboxBackEmpty(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "builder")
	a.subscribe("news")
	gone := lead.send(to("a")).Id
	a.deregister()
	a.Register("builder")
	want(t, "claims", len(a.claim(5)), 0)
	items, _ := a.receive(&pb.ReceiveRequest{})
	want(t, "received", len(items), 0)
	want(t, "subscriptions", len(a.channelList(&pb.ListChannelsRequest{Subscriber: "a"})), 0)
	want(t, "its dead letters", len(a.deadLetters()), 1)
	fresh := lead.send(to("a"))
	want(t, "new mail", a.claim1().Message.Id, fresh.Id)
	a.ack(fresh.Id)
	want(t, "redriven", a.redrive(gone), 1)
	want(t, "message", a.claim1().Message.Id, gone)
}

func TestRegister_AgainTakesOverWhatIsHeld(t *testing.T) {
	t.Parallel()
	s := staged(t)
	s.worker.subscribe("news")
	c := s.worker.taker(&pb.ClaimOpen{MaxInFlight: 2})
	held := c.take(1)
	s.worker.Register("builder")
	s.lead.send(to("worker", subject("more")))
	wantList(t, "the stream goes on", subjectsOf(c.take(1)), "more")
	c.ack(held...)
	want(t, "recipients", s.lead.send(toChannel("news")).RecipientCount, 1)
}

// The agent holds more claims than one function of the writer ends.
func TestClaims_OfAnAgentThatEndsGoBackInPages(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(w *world, a *agent){
		"deregisters": func(_ *world, a *agent) { a.deregister() },
		"fails":       func(w *world, _ *agent) { w.Clock.Advance(time.Minute) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.Root().Configure(&pb.SessionSettings{BreakerFailures: new(int32(2))})
			lead, a := w.agent("lead", ""), w.in("default", "a")
			apptest.Must(t, a.RegisterAgent,
				&pb.RegisterAgentRequest{Role: "builder", Lease: durationpb.New(time.Minute)})
			batch := make([]*pb.Message, 900)
			for i := range batch {
				batch[i] = toRole("builder")
			}
			lead.sendAll(batch...)
			claims := a.claimWith(&pb.ClaimMessagesRequest{Max: 900, ClaimFor: durationpb.New(time.Hour)}).Claims
			want(t, "claims", len(claims), 900)
			w.breakWhen("state", `OLD.state = 2`, 300)
			end(w, a)
			w.awaitLog(pageFailed)
			want(t, "claims after the first page", w.number(`SELECT count(*) FROM deliveries WHERE state = 2`), 700)
			w.mend()
			w.Clock.Advance(time.Second)
			w.awaitNone(`SELECT count(*) FROM deliveries WHERE state = 2`)
			want(t, "breakers", len(w.Root().Events("agent.degraded")), 0)
			attempts := 0
			if name == "fails" {
				attempts = 900
			}
			want(t, "attempts", w.number(`SELECT count(*) FROM attempts`), attempts)
		})
	}
}

func TestCloseSession_EndsManyDeparturesInPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.operator()
	apptest.Must(t, o.CreateSession, &pb.CreateSessionRequest{Name: "other"})
	w.sql(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 12000)
		INSERT INTO mailboxes (session, kind, name, waiting) SELECT (SELECT id FROM sessions WHERE name = 'other'), 1, 'gone-' || i, 0 FROM n`,
		`INSERT INTO departures (mailbox, role, reason, dead) SELECT id, '', 'done', 0 FROM mailboxes WHERE name LIKE 'gone-%'`)
	apptest.Must(t, o.CloseSession, &pb.CloseSessionRequest{Name: "other"}) // the world fails if a function does too much
	w.awaitClosed()
	want(t, "departures", w.number(`SELECT COUNT(*) FROM departures`), 0)
}

func TestDeregister_CancelsManyUnreadNoticesInPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", "lead"), w.agent("a", "builder")
	lead.send(to("a"))
	w.sql(`UPDATE meta SET revision = 100000`)
	w.sql(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 12000)
		INSERT INTO messages (revision, id, session, sender, sender_role, created_at, type, priority, content)
		SELECT 1000 + i, m.id, 1, 'system', '', 1, 'overdue', m.priority, m.content FROM n, messages m`,
		`INSERT INTO deliveries (message, mailbox, state, rank, arrival, max_attempts)
		SELECT revision, (SELECT id FROM mailboxes WHERE kind = 1 AND name = 'a'), 9, 1, revision, 3 FROM messages WHERE type = 'overdue'`)
	a.deregister()
	w.await("the notices are cancelled", func() bool { return w.number(`SELECT COUNT(*) FROM deliveries WHERE state = 9`) == 0 })
	want(t, "cancelled", w.number(`SELECT COUNT(*) FROM deliveries WHERE state = 8`), 12000)
	w.awaitEvents("message.dead", 1)
}

package broker_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// An asked is a call of Ask that is under way.
type asked struct {
	t    apptest.TB
	done chan struct{}
	out  *pb.AskResponse
	err  error
}

// asks makes a call, and returns once it waits. The response is due later: a timer of the calendar's over the
// same time would look like the call's.
func (w *world) asks(a *agent, m *pb.Message) *asked {
	w.Helper()
	return w.asksWith(a.Ctx, a, &pb.AskRequest{Message: m})
}

func (w *world) asksWith(ctx context.Context, a *agent, r *pb.AskRequest) *asked {
	w.Helper()
	call := &asked{t: w, done: make(chan struct{})}
	r.Wait = durationpb.New(apptest.LongWait)
	if r.Message.ResponseDeadline == nil {
		r.Message.RequiresResponse, r.Message.ResponseDeadline = true, w.now(time.Hour)
	}
	go func() {
		defer close(call.done)
		call.out, call.err = a.Ask(ctx, r)
	}()
	w.begun()
	return call
}

func (c *asked) answer() *pb.AskResponse {
	c.t.Helper()
	<-c.done
	apptest.NoError(c.t, c.err)
	return c.out
}

func (c *asked) failed(code codes.Code, reason string) {
	c.t.Helper()
	<-c.done
	apptest.Refused(c.t, c.err, code, reason)
}

// reply answers a message.
func (a *agent) reply(id, text string) *pb.ReplyResponse {
	a.Helper()
	return apptest.Must(a, a.Reply, &pb.ReplyRequest{Id: id, Message: &pb.Message{Subject: text}})
}

func TestAsk_ReplyGoesToTheWaitingCallAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.agent("lead", "lead"), w.agent("builder", "builder")
	reader, err := lead.Receive(lead.Ctx, &pb.ReceiveRequest{Follow: true})
	apptest.NoError(t, err)
	apptest.NoError(t, drop(reader.Recv()))
	call := w.asks(lead, toRole("builder", subject("ready?"), func(m *pb.Message) { m.CorrelationId = "c" }))
	got := builder.claim1()
	out := apptest.Must(t, builder.Reply, &pb.ReplyRequest{Message: &pb.Message{Subject: "yes"}, Ack: true})
	want(t, "awaited", out.Awaited, true)
	wantList(t, "recipients", recipients(t, out.Result), "lead")
	answer := call.answer()
	want(t, "question", answer.Id, got.Message.Id)
	want(t, "revision", answer.Revision, got.Message.Revision)
	reply := answer.Reply
	want(t, "reply", reply.Id, out.Result.Id)
	want(t, "subject", reply.Subject, "yes")
	want(t, "in_reply_to", reply.InReplyTo, got.Message.Id)
	want(t, "thread", reply.ThreadId, got.Message.ThreadId)
	want(t, "correlation", reply.CorrelationId, "c")
	want(t, "target", reply.Target.GetAgent(), "lead")
	builder.wantState(got.Message.Id, acked)
	d := lead.delivery(reply.Id)
	want(t, "state", d.State, acked)
	want(t, "acked by", d.AckedBy, "lead")
	if d.DeliveredAt == nil || d.ReadAt == nil || d.FinishedAt == nil {
		t.Fatalf("not marked: %v", d)
	}
	builder.send(to("lead", subject("next")))
	page, err := reader.Recv()
	apptest.NoError(t, err)
	wantList(t, "Receive", subjectsIn(page.Items), "next")
	wantList(t, "ClaimMessages", subjectsOf(lead.claim(10)), "next")
}

func TestAsk_OrdinarySendWithInReplyToIsAReply(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.agent("lead", "lead"), w.agent("builder", "builder")
	call := w.asks(lead, to("builder"))
	id := builder.claim1().Message.Id
	s := builder.sender()
	s.exchange(&pb.SendRequest{Messages: []*pb.Message{to("lead", subject("yes"), answers(id)), to("lead", subject("and"), answers(id))}})
	s.end()
	want(t, "reply", call.answer().Reply.Subject, "yes")
	wantList(t, "the second is mail", subjectsIn(lead.inbox()), "and")
}

func TestAsk_LateReplyIsOrdinaryMail(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.agent("lead", "lead"), w.agent("builder", "builder")
	call := w.asks(lead, to("builder"))
	w.Clock.Advance(apptest.LongWait)
	out := call.answer()
	want(t, "reply", out.Reply, nil)
	want(t, "awaited", builder.reply(out.Id, "late").Awaited, false)
	wantList(t, "mail", subjectsOf(lead.claim(10)), "late")
}

func TestAsk_BrokenCallLeavesTheReplyToTheMailbox(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.agent("lead", "lead"), w.agent("builder", "builder")
	ctx, cancel := context.WithCancel(lead.Ctx)
	call := w.asksWith(ctx, lead, &pb.AskRequest{Message: to("builder")})
	id := builder.claim1().Message.Id
	cancel()
	call.failed(codes.Canceled, "")
	wantList(t, "mail", subjectsIn(lead.inbox())) // on the connection of the call: the broker has seen its end before
	builder.reply(id, "yes")
	w.await("the reply is mail", func() bool { return len(subjectsIn(lead.inbox())) == 1 })
}

func TestAsk_NobodyCouldReply(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead", "lead")
	lead.subscribe("news")
	ask := func(m *pb.Message) error { return drop(lead.Ask(lead.Ctx, &pb.AskRequest{Message: m})) }
	for _, m := range []*pb.Message{
		to("lead"), toRole("lead"), toRole("builder"), toRole("builder", all), toChannel("news"), toChannel("other"), toChannel("news", one),
		toPattern("l*"), toPattern("x*"), toEveryone(),
	} {
		apptest.Refused(t, ask(m), codes.FailedPrecondition, "NO_RESPONDERS")
	}
	apptest.Refused(t, ask(to("nobody")), codes.NotFound, "AGENT_NOT_FOUND")
	want(t, "sent", len(w.Root().Events("message.sent")), 0)
	builder := w.agent("builder", "builder")
	w.Root().Configure(&pb.SessionSettings{MailboxLimit: new(int64(1))})
	builder.send(to("builder"))
	apptest.Refused(t, ask(to("builder")), codes.ResourceExhausted, "MAILBOX_FULL")
}

func TestAsk_ChecksItsFields(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead", "lead")
	w.agent("builder", "")
	ask := func(m *pb.Message, wait time.Duration) error {
		return drop(lead.Ask(lead.Ctx, &pb.AskRequest{Message: m, Wait: durationpb.New(wait)}))
	}
	apptest.Invalid(t, ask(to("builder"), time.Hour+1), "wait")
	apptest.Invalid(t, ask(to("builder"), 0), "wait")
	apptest.Invalid(t, ask(nil, time.Second), "message")
	apptest.Invalid(t, ask(to("builder", priority(11)), time.Second), "message.priority")
	apptest.Invalid(t, ask(to("builder", deadline(w.now(0))), time.Second), "message.response_deadline")
	apptest.Invalid(t, ask(to("builder", due(w.now(year+time.Second))), time.Second), "message.not_before")
}

func TestAsk_WaitsHalfAMinuteUnlessAskedOtherwise(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.agent("lead", "lead"), w.agent("builder", "builder")
	call := &asked{t: t, done: make(chan struct{})}
	go func() {
		defer close(call.done)
		call.out, call.err = lead.Ask(lead.Ctx, &pb.AskRequest{Message: to("builder")})
	}()
	w.await("the question is there", func() bool { return len(builder.inbox()) == 1 })
	got := builder.claim1().Message
	want(t, "requires_response", got.RequiresResponse, true)
	want(t, "deadline", got.ResponseDeadline.AsTime(), w.Clock.Now().Add(30*time.Second))
	builder.reply(got.Id, "yes")
	want(t, "reply", call.answer().Reply.Subject, "yes")
}

func TestAsk_SameRequestGoesOnWaitingOrGetsTheReply(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.agent("lead", "lead"), w.agent("builder", "builder")
	until := deadline(w.now(time.Hour))
	request := func(id string) *pb.AskRequest {
		return &pb.AskRequest{RequestId: id, Message: to("builder", subject("?"), until), Wait: durationpb.New(apptest.LongWait)}
	}
	id := newUUID()
	first := w.asksWith(lead.Ctx, lead, request(id))
	second := w.asksWith(lead.Ctx, lead, request(id))
	builder.reply(builder.claim1().Message.Id, "yes")
	want(t, "first", first.answer().Reply.Subject, "yes")
	want(t, "second", second.answer().Reply.Subject, "yes")
	wantList(t, "one question", subjectsOf(builder.claim(10)), "?") // which it holds already
	third := apptest.Must(t, lead.Ask, request(id))
	want(t, "afterwards", third.Reply.Subject, "yes")
	r := request(id)
	r.Message.Subject = "other"
	apptest.Refused(t, drop(lead.Ask(lead.Ctx, r)), codes.AlreadyExists, "REQUEST_ID_REUSED")
}

func TestAsk_SameRequestTakesALateReplyOutOfTheMailbox(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.agent("lead", "lead"), w.agent("builder", "builder")
	r := &pb.AskRequest{RequestId: newUUID(), Message: to("builder")}
	call := w.asksWith(lead.Ctx, lead, r)
	w.Clock.Advance(apptest.LongWait)
	out := builder.reply(call.answer().Id, "late")
	w.Restart()
	again := apptest.Must(t, lead.Ask, r)
	want(t, "reply", again.Reply.GetSubject(), "late")
	lead.wantState(out.Result.Id, acked)
	wantList(t, "mail", subjectsIn(lead.inbox()))
}

func TestAsk_QuestionAskedAgainAfterARestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.agent("lead", "lead"), w.agent("builder", "builder")
	r := &pb.AskRequest{RequestId: newUUID(), Message: to("builder")}
	call := w.asksWith(lead.Ctx, lead, r)
	w.Restart()
	call.failed(codes.Unavailable, "SHUTTING_DOWN")
	again := w.asksWith(lead.Ctx, lead, r)
	got := builder.claim(10)
	want(t, "questions", len(got), 1)
	builder.reply(got[0].Message.Id, "yes")
	want(t, "reply", again.answer().Reply.Subject, "yes")
	wantList(t, "mail", subjectsIn(lead.inbox()))
}

func TestAsk_OperatorWithoutAnAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o, builder := w.operator(), w.agent("builder", "builder")
	call := w.asks(o, toRole("builder"))
	id := builder.claim1().Message.Id
	want(t, "awaited", builder.reply(id, "yes").Awaited, true)
	want(t, "reply", call.answer().Reply.Subject, "yes")
	want(t, "late", builder.reply(id, "once more").Awaited, false)
	wantList(t, "mail", subjectsIn(o.inbox()), "once more")
	call = w.asks(o, toRole("builder", subject("again")))
	builder.ack()
	builder.send(to("system", subject("by hand"), answers(builder.claim1().Message.Id)))
	want(t, "reply", call.answer().Reply.Subject, "by hand")
}

func TestAsk_OwnMessageIsNoReply(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.agent("lead", "lead"), w.agent("builder", "builder")
	call := w.asks(lead, to("builder"))
	id := builder.claim1().Message.Id
	lead.send(to("builder", answers(id), subject("hurry")))
	w.operator().send(to("lead", answers(id), kind("nudge"))) // a directive is none either
	want(t, "awaited", lead.reply(id, "to myself").Awaited, false)
	builder.reply(id, "yes")
	want(t, "reply", call.answer().Reply.Subject, "yes")
}

func TestAsk_DelayedReplyIsMailWhenItIsDue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.agent("lead", "lead"), w.agent("builder", "builder")
	r := &pb.AskRequest{RequestId: newUUID(), Message: to("builder")}
	call := w.asksWith(lead.Ctx, lead, r)
	id := builder.claim1().Message.Id
	reply := builder.send(to("lead", answers(id), due(w.now(time.Minute))))
	w.Clock.Advance(apptest.LongWait)
	want(t, "reply", call.answer().Reply, nil)
	again := apptest.Must(t, lead.Ask, r)
	want(t, "not yet", again.Reply, nil)
	w.Clock.Advance(time.Minute)
	w.awaitState(reply.Id, pending)
	again = apptest.Must(t, lead.Ask, r)
	want(t, "now", again.Reply.GetId(), reply.Id)
	lead.wantState(reply.Id, acked)
	want(t, "overdue", len(w.Root().Events("message.overdue")), 0)
}

func TestAsk_FullMailboxOfTheAskerTakesNoReplyAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.agent("lead", "lead"), w.agent("builder", "builder")
	w.Root().Configure(&pb.SessionSettings{MailboxLimit: new(int64(1))})
	lead.send(to("lead"))
	call := w.asks(lead, to("builder"))
	out := builder.reply(builder.claim1().Message.Id, "yes")
	wantList(t, "recipients", recipients(t, out.Result), "lead")
	want(t, "reply", call.answer().Reply.Subject, "yes")
}

func TestAsk_EndsWhenTheQuestionIsSettledOrTheAskerGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.agent("lead", "lead"), w.agent("builder", "builder")
	call := w.asks(lead, to("builder", subject("cancelled")))
	lead.cancel(builder.list(&pb.ListMessagesRequest{}).Items[0].Message.Id)
	want(t, "reply", call.answer().Reply, nil)
	call = w.asks(lead, to("builder", func(m *pb.Message) { m.ThreadId = "t" }))
	apptest.Must(t, builder.ResolveThread, &pb.ResolveThreadRequest{ThreadId: "t", Outcome: "no"})
	want(t, "reply", call.answer().Reply, nil)
	call = w.asks(lead, to("builder"))
	lead.deregister()
	call.failed(codes.FailedPrecondition, "AGENT_NOT_REGISTERED")
}

func TestAsk_EndsWithItsSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.project()
	call := w.asks(lead, to("builder"))
	lead.send(to("builder", question, resendAfter(time.Minute)))
	w.closeSession("project")
	call.failed(codes.FailedPrecondition, "SESSION_CLOSED")
	wantClosed(t, "ask", drop(lead.Ask(lead.Ctx, &pb.AskRequest{Message: to("builder")})))
	wantClosed(t, "reply", drop(builder.Reply(builder.Ctx, &pb.ReplyRequest{Id: "1", Message: &pb.Message{}})))
	wantClosed(t, "resend", drop(lead.ResendMessage(lead.Ctx, &pb.ResendMessageRequest{Id: "1"})))
	wantClosed(t, "resolve", drop(lead.ResolveThread(lead.Ctx, &pb.ResolveThreadRequest{ThreadId: "t", Outcome: "o"})))
	w.sentinel(2 * time.Hour)
	o := w.in("project", "")
	out := apptest.Must(t, o.ListEvents,
		&pb.ListEventsRequest{Filter: &pb.EventFilter{Types: []string{"message.overdue", "message.resent"}}})
	want(t, "what happens in it", len(out.Events), 0)
}

// Each reply is either returned by Ask or lies in the mailbox: never both, never neither.
func TestAsk_ReplyRacesWithTheEndOfTheWait(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.agent("lead", "lead"), w.agent("builder", "builder")
	got := map[bool]int{}
	for i := range 300 {
		call := w.asks(lead, to("builder"))
		id := builder.claim1().Message.Id
		var both sync.WaitGroup
		var reply *pb.ReplyResponse
		both.Go(func() {
			reply, _ = builder.Reply(builder.Ctx, &pb.ReplyRequest{Id: id, Message: &pb.Message{Subject: "yes"}, Ack: true})
		})
		both.Go(func() { // a reply takes about as long as a few other calls
			for range i % 6 {
				_ = builder.inbox()
			}
			w.Clock.Advance(apptest.LongWait)
		})
		both.Wait()
		returned := call.answer().Reply != nil
		got[returned]++
		want(t, "told the truth", reply.Awaited, returned)
		want(t, "mail", len(subjectsIn(lead.inbox())), map[bool]int{true: 0, false: 1}[returned])
		if !returned {
			lead.claim1()
			lead.ack()
		}
	}
	t.Logf("returned %d, in the mailbox %d", got[true], got[false])
}

// A call that breaks off in the moment of its reply leaves it to the mailbox, or to the same request.
func TestAsk_ReplyRacesWithABrokenCall(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.agent("lead", "lead"), w.agent("builder", "builder")
	for i := range 150 {
		r := &pb.AskRequest{RequestId: newUUID(), Message: to("builder")}
		ctx, cancel := context.WithCancel(lead.Ctx)
		call := w.asksWith(ctx, lead, r)
		id := builder.claim1().Message.Id
		var both sync.WaitGroup
		both.Go(func() {
			_, _ = builder.Reply(builder.Ctx, &pb.ReplyRequest{Id: id, Message: &pb.Message{Subject: "yes"}, Ack: true})
		})
		both.Go(func() {
			for range i % 6 {
				_ = builder.inbox()
			}
			cancel()
		})
		both.Wait()
		<-call.done
		again := apptest.Must(t, lead.Ask, r)
		want(t, "reply", again.Reply.GetSubject(), "yes")
		wantList(t, "mail", subjectsIn(lead.inbox()))
	}
	w.Restart() // by then every broken call has returned
	wantList(t, "mail", subjectsIn(lead.inbox()))
	t.Logf("put into the mailbox first: %d", len(w.Root().Events("message.resent")))
}

func TestAsk_ManyAtOnceEachGetTheirOwnReply(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	askers, builders := w.agents("lead", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8"), w.agents("builder", "b1", "b2", "b3")
	ctx, cancel := context.WithCancel(t.Context())
	var working, asking sync.WaitGroup
	for _, b := range builders {
		working.Go(func() {
			for {
				got, err := b.ClaimMessages(ctx, &pb.ClaimMessagesRequest{Wait: durationpb.New(time.Minute)})
				if err != nil {
					return // the test is over
				}
				for _, c := range got.Claims {
					reply := &pb.Message{Subject: c.Message.Subject}
					if err := drop(b.Reply(b.Ctx, &pb.ReplyRequest{Id: c.ClaimId, Message: reply, Ack: true})); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	for _, a := range askers {
		asking.Go(func() {
			for range 25 {
				text := newUUID()
				out, err := a.Ask(a.Ctx, &pb.AskRequest{Message: toRole("builder", subject(text))})
				if err != nil || out.Reply.GetSubject() != text {
					t.Errorf("%s asked %s and got %v, %v", a.Name, text, out, err)
				}
			}
		})
	}
	asking.Wait()
	cancel()
	working.Wait()
	for _, a := range askers {
		wantList(t, "mail", subjectsIn(a.inbox()))
	}
}

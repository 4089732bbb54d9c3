package broker_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/admission"
	"brokerd/internal/agents"
	"brokerd/internal/apptest"
	"brokerd/internal/backlog"
	"brokerd/internal/broker"
	"brokerd/internal/conversations"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/idempotency"
	inboxes "brokerd/internal/inbox"
	"brokerd/internal/messagesrpc"
	"brokerd/internal/msgtype"
	"brokerd/internal/notices"
	"brokerd/internal/offers"
	"brokerd/internal/router"
	"brokerd/internal/schema"
	"brokerd/internal/sessions"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
	"brokerd/internal/work"
)

// builtin is a catalog in which no session registers a type.
type builtin struct{}

func (builtin) Types(context.Context, string) (*msgtype.Set, error) { return msgtype.NewSet(nil), nil }

// awake knows no agent that is asleep.
type awake struct{}

func (awake) Asleep(string, string) (time.Time, bool) { return time.Time{}, false }

// serviceOn returns the service of messages on a store, without the other parts of a daemon, and what sends notices.
func serviceOn(
	t *testing.T, st *store.Store, log *events.Log, dir *directory.Directory, clock clockwork.Clock,
) (*messagesrpc.Service, *notices.Sender) {
	t.Helper()
	core := broker.New(st, log, dir, clock, zap.NewNop())
	rest := backlog.New(st, dir, core, clock, zap.NewNop())
	sends := router.New(st, log, dir, core, rest, clock)
	control := admission.New(st, log, dir, core, clock, zap.NewNop())
	sends.UseAdmission(control, control, control)
	core.UseGates(control.Gates, control.Gates)
	reader := inboxes.New(st, log, dir, core, control.Gates, clock)
	sender := notices.New(dir, core, sends)
	exchanges := conversations.New(st, log, dir, sender, core, sends, rest, clock, zap.NewNop())
	offered := offers.New(st, log, core)
	core.UseQuestions(exchanges)
	sends.UseQuestions(exchanges)
	core.UseOffers(offered)
	t.Cleanup(core.Stop)
	apptest.NoError(t, core.Start(t.Context()))
	t.Cleanup(rest.Stop)
	apptest.NoError(t, rest.Start(t.Context()))
	return messagesrpc.NewService(
		core, sends, control, reader, exchanges, nil, offered, builtin{}, awake{}, nil, nil, zap.NewNop()), sender
}

func TestNotify_ReachesRegisteredAgentsAndNeverFailsTheChange(t *testing.T) {
	t.Parallel()
	clock := clockwork.NewFakeClock()
	st := testkit.Store(t, t.TempDir(), clock, events.Migrations(), idempotency.Migrations(), work.Migrations(),
		sessions.Migrations(), agents.Migrations(), schema.Migrations())
	testkit.Agents(t, st, "builder", "a", "b")
	testkit.Agents(t, st, "", "c")
	dir := directory.New()
	change := func(statement string, args ...any) {
		t.Helper()
		apptest.NoError(t, st.Write(t.Context(), func(tx *store.Tx) error {
			tx.Exec(statement, args...)
			dir.SessionsChanged(tx)
			return nil
		}))
	}
	small, err := proto.Marshal(&pb.SessionSettings{MailboxLimit: proto.Int64(1)})
	apptest.NoError(t, err)
	change(`UPDATE sessions SET settings = ? WHERE id = 1`, small)
	log := events.New(st, clock, zap.NewNop())
	service, sender := serviceOn(t, st, log, dir, clock)
	conn, _ := testkit.Serve(t, func(r grpc.ServiceRegistrar) {
		pb.RegisterMessageServiceServer(r, service)
	})
	inbox := func(name string) (found []*pb.Message) {
		t.Helper()
		out, err := pb.NewMessageServiceClient(conn).ListMessages(testkit.Agent(t.Context(), name), &pb.ListMessagesRequest{})
		apptest.NoError(t, err)
		for _, i := range out.GetItems() {
			found = append(found, i.GetMessage())
		}
		return found
	}
	notify := func(session int64, n work.Notice) {
		t.Helper()
		apptest.NoError(t, st.Write(t.Context(), func(tx *store.Tx) error { return sender.Notify(tx, session, n) }))
	}

	for range 3 { // into a full mailbox too
		notify(1, work.Notice{Agent: "a", Type: "lock_revoked", Subject: "lost", Payload: `{"fence":7}`})
	}
	got := inbox("a")
	want(t, "notices", len(got), 3)
	m := got[0]
	if diff := cmp.Diff([]any{"a", "system", "lock_revoked", "lost", `{"fence":7}`, int32(7)},
		[]any{m.GetTarget().GetAgent(), m.GetSender(), m.GetType(), m.GetSubject(), m.GetPayload(), m.GetPriority()}); diff != "" {
		t.Error(diff)
	}
	notify(1, work.Notice{Role: "builder", Type: "token_passed", Subject: strings.Repeat("ä", 400)})
	want(t, "of the role", inbox("b")[0].GetTarget().GetRole(), "builder")
	want(t, "bytes of a long subject", len(inbox("b")[0].GetSubject()) <= 512, true)
	want(t, "for both of it", len(inbox("a")), 4)
	want(t, "for others", len(inbox("c")), 0)

	before := st.Revision()
	notify(1, work.Notice{Agent: "gone", Type: "t"})
	notify(1, work.Notice{Role: "nobody", Type: "t"})
	notify(99, work.Notice{Agent: "a", Type: "t"})
	change(`UPDATE sessions SET closed_at = 1 WHERE id = 1`)
	notify(1, work.Notice{Agent: "a", Type: "t"})
	want(t, "changes for nobody", st.Revision()-before, 0)
}

// notices returns the agent's unread notices, which are read by that.
func (a *agent) notices() []*pb.Notice {
	a.Helper()
	return a.claimWith(&pb.ClaimMessagesRequest{Notices: true, Types: []string{"no-such-type"}}).Notices
}

// overdue makes a question overdue, and returns it once the agents of the role lead have a notice
// about it.
func (w *world) overdue(lead *agent) *pb.SendResult {
	w.Helper()
	before := len(w.Root().Events("message.overdue"))
	q := lead.send(to("builder", subject("ready?"), deadline(w.now(time.Minute))))
	w.Clock.Advance(time.Minute)
	w.awaitEvents("message.overdue", before+1)
	return q
}

// notice returns the message id of the only notice in the agent's inbox.
func (a *agent) notice() string {
	a.Helper()
	items := a.list(&pb.ListMessagesRequest{}).Items // which reads nothing
	if len(items) != 1 || items[0].Delivery.State != unread {
		a.Fatalf("the inbox is %v", items)
	}
	return items[0].Message.Id
}

// claims begins a call that waits for work, with or without notices.
func (w *world) claims(a *agent, notices bool) <-chan *pb.ClaimMessagesResponse {
	done := make(chan *pb.ClaimMessagesResponse, 1)
	go func() {
		out, err := a.ClaimMessages(a.Ctx, &pb.ClaimMessagesRequest{Wait: durationpb.New(apptest.LongWait), Notices: notices})
		if err != nil {
			w.Error(err)
		}
		done <- out
	}()
	<-w.Waits
	return done
}

const unread = pb.DeliveryState_DELIVERY_STATE_NOTICE

func TestNotice_IsNotWork(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead", "lead")
	w.agent("builder", "builder")
	worker := lead.taker(&pb.ClaimOpen{})
	w.overdue(lead)
	id := lead.notice()
	want(t, "claimable", len(lead.claim(10)), 0)
	_, err := lead.ClaimMessages(lead.Ctx, &pb.ClaimMessagesRequest{Ids: []string{id}})
	apptest.Refused(t, err, codes.FailedPrecondition, "NOTICE")
	lead.send(to("lead", subject("work")))
	wantList(t, "the stream delivers", subjectsOf(worker.take(1)), "work")
	sum := apptest.Must(t, lead.GetInboxSummary, &pb.GetInboxSummaryRequest{})
	want(t, "counted as notices", sum.Notices, 1)
	want(t, "counted as mail", sum.Total, 1)
	beat := apptest.Must(t, lead.Heartbeat, &pb.HeartbeatRequest{})
	want(t, "counted as unread", beat.Unread, 1)
	want(t, "returned to a caller that does not ask", len(beat.Notices), 0)
	for _, box := range w.operator().status().Mailboxes {
		if box.Mailbox == "lead" {
			want(t, "waiting", box.Waiting, 0)
		}
	}
	lead.wantState(id, unread)
}

func TestNotice_IsReadOnce(t *testing.T) {
	t.Parallel()
	type reading struct {
		name string
		read func(a *agent, id string) int
	}
	for _, r := range []reading{
		{"claim", func(a *agent, _ string) int { return len(a.notices()) }},
		{"heartbeat", func(a *agent, _ string) int {
			out := apptest.Must(a, a.Heartbeat, &pb.HeartbeatRequest{Notices: true})
			return len(out.Notices)
		}},
		{"receive", func(a *agent, _ string) int {
			items, _ := a.receive(&pb.ReceiveRequest{})
			return len(items)
		}},
		{"receive by priority", func(a *agent, _ string) int {
			items, _ := a.receive(&pb.ReceiveRequest{Order: pb.MessageOrder_MESSAGE_ORDER_PRIORITY})
			return len(items)
		}},
		{"auto_ack", func(a *agent, _ string) int {
			items, _ := a.receive(&pb.ReceiveRequest{AutoAck: true})
			return len(items)
		}},
		{"list", func(a *agent, _ string) int { return len(a.list(&pb.ListMessagesRequest{MarkRead: true}).Items) }},
		{"ack", func(a *agent, id string) int {
			defer a.ack(id)
			return len(a.list(&pb.ListMessagesRequest{}).Items)
		}},
	} {
		t.Run(r.name, func(t *testing.T) {
			w := newWorld(t)
			lead := w.agent("lead", "lead")
			w.agent("builder", "builder")
			w.overdue(lead)
			id := lead.notice()
			w.Restart()
			lead = w.in("default", "lead")
			want(t, "first", r.read(lead, id), 1)
			lead.wantState(id, acked)
			want(t, "attempts", lead.delivery(id).Attempts, 0)
			want(t, "read", lead.delivery(id).ReadAt != nil, true)
			want(t, "then", len(lead.inbox())+len(lead.notices()), 0)
		})
	}
}

func TestNotice_StaysUnreadForAReaderThatKeepsNotices(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead", "lead")
	w.agent("builder", "builder")
	w.overdue(lead)
	id := lead.notice()
	for _, order := range []pb.MessageOrder{pb.MessageOrder_MESSAGE_ORDER_UNSPECIFIED, pb.MessageOrder_MESSAGE_ORDER_PRIORITY} {
		items, _ := lead.receive(&pb.ReceiveRequest{KeepNotices: true, Order: order})
		want(t, "shown", len(items), 1)
	}
	w.Restart()
	lead = w.in("default", "lead")
	want(t, "unread", lead.notice(), id)
	want(t, "delivered", lead.delivery(id).DeliveredAt != nil, true)
	lead.ack(id)
	lead.wantState(id, acked)

	stream, err := lead.Receive(lead.Ctx, &pb.ReceiveRequest{KeepNotices: true, AutoAck: true})
	apptest.NoError(t, err)
	apptest.Invalid(t, apptest.Err(stream.Recv()), "keep_notices")
}

func TestNotice_EndsTheWaitOfACallThatAsksForNotices(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, plain := w.agent("lead", "lead"), w.agent("plain", "lead")
	w.agent("builder", "builder")
	q := lead.send(to("builder", question, deadline(w.now(time.Second))))
	waits, others := w.claims(lead, true), w.claims(plain, false)
	w.Clock.Advance(time.Second)
	got := <-waits
	want(t, "notices", len(got.Notices), 1)
	want(t, "type", got.Notices[0].Type, "overdue")
	want(t, "subject", strings.Contains(got.Notices[0].Subject, itoa(q.Revision)), true)
	w.Clock.Advance(apptest.LongWait)
	want(t, "of a call that does not ask", len((<-others).GetNotices()), 0)
	want(t, "still unread", len(plain.notices()), 1)
}

func TestNotice_WithAClaimInOneAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead", "lead")
	w.agent("builder", "builder")
	w.overdue(lead)
	lead.send(to("lead", subject("work")))
	got := lead.claimWith(&pb.ClaimMessagesRequest{Notices: true})
	wantList(t, "claims", subjectsOf(got.Claims), "work")
	want(t, "notices", len(got.Notices), 1)
}

func TestNotice_IsWithdrawnWhenTheQuestionIsSettled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.agent("lead", "lead"), w.agent("builder", "builder")
	for name, settle := range map[string]func(q *pb.SendResult){
		"reply":  func(q *pb.SendResult) { builder.reply(q.Id, "yes") },
		"cancel": func(q *pb.SendResult) { lead.cancel(q.Id) },
		"resolve": func(q *pb.SendResult) {
			apptest.Must(t, lead.ResolveThread, &pb.ResolveThreadRequest{ThreadId: q.Id, Outcome: "settled"})
		},
	} {
		q := w.overdue(lead)
		id := lead.notice()
		settle(q)
		lead.wantState(id, cancelled)
		for _, item := range lead.inbox() {
			lead.ack(item.Message.Id)
		}
		want(t, name, len(lead.notices()), 0)
	}
}

func TestNotice_ExpiresUnreadAfterADay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead", "lead")
	w.agent("builder", "builder")
	w.overdue(lead)
	id := lead.notice()
	apptest.Must(t, lead.RegisterAgent,
		&pb.RegisterAgentRequest{Role: "lead", Lease: durationpb.New(7 * 24 * time.Hour)})
	w.Clock.Advance(24*time.Hour - time.Second)
	lead.wantState(id, unread)
	w.Clock.Advance(time.Second)
	w.awaitState(id, expired)
}

func TestNotice_EndsWithItsAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, other := w.agent("lead", "lead"), w.agent("other", "lead")
	w.agent("builder", "builder")
	w.overdue(lead)
	id := lead.notice()
	lead.deregister()
	for _, d := range w.operator().get(id).Deliveries {
		want(t, d.Mailbox, d.State, map[string]pb.DeliveryState{"lead": cancelled, "other": unread}[d.Mailbox])
	}
	want(t, "of another agent", other.notice(), id)
}

func TestNotice_EndsWithItsSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	operator := w.operator()
	apptest.Must(t, operator.CreateSession, &pb.CreateSessionRequest{Name: "short"})
	lead, builder := w.in("short", "lead"), w.in("short", "builder")
	lead.Register("lead")
	builder.Register("builder")
	other := w.in("short", "other")
	other.Register("lead")
	lead.send(to("builder", deadline(w.now(time.Second))))
	waits := w.claims(other, true)
	w.Clock.Advance(time.Second)
	want(t, "notices", len((<-waits).GetNotices()), 1)
	id := lead.notice()
	apptest.Must(t, operator.CloseSession, &pb.CloseSessionRequest{Name: "short"})
	for _, d := range w.in("short", "").get(id).Deliveries {
		want(t, d.Mailbox, d.State, map[string]pb.DeliveryState{"lead": cancelled, "other": acked}[d.Mailbox])
	}
}

func TestNotice_CanBeCancelledByAnOperator(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead", "lead")
	w.agent("builder", "builder")
	w.overdue(lead)
	id := lead.notice()
	want(t, "cancelled", w.operator().cancel(id).Cancelled, 1)
	lead.wantState(id, cancelled)
}

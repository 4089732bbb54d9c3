package broker_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// thread returns how a conversation stands.
func (a *agent) thread(name string) *pb.ThreadSummary {
	a.Helper()
	return a.list(&pb.ListMessagesRequest{Filter: &pb.MessageFilter{ThreadId: name}, PageSize: 1}).Thread
}

// resolve notes the outcome of a conversation.
func (a *agent) resolve(thread, outcome string) (*pb.ResolveThreadResponse, error) {
	a.Helper()
	return a.ResolveThread(a.Ctx, &pb.ResolveThreadRequest{ThreadId: thread, Outcome: outcome})
}

func TestThread_SummaryCoversAllOfTheConversation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder, other := w.agent("lead", "lead"), w.agent("builder", "builder"), w.agent("other", "")
	other.subscribe("news")
	began := w.Clock.Now()
	first := lead.send(toRole("builder", subject("login?"), question))
	w.Clock.Advance(time.Minute)
	second := lead.send(toChannel("news", subject("who?"), deadline(w.now(time.Hour)), answers(first.Id)))
	lead.send(to("other", subject("elsewhere"), question))
	for _, box := range []pb.MessageBox{pb.MessageBox_MESSAGE_BOX_INBOX, pb.MessageBox_MESSAGE_BOX_ALL} {
		got := builder.list(&pb.ListMessagesRequest{Box: box, Filter: &pb.MessageFilter{ThreadId: first.Id}}).Thread
		want(t, "thread", got.ThreadId, first.Id)
		want(t, "messages", got.Messages, 2)
		wantList(t, "participants", got.Participants, "lead", "other", "role:builder")
		want(t, "first", got.FirstAt.AsTime(), began)
		want(t, "last", got.LastAt.AsTime(), began.Add(time.Minute))
		want(t, "open", len(got.OpenQuestions), 2)
		want(t, "outcome", got.Outcome, "")
		q := got.OpenQuestions[0]
		want(t, "id", q.Id, first.Id)
		want(t, "revision", q.Revision, first.Revision)
		want(t, "sender", q.Sender, "lead")
		want(t, "subject", q.Subject, "login?")
		want(t, "deadline", q.Deadline.AsTime(), began.Add(10*time.Minute))
		want(t, "overdue", q.Overdue, false)
		want(t, "the newer one", got.OpenQuestions[1].Id, second.Id)
	}
	claim := builder.claim1()
	builder.reply(claim.ClaimId, "mine")
	got := lead.thread(first.Id)
	want(t, "messages", got.Messages, 3)
	wantList(t, "participants", got.Participants, "builder", "lead", "other", "role:builder")
	want(t, "open", len(got.OpenQuestions), 1)
	w.sentinel(time.Hour)
	want(t, "overdue", lead.thread(first.Id).OpenQuestions[0].Overdue, true)
	want(t, "no such thread", lead.thread("nothing"), nil)
	want(t, "without the filter", lead.list(&pb.ListMessagesRequest{}).Thread, nil)
	want(t, "of another session", w.elsewhere().thread(first.Id), nil)
}

// elsewhere is an operator's view of another session.
func (w *world) elsewhere() *agent {
	w.Helper()
	o := w.operator()
	apptest.Must(w, o.CreateSession, &pb.CreateSessionRequest{Name: "elsewhere"})
	return w.in("elsewhere", "")
}

func TestResolveThread_NotesTheOutcomeAndSettlesItsQuestions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder, other := w.agent("lead", "lead"), w.agent("builder", "builder"), w.agent("other", "")
	first := lead.send(toRole("builder", question))
	lead.send(to("lead", question, answers(first.Id)))
	open := lead.send(to("builder", question, func(m *pb.Message) { m.ThreadId = "named" }))
	apptest.Refused(t, apptest.Err(other.resolve(first.Id, "no")), codes.PermissionDenied, "NOT_A_PARTICIPANT")
	apptest.Refused(t, apptest.Err(builder.resolve(first.Id, "not yet")), codes.PermissionDenied, "NOT_A_PARTICIPANT")
	builder.claim(2) // from its role's queue too: now it has got it
	out, err := builder.resolve(first.Id, "shipped\nin 1.2")
	apptest.NoError(t, err)
	want(t, "settled", out.Settled, 2)
	e := w.Root().Events("thread.resolved")
	want(t, "events", len(e), 1)
	want(t, "revision", e[0].Revision, out.Revision)
	want(t, "source", e[0].Source, "builder")
	want(t, "details", e[0].Details, `{"thread":"`+first.Id+`","outcome":"shipped\nin 1.2","settled":2}`)
	got := lead.thread(first.Id)
	want(t, "outcome", got.Outcome, "shipped\nin 1.2")
	want(t, "by", got.ResolvedBy, "builder")
	want(t, "at", got.ResolvedAt.AsTime(), w.Clock.Now())
	want(t, "open", len(got.OpenQuestions), 0)
	want(t, "of another thread", len(lead.thread("named").OpenQuestions), 1)
	out, err = w.operator().resolve(first.Id, "taken back")
	apptest.NoError(t, err)
	want(t, "settled", out.Settled, 0)
	w.Restart()
	want(t, "outcome", lead.thread(first.Id).Outcome, "taken back")
	want(t, "by", lead.thread(first.Id).ResolvedBy, "system")
	_, err = builder.resolve(open.Id, "by the id of its first message")
	apptest.NoError(t, err)
	want(t, "outcome", lead.thread("named").Outcome, "by the id of its first message")
}

func TestResolveThread_ChecksItsFields(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead", "lead")
	apptest.Invalid(t, apptest.Err(lead.resolve("", "x")), "thread_id")
	apptest.Invalid(t, apptest.Err(lead.resolve("t", "")), "outcome")
	apptest.Invalid(t, apptest.Err(lead.resolve("t", strings.Repeat("x", 4097))), "outcome")
	for _, thread := range []string{"t", newUUID(), "4711"} {
		apptest.Refused(t, apptest.Err(lead.resolve(thread, "x")), codes.NotFound, "THREAD_NOT_FOUND")
	}
	id := lead.send(to("lead")).Id
	apptest.Refused(t, apptest.Err(w.elsewhere().resolve(id, "x")), codes.NotFound, "THREAD_NOT_FOUND")
	r := &pb.ResolveThreadRequest{RequestId: newUUID(), ThreadId: id, Outcome: "x"}
	apptest.Must(t, lead.ResolveThread, r)
	apptest.Must(t, lead.ResolveThread, r)
	want(t, "once", len(w.Root().Events("thread.resolved")), 1)
}

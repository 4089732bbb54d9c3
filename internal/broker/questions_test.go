package broker_test

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// awaitEvents returns the events of a type once there are as many.
func (w *world) awaitEvents(kind string, n int) []*pb.Event {
	w.Helper()
	w.await(kind, func() bool { return len(w.Root().Events(kind)) >= n })
	found := w.Root().Events(kind)
	want(w, kind, len(found), n)
	return found
}

// sentinel is sent and comes when the calendar has handled all that was due before.
func (w *world) sentinel(d time.Duration) {
	w.Helper()
	o := w.operator()
	id := o.send(toRole("sentinel", due(w.now(d)))).Id
	w.Clock.Advance(d)
	w.awaitState(id, pending)
}

func TestQuestion_OverdueIsToldOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, other, builder := w.agent("lead", "lead"), w.agent("other-lead", "lead"), w.agent("builder", "builder")
	q := lead.send(to("builder", subject("ready?"), deadline(w.now(time.Minute)), func(m *pb.Message) { m.ThreadId, m.TaskId = "login", "t-1" }))
	w.sentinel(time.Minute - time.Second)
	want(t, "too early", len(w.Root().Events("message.overdue")), 0)
	w.Clock.Advance(time.Second)
	e := w.awaitEvents("message.overdue", 1)[0]
	want(t, "severity", e.Severity, pb.Severity_SEVERITY_WARNING)
	want(t, "source", e.Source, "system")
	want(t, "task", e.TaskId, "t-1")
	wantList(t, "related", e.Related, itoa(q.Revision))
	var details struct{ Sender, Deadline, EscalatedTo string }
	apptest.NoError(t, json.Unmarshal([]byte(e.Details), &struct {
		Sender      *string `json:"sender"`
		Deadline    *string `json:"deadline"`
		EscalatedTo *string `json:"escalated_to"`
	}{&details.Sender, &details.Deadline, &details.EscalatedTo}))
	want(t, "sender", details.Sender, "lead")
	want(t, "escalated to", details.EscalatedTo, "lead")
	// No agent has the first role of the list, overseer: all agents of the next receive the notice,
	// the asker too.
	for _, a := range []*agent{lead, other} {
		m := a.inbox()[0].Message
		want(t, "type", m.Type, "overdue")
		want(t, "sender", m.Sender, "system")
		want(t, "task", m.TaskId, "t-1")
		want(t, "in_reply_to", m.InReplyTo, "")
		want(t, "its subject", strings.Contains(m.Subject, "ready?"), true)
		var payload struct {
			ID       string `json:"id"`
			Revision int64  `json:"revision"`
		}
		apptest.NoError(t, json.Unmarshal([]byte(m.Payload), &payload))
		want(t, "question", payload.ID, q.Id)
		want(t, "revision", payload.Revision, q.Revision)
	}
	w.sentinel(time.Hour)
	w.Restart()
	w.sentinel(time.Hour)
	want(t, "once", len(w.Root().Events("message.overdue")), 1)
	// A late reply settles it all the same.
	want(t, "open", len(lead.thread("login").OpenQuestions), 1)
	want(t, "overdue", lead.thread("login").OpenQuestions[0].Overdue, true)
	builder.reply(q.Id, "sorry")
	want(t, "open", len(lead.thread("login").OpenQuestions), 0)
}

func TestQuestion_GoesToTheFirstRoleThatSomebodyHas(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Root().Configure(&pb.SessionSettings{EscalateTo: &pb.Names{Names: []string{"nobody", "overseer", "lead"}}, ResponseTime: durationpb.New(time.Minute)})
	lead, overseer, builder := w.agent("lead", "lead"), w.agent("overseer", "overseer"), w.agent("builder", "builder")
	lead.send(to("builder", question))
	w.Clock.Advance(time.Minute)
	w.awaitEvents("message.overdue", 1)
	want(t, "overseer", len(overseer.notices()), 1)
	want(t, "lead", len(lead.notices()), 0)
	w.Root().Configure(&pb.SessionSettings{EscalateTo: &pb.Names{Names: []string{"nobody"}}})
	lead.send(to("builder", question))
	w.Clock.Advance(time.Minute)
	w.awaitEvents("message.overdue", 2)
	want(t, "no agent has the role", len(overseer.notices())+len(lead.notices()), 0)
	want(t, "builder", len(builder.inbox()), 2)
}

func TestQuestion_IsOverdueAfterARestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead", "lead")
	w.agent("builder", "builder")
	lead.send(to("builder", deadline(w.now(time.Minute))))
	lead.send(to("builder", deadline(w.now(time.Hour))))
	w.Restart()
	w.Clock.Advance(time.Minute) // a time on the calendar gets no grace
	w.awaitEvents("message.overdue", 1)
	w.Clock.Advance(time.Hour)
	w.awaitEvents("message.overdue", 2)
}

func TestQuestion_IsSettled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder, other := w.agent("lead", "lead"), w.agent("builder", "builder"), w.agent("other", "")
	ask := func(thread string) string {
		return lead.send(to("builder", deadline(w.now(time.Minute)), func(m *pb.Message) { m.ThreadId = thread })).Id
	}
	builder.reply(ask("reply"), "yes")
	other.send(toEveryone(answers(ask("send"))))
	s := other.sender()
	s.exchange(&pb.SendRequest{Messages: []*pb.Message{to("lead", answers(ask("stream")))}})
	s.end()
	builder.send(to("lead", answers(ask("delayed")), due(w.now(time.Hour))))
	lead.cancel(ask("cancel"))
	apptest.Must(t, lead.ResolveThread,
		&pb.ResolveThreadRequest{ThreadId: "resolve", Outcome: t.Name() + ask("resolve")})
	open := ask("open")
	lead.reply(open, "a word of one's own")
	for _, thread := range []string{"reply", "send", "stream", "delayed", "cancel", "resolve"} {
		want(t, thread, len(lead.thread(thread).OpenQuestions), 0)
	}
	want(t, "open", len(lead.thread("open").OpenQuestions), 1)
	w.sentinel(time.Minute)
	e := w.Root().Events("message.overdue")
	want(t, "overdue", len(e), 1)
	want(t, "which", e[0].Related[0], itoa(lead.get(open).Message.Revision))
}

func TestQuestion_CancelSettlesItEvenIfNobodyGotIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead", "lead")
	q := lead.send(toChannel("news", question, func(m *pb.Message) { m.ThreadId = "t" }))
	want(t, "cancelled", lead.cancel(q.Id).Cancelled, 0)
	want(t, "open", len(lead.thread("t").OpenQuestions), 0)
	want(t, "events", len(w.Root().Events("message.cancelled")), 1)
	lead.cancel(q.Id)
	want(t, "again", len(w.Root().Events("message.cancelled")), 1)
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

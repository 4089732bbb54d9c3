package broker_test

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func task(id string) change   { return func(m *pb.Message) { m.TaskId = id } }
func body(s string) change    { return func(m *pb.Message) { m.Body = s } }
func payload(s string) change { return func(m *pb.Message) { m.Payload = s } }

func TestReply_KeepsTheTask(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.agent("lead", "lead"), w.agent("builder", "builder")
	sent := lead.send(to("builder", task("t1")))
	id := builder.reply(sent.Id, "done").Result.Id
	want(t, "the event of the reply", w.Root().Events("message.sent")[1].Summary, "message to lead: done")
	want(t, "task", lead.get(id).Message.TaskId, "t1")
	want(t, "task of a send that replies", lead.get(builder.send(to("lead", answers(sent.Id))).Id).Message.TaskId, "t1")
	want(t, "task of the reply's reply", lead.get(lead.reply(id, "thanks").Result.Id).Message.TaskId, "t1")
	want(t, "own task", lead.get(builder.send(to("lead", answers(sent.Id), task("t2"))).Id).Message.TaskId, "t2")
	byTask := lead.list(&pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_ALL, Filter: &pb.MessageFilter{TaskId: "t1"}})
	want(t, "listed by task", len(byTask.Items), 4)
	for _, e := range w.Root().Events("message.sent")[:3] {
		want(t, "task of the event", e.TaskId, "t1")
	}
}

func TestReply_WithoutSubjectGetsThatOfTheMessageBehindRe(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.agent("lead", "lead"), w.agent("builder", "builder")
	long := strings.Repeat("ä", 256) // 512 bytes
	for original, wanted := range map[string]string{
		"Add login":     "Re: Add login",
		"Re: Add login": "Re: Add login",
		"RE: Add login": "RE: Add login",
		"Review":        "Re: Review",
		"":              "",
		long:            "Re: " + strings.Repeat("ä", 252) + "…",
	} {
		sent := lead.send(to("builder", subject(original), body("the text")))
		out := apptest.Must(t, builder.Reply, &pb.ReplyRequest{Id: sent.Id, Message: &pb.Message{Body: "done"}})
		got := lead.get(out.Result.Id).Message
		want(t, "subject of the reply to "+original, got.Subject, wanted)
		want(t, "body", got.Body, "done")
		if len(got.Subject) > 512 || !utf8.ValidString(got.Subject) {
			t.Errorf("%d bytes: %q", len(got.Subject), got.Subject)
		}
		again := lead.send(to("builder", answers(got.Id)))
		want(t, "once", lead.get(again.Id).Message.Subject, wanted)
		want(t, "its own", lead.get(builder.reply(sent.Id, "its own").Result.Id).Message.Subject, "its own")
	}
}

func TestQuestion_ShowsTheDeadlineInForce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Root().Configure(&pb.SessionSettings{ResponseTime: durationpb.New(9 * time.Minute)})
	lead, builder := w.agent("lead", "lead"), w.agent("builder", "builder")
	sent := lead.send(to("builder", question))
	due := w.now(9 * time.Minute).AsTime()
	w.Root().Configure(&pb.SessionSettings{ResponseTime: durationpb.New(time.Hour)})
	w.Clock.Advance(time.Minute)
	want(t, "message get", lead.get(sent.Id).Message.ResponseDeadline.AsTime(), due)
	want(t, "inbox", builder.list(&pb.ListMessagesRequest{}).Items[0].Message.ResponseDeadline.AsTime(), due)
	claim := builder.claim1()
	want(t, "claim", claim.Message.ResponseDeadline.AsTime(), due)
	builder.release(claim.ClaimId)
	want(t, "claimed again", builder.claim1().Message.ResponseDeadline.AsTime(), due)
	w.Clock.Advance(8 * time.Minute)
	w.awaitEvents("message.overdue", 1) // at the time that the message names
	given := w.now(time.Minute)
	want(t, "given", lead.get(lead.send(to("builder", deadline(given))).Id).Message.ResponseDeadline.AsTime(), given.AsTime())
	if m := lead.get(lead.send(to("builder")).Id).Message; m.ResponseDeadline != nil {
		t.Errorf("no question, and a deadline: %v", m)
	}
}

func TestQuestion_IsNamedByItsTextWhereTheSubjectSaysNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.agent("lead", "lead"), w.agent("builder", "builder")
	first := lead.send(to("builder", question, subject("Which branch?"), body("main or login")))
	lead.send(to("builder", question, body("\n  Which file?  \nThere are two.")))
	builder.send(to("lead", question, answers(first.Id), body("Which repository?")))
	builder.send(to("lead", question, answers(first.Id), payload("7")))
	var owed []string
	for _, a := range []*agent{builder, lead} {
		out := apptest.Must(t, a.GetInboxSummary, &pb.GetInboxSummaryRequest{})
		for _, q := range out.Owed {
			owed = append(owed, q.Subject)
		}
	}
	wantList(t, "owed", owed, "Which file?", "Which repository?", "Re: Which branch?")
}

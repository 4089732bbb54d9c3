package broker_test

import (
	"testing"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestSpelling_StaysWithTheMessage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder, o := w.agent("lead", "lead"), w.agent("builder", "builder"), w.operator()
	builder.subscribe("news")
	const spelling = "TaskAssignment"
	check := func(what string, m *pb.Message) {
		t.Helper()
		want(t, what+": type", m.GetType(), "task_assignment")
		want(t, what+": type as sent", m.GetTypeAsSent(), spelling)
	}
	check("a channel", builder.get(lead.send(toChannel("news", kind(spelling))).Id).Message)
	check("received", builder.inbox()[0].Message)
	check("claimed", builder.kill().Message)
	check("dead", builder.deadLetters()[0].Message)
	want(t, "redriven", builder.redrive(builder.deadLetters()[0].Message.Id), 1)
	check("redriven", builder.claim1().Message)
	builder.ack()

	sent := lead.send(toRole("bulider", kind(spelling)))
	want(t, "moved", o.move("role:bulider", "role:builder").Moved, 1)
	check("moved", builder.claim1().Message)
	reply, err := builder.replyWith(&pb.ReplyRequest{Ack: true, Message: &pb.Message{Type: "task.assignment", Subject: "yes"}})
	apptest.NoError(t, err)
	want(t, "the spelling of a reply", lead.get(reply.Result.Id).Message.TypeAsSent, "task.assignment")

	again := lead.send(to("builder", kind(spelling)))
	apptest.Must(t, lead.ResendMessage, &pb.ResendMessageRequest{Id: again.Id})
	check("resent", builder.inbox()[0].Message)
	for _, filter := range []string{spelling, "task_assignment", "assign.task"} {
		found := o.list(&pb.ListMessagesRequest{
			Box: pb.MessageBox_MESSAGE_BOX_ALL, Filter: &pb.MessageFilter{Types: []string{filter}, Senders: []string{"lead"}},
		}).Items
		want(t, "messages that the filter "+filter+" finds", len(found), 3)
	}
	w.Restart()
	check("after a restart", lead.get(sent.Id).Message)

	plain := lead.send(to("builder", kind("task_assignment")))
	want(t, "the canonical name", lead.get(plain.Id).Message.TypeAsSent, "")
	want(t, "no type", lead.get(lead.send(to("builder")).Id).Message.TypeAsSent, "")
}

package broker_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestOperator_HasAMailboxForRepliesAndMail(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o, builder := w.operator(), w.agent("builder", "builder")
	asked := o.send(to("builder", question))
	builder.reply(asked.Id, "by reply")
	builder.send(to("system", answers(asked.Id), subject("by a send")))
	builder.send(to("operator", subject("of itself")))
	listed := o.list(&pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_INBOX})
	wantList(t, "listed", subjectsIn(listed.Items), "by reply", "by a send", "of itself")
	wantList(t, "by name", subjectsIn(o.list(&pb.ListMessagesRequest{
		Box: pb.MessageBox_MESSAGE_BOX_INBOX, Mailbox: "system"}).Items), "by reply", "by a send", "of itself")
	summary := apptest.Must(t, o.GetInboxSummary, &pb.GetInboxSummaryRequest{})
	want(t, "unfinished", summary.Total, 3)
	wantList(t, "received", subjectsIn(o.inbox()), "by reply", "by a send", "of itself")
	o.ack(listed.Items[0].Message.Id)
	_, err := o.replyWith(&pb.ReplyRequest{Id: listed.Items[2].Message.Id}) // finishes it
	apptest.NoError(t, err)
	wantList(t, "left", subjectsIn(o.inbox()), "by a send")
	want(t, "the reply of the operator", builder.claim1().Message.Sender, "system")
	apptest.Refuses(t, o.ClaimMessages, &pb.ClaimMessagesRequest{Max: 1}, codes.FailedPrecondition, "AGENT_REQUIRED")
	for _, refused := range [][]string{{}, {asked.Id}} { // no claim, and a message of an agent
		_, err := o.AckMessages(o.Ctx, &pb.AckMessagesRequest{Ids: refused})
		apptest.Refused(t, err, codes.FailedPrecondition, "AGENT_REQUIRED")
	}
	_, err = o.NackMessages(o.Ctx, &pb.NackMessagesRequest{Nacks: []*pb.Nack{{ClaimId: listed.Items[1].Message.Id}}})
	apptest.Refused(t, err, codes.FailedPrecondition, "AGENT_REQUIRED")
}

func TestOperator_ItsMailboxIsBoundedAndOutlivesTheBroker(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o, builder := w.operator(), w.agent("builder", "builder")
	w.Root().Configure(&pb.SessionSettings{MailboxLimit: new(int64(1))})
	builder.send(to("operator", subject("first")))
	asked := o.send(to("builder"))
	_, err := builder.replyWith(&pb.ReplyRequest{Id: asked.Id})
	apptest.Refused(t, err, codes.ResourceExhausted, "MAILBOX_FULL")
	out, err := builder.replyWith(&pb.ReplyRequest{Id: builder.claim1().ClaimId, Ack: true}) // work that is done
	apptest.NoError(t, err)
	want(t, "refused", out.Result.RefusedCount, 1)
	builder.wantState(asked.Id, acked)
	w.Restart()
	wantList(t, "mail", subjectsIn(o.inbox()), "first")
}

func TestOperator_IsNoAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	builder, named := w.agent("builder", "builder"), w.agent("operator", "")
	builder.send(to("operator", subject("to the agent of this name")))
	wantList(t, "the agent's", subjectsIn(named.inbox()), "to the agent of this name")
	wantList(t, "the operators'", subjectsIn(w.operator().inbox()))
	_, err := builder.ListMessages(builder.Ctx, &pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_INBOX, Mailbox: "system"})
	apptest.Refused(t, err, codes.PermissionDenied, "NOT_FOR_AGENTS")
}

func TestOperator_OnlyMailThatNoneHasReadIsAFinding(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o, builder := w.operator(), w.agent("builder", "builder")
	stuck := func() (found []string) {
		out := apptest.Must(t, pb.NewAdminServiceClient(w.Operator()).Explain, &pb.ExplainRequest{})
		for _, f := range out.Findings {
			if strings.HasPrefix(f.Subject, "mailbox ") || f.Subject == "operators" {
				found = append(found, f.Subject+": "+f.Summary)
			}
		}
		return found
	}
	builder.send(to("operator"))
	wantList(t, "at once", stuck())
	question := builder.send(to("operator", question, subject("May I deploy?")))
	wantList(t, "a question", stuck(), "operators: 1 question to operators without an answer")
	o.reply(question.Id, "yes")
	builder.ack(builder.claim1().ClaimId)
	wantList(t, "answered", stuck())
	w.Clock.Advance(time.Hour)
	if found := stuck(); len(found) != 1 || !strings.Contains(found[0], "no operator has read it") {
		t.Errorf("after an hour: %q", found)
	}
	o.list(&pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_INBOX, MarkRead: true})
	wantList(t, "read", stuck())
}

func TestReply_ToWhatTheBrokerSendsToInformIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	builder := w.agent("builder", "builder")
	apptest.Must(t, pb.NewChannelServiceClient(w.Conn("builder")).SubscribeChannel,
		&pb.SubscribeChannelRequest{Channel: "event/agent.registered"})
	w.agent("new", "")
	event := builder.claim1()
	_, err := builder.replyWith(&pb.ReplyRequest{Id: event.Message.Id})
	apptest.Refused(t, err, codes.FailedPrecondition, "NOBODY_WAITS")
	if !strings.Contains(err.Error(), "acknowledge it") {
		t.Error(err)
	}
}

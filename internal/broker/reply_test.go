package broker_test

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// replyWith makes a call of Reply.
func (a *agent) replyWith(r *pb.ReplyRequest) (*pb.ReplyResponse, error) {
	a.Helper()
	if r.Message == nil {
		r.Message = &pb.Message{Subject: "reply"}
	}
	return a.Reply(a.Ctx, r)
}

func TestReply_FillsInWhereItBelongs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.agent("lead", "lead"), w.agent("builder", "builder")
	sent := lead.send(toRole("builder", func(m *pb.Message) { m.ThreadId, m.CorrelationId = "login", "c-1" }))
	out := builder.reply(sent.Id, "done")
	want(t, "awaited", out.Awaited, false)
	wantList(t, "recipients", recipients(t, out.Result), "lead")
	got := lead.claim1().Message
	want(t, "target", got.Target.GetAgent(), "lead")
	want(t, "in_reply_to", got.InReplyTo, sent.Id)
	want(t, "thread", got.ThreadId, "login")
	want(t, "correlation", got.CorrelationId, "c-1")
	want(t, "type", got.Type, "message")
	want(t, "by correlation", len(builder.list(&pb.ListMessagesRequest{
		Box: pb.MessageBox_MESSAGE_BOX_ALL, Filter: &pb.MessageFilter{CorrelationId: "c-1", ThreadId: "login"}}).Items), 2)
	// The reply of the reply goes back, under a correlation of its own.
	back, err := lead.replyWith(&pb.ReplyRequest{Id: got.Id, Message: &pb.Message{CorrelationId: "c-2"}})
	apptest.NoError(t, err)
	wantList(t, "back", recipients(t, back.Result), "builder")
	want(t, "own correlation", builder.get(back.Result.Id).Message.CorrelationId, "c-2")
	// A thread that nobody named is the first message's id.
	sent = lead.send(to("builder"))
	want(t, "thread", lead.get(builder.reply(sent.Id, "yes").Result.Id).Message.ThreadId, sent.Id)
	// A revision or claim id stands for the message.
	claim := builder.claim1()
	want(t, "by claim id", lead.get(builder.reply(claim.ClaimId, "yes").Result.Id).Message.InReplyTo, claim.Message.Id)
	want(t, "by revision", lead.get(builder.reply(itoa(claim.Message.Revision), "yes").Result.Id).Message.InReplyTo, claim.Message.Id)
	want(t, "related", w.Root().Events("message.sent")[1].Related[0], itoa(w.Root().Events("message.sent")[0].Revision))
}

func TestReply_FinishesTheClaimInTheSameTransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder, other := w.agent("lead", "lead"), w.agent("builder", "builder"), w.agent("other", "builder")
	sent := lead.send(toRole("builder"))
	_, err := builder.replyWith(&pb.ReplyRequest{Ack: true})
	apptest.Refused(t, err, codes.FailedPrecondition, "NO_OPEN_CLAIM")
	first := builder.claim1()
	for _, id := range []string{sent.Id, first.ClaimId} {
		_, err = other.replyWith(&pb.ReplyRequest{Id: id, Ack: true})
		apptest.Refused(t, err, codes.FailedPrecondition, "CLAIM_LOST")
	}
	builder.release()
	_, err = builder.replyWith(&pb.ReplyRequest{Id: first.ClaimId, Ack: true})
	apptest.Refused(t, err, codes.FailedPrecondition, "CLAIM_LOST")
	want(t, "replies", len(lead.inbox()), 0)
	second := other.claim1()
	want(t, "without an ack anybody may reply", builder.reply(sent.Id, "by the way").Result.RecipientCount, 1)
	out, err := other.replyWith(&pb.ReplyRequest{Id: second.ClaimId, Ack: true})
	apptest.NoError(t, err)
	lead.wantState(sent.Id, acked)
	want(t, "in one commit", len(lead.inbox()), 2)
	want(t, "recipients", out.Result.RecipientCount, 1)
	// Mail needs no claim, as for an ack alone; a queue does.
	mail, queued := lead.send(to("builder")), lead.send(toRole("builder"))
	_, err = builder.replyWith(&pb.ReplyRequest{Id: mail.Id, Ack: true})
	apptest.NoError(t, err)
	lead.wantState(mail.Id, acked)
	_, err = builder.replyWith(&pb.ReplyRequest{Id: mail.Id, Ack: true})
	apptest.Refused(t, err, codes.FailedPrecondition, "CLAIM_LOST")
	_, err = builder.replyWith(&pb.ReplyRequest{Id: queued.Id, Ack: true})
	apptest.Refused(t, err, codes.FailedPrecondition, "CLAIM_LOST")
	// What the reply itself is refused for leaves the claim alone.
	claim := builder.claim1()
	_, err = builder.replyWith(&pb.ReplyRequest{Ack: true, Message: &pb.Message{NotBefore: w.now(year + time.Second)}})
	apptest.Invalid(t, err, "message.not_before")
	lead.wantState(claim.Message.Id, claimed)
	lead.send(to("builder"))
	want(t, "two claims", len(builder.claimWith(&pb.ClaimMessagesRequest{Max: 2}).Claims), 2)
	_, err = builder.replyWith(&pb.ReplyRequest{Ack: true})
	apptest.Refused(t, err, codes.FailedPrecondition, "SEVERAL_OPEN_CLAIMS")
	_, err = builder.replyWith(&pb.ReplyRequest{})
	apptest.Refused(t, err, codes.FailedPrecondition, "SEVERAL_OPEN_CLAIMS")
}

func TestReply_TellsTheStreamWhoseClaimItFinishes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.agent("lead", "lead"), w.agent("builder", "builder")
	stream, err := builder.Claim(builder.Ctx)
	apptest.NoError(t, err)
	apptest.NoError(t, stream.Send(&pb.ClaimRequest{Open: &pb.ClaimOpen{}}))
	apptest.NoError(t, drop(stream.Recv()))
	sent := lead.send(to("builder"))
	frame, err := stream.Recv()
	apptest.NoError(t, err)
	id := frame.GetDeliver().Claims[0].ClaimId
	apptest.NoError(t, drop(builder.replyWith(&pb.ReplyRequest{Id: sent.Id, Ack: true})))
	frame, err = stream.Recv()
	apptest.NoError(t, err)
	wantList(t, "revoked", frame.GetRevoke().GetClaimIds(), id)
	apptest.NoError(t, stream.CloseSend())
}

func TestReply_SameRequestRepliesOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.agent("lead", "lead"), w.agent("builder", "builder")
	lead.send(to("builder"))
	builder.claim1()
	r := &pb.ReplyRequest{RequestId: newUUID(), Ack: true, Message: &pb.Message{Subject: "done"}}
	first, err := builder.replyWith(r)
	apptest.NoError(t, err)
	second, err := builder.replyWith(r)
	apptest.NoError(t, err)
	want(t, "same reply", second.Result.Id, first.Result.Id)
	want(t, "duplicate", second.Result.Duplicate, true)
	want(t, "mail", len(lead.inbox()), 1)
}

func TestReply_IsRefusedIfTheMailboxIsFull(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.agent("lead", "lead"), w.agent("builder", "builder")
	w.Root().Configure(&pb.SessionSettings{MailboxLimit: new(int64(1))})
	lead.send(to("lead"))
	q := lead.send(to("builder", question, func(m *pb.Message) { m.ThreadId = "t" }))
	builder.claim1()
	_, err := builder.replyWith(&pb.ReplyRequest{Ack: true})
	apptest.Refused(t, err, codes.ResourceExhausted, "MAILBOX_FULL")
	builder.wantState(q.Id, claimed)
	want(t, "refused", builder.send(to("lead", answers(q.Id))).RefusedCount, 1)
	want(t, "open", len(lead.thread("t").OpenQuestions), 1)
}

func TestReply_ChecksItsFields(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead", "lead")
	id := lead.send(to("lead")).Id
	for field, m := range map[string]*pb.Message{
		"message.target":            to("lead"),
		"message.reach":             {Reach: pb.Reach_REACH_ALL},
		"message.thread_id":         {ThreadId: "t"},
		"message.in_reply_to":       {InReplyTo: id},
		"message.id":                {Id: id},
		"message.priority":          {Priority: 11},
		"message.resend_after":      message(nil, []change{resendAfter(1)}),
		"message.response_deadline": message(nil, []change{deadline(w.now(0))}),
	} {
		apptest.Invalid(t, apptest.Err(lead.replyWith(&pb.ReplyRequest{Id: id, Message: m})), field)
	}
	apptest.Invalid(t, apptest.Err(lead.Reply(lead.Ctx, &pb.ReplyRequest{Id: id})), "message")
	apptest.Invalid(t, apptest.Err(lead.replyWith(&pb.ReplyRequest{Id: nonsense})), "id")
	_, err := lead.replyWith(&pb.ReplyRequest{Id: newUUID()})
	apptest.Refused(t, err, codes.NotFound, "MESSAGE_NOT_FOUND")
}

package broker_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// noReply waits for the end of the call, which must have no reply.
func (c *asked) noReply(reason pb.NoReplyReason, mailbox, failure string) {
	c.t.Helper()
	out := c.answer()
	want(c.t, "reply", out.Reply, nil)
	want(c.t, "reason", out.NoReply.GetReason(), reason)
	want(c.t, "mailbox", out.NoReply.GetMailbox(), mailbox)
	want(c.t, "error", out.NoReply.GetError(), failure)
}

// Each end of a question ends the wait for its reply, without the clock having to move.
func TestAsk_EndsAsSoonAsNoReplyCanCome(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.agent("lead", "lead"), w.agent("builder", "builder")

	call := w.asks(lead, to("builder"))
	builder.ack(builder.claim1().ClaimId)
	call.noReply(pb.NoReplyReason_NO_REPLY_REASON_ACKED, "builder", "")

	call = w.asks(lead, to("builder"))
	builder.ack(builder.list(&pb.ListMessagesRequest{}).Items[0].Message.Id) // without a claim
	call.noReply(pb.NoReplyReason_NO_REPLY_REASON_ACKED, "builder", "")

	call = w.asks(lead, toRole("builder"))
	builder.nack(&pb.Nack{ClaimId: builder.claim1().ClaimId, Error: "exit status 65", Fatal: true})
	call.noReply(pb.NoReplyReason_NO_REPLY_REASON_DEAD, "role:builder", "exit status 65")

	call = w.asks(lead, to("builder", func(m *pb.Message) { m.MaxAttempts = 2 }))
	none := durationpb.New(0)
	for range 2 {
		builder.nack(&pb.Nack{ClaimId: builder.claim1().ClaimId, Error: "again", Delay: none})
	}
	call.noReply(pb.NoReplyReason_NO_REPLY_REASON_DEAD, "builder", "again")

	call = w.asks(lead, to("builder", func(m *pb.Message) { m.ThreadId = "t" }))
	apptest.Must(t, builder.ResolveThread, &pb.ResolveThreadRequest{ThreadId: "t", Outcome: "no"})
	call.noReply(pb.NoReplyReason_NO_REPLY_REASON_RESOLVED, "", "")
	builder.ack(builder.claim1().ClaimId)

	call = w.asks(lead, to("builder"))
	lead.cancel(builder.list(&pb.ListMessagesRequest{}).Items[0].Message.Id)
	call.noReply(pb.NoReplyReason_NO_REPLY_REASON_CANCELLED, "", "")

	call = w.asks(lead, to("builder"))
	builder.deregister()
	call.noReply(pb.NoReplyReason_NO_REPLY_REASON_DEAD, "builder", "AGENT_GONE: done")
}

func TestAsk_EndsWhenTheQuestionExpires(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead", "lead")
	w.agent("builder", "builder")
	call := w.asks(lead, to("builder", func(m *pb.Message) { m.Ttl = durationpb.New(time.Second) }))
	w.Clock.Advance(time.Second)
	call.noReply(pb.NoReplyReason_NO_REPLY_REASON_EXPIRED, "builder", "")
}

// A reply that is sent with the acknowledgement is the call's, and while one recipient can reply the call waits.
func TestAsk_WaitsWhileAnyRecipientCanReply(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, one, two := w.agent("lead", "lead"), w.agent("builder-1", "builder"), w.agent("builder-2", "builder")
	call := w.asks(lead, toPattern("builder-*"))
	one.ack(one.claim1().ClaimId)
	two.claim1()
	apptest.Must(t, two.Reply, &pb.ReplyRequest{Message: &pb.Message{Subject: "yes"}, Ack: true})
	want(t, "reply", call.answer().Reply.GetSubject(), "yes")

	call = w.asks(lead, toPattern("builder-*"))
	two.ack(two.claim1().ClaimId)
	one.nack(&pb.Nack{ClaimId: one.claim1().ClaimId, Error: "no", Fatal: true})
	call.noReply(pb.NoReplyReason_NO_REPLY_REASON_DEAD, "builder-1", "no")
}

func TestAsk_SameRequestEndsAtOnceIfNoReplyCanCome(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.agent("lead", "lead"), w.agent("builder", "builder")
	r := &pb.AskRequest{RequestId: newUUID(), Message: to("builder")}
	call := w.asksWith(lead.Ctx, lead, r)
	builder.nack(&pb.Nack{ClaimId: builder.claim1().ClaimId, Error: "no", Fatal: true})
	call.noReply(pb.NoReplyReason_NO_REPLY_REASON_DEAD, "builder", "no")
	w.Restart()
	again := apptest.Must(t, lead.Ask, r)
	want(t, "reason", again.NoReply.GetReason(), pb.NoReplyReason_NO_REPLY_REASON_DEAD)
	builder.redrive(again.Id)
	once := w.asksWith(lead.Ctx, lead, r) // it waits again
	builder.reply(builder.claim1().Message.Id, "yes")
	want(t, "reply", once.answer().Reply.GetSubject(), "yes")
}

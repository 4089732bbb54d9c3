package messagesrpc

import (
	"context"
	"fmt"
	"time"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/content"
	"brokerd/internal/conversations"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/mail"
	"brokerd/internal/msgid"
	"brokerd/internal/msgtype"
	"brokerd/internal/validate"
)

// Ask implements the RPC.
func (s *Service) Ask(ctx context.Context, r *pb.AskRequest) (*pb.AskResponse, error) {
	req, err := idempotency.Of(ctx, "Ask", r.RequestId, r)
	if err != nil {
		return nil, err
	}
	types, err := s.types(ctx)
	if err != nil {
		return nil, err
	}
	d, wait, err := question(types, r)
	if err != nil {
		return nil, err
	}
	asked, err := s.conversations.Ask(ctx, identity.FromContext(ctx), req, d, wait)
	if err != nil {
		return nil, err
	}
	out := &pb.AskResponse{Id: asked.ID.String(), Revision: asked.Revision, Warnings: asked.Warnings}
	switch {
	case asked.Reply != nil:
		out.Reply = wire(asked.Reply)
	case asked.NoReply.Reason != conversations.StillOpen:
		none := asked.NoReply
		out.NoReply = &pb.NoReply{Reason: pb.NoReplyReason(none.Reason), Mailbox: none.Mailbox, Error: none.Error}
	case d.Target.Kind == mail.ToAgent:
		out.Asleep = s.asleep(identity.FromContext(ctx).Session, d.Target.Name)
	}
	return out, nil
}

// question checks a question. It sets in the message that it requires a response.
func question(types *msgtype.Set, r *pb.AskRequest) (mail.Draft, time.Duration, error) {
	var c validate.Check
	wait := askWait
	if r.Wait != nil {
		wait = r.Wait.AsDuration()
	}
	m := r.Message
	m.RequiresResponse = true
	c.In("message")
	d := draft(&c, types, m)
	if err := c.Err(); err != nil {
		return mail.Draft{}, 0, err
	}
	d.Content, d.Fault = content.Marshal(m)
	return d, wait, d.Fault
}

// Reply implements the RPC.
func (s *Service) Reply(ctx context.Context, r *pb.ReplyRequest) (*pb.ReplyResponse, error) {
	req, err := idempotency.Of(ctx, "Reply", r.RequestId, r)
	if err != nil {
		return nil, err
	}
	types, err := s.types(ctx)
	if err != nil {
		return nil, err
	}
	a, err := reply(types, r)
	if err != nil {
		return nil, err
	}
	out, err := s.conversations.Reply(ctx, identity.FromContext(ctx), req, a)
	if err != nil {
		return nil, err
	}
	return &pb.ReplyResponse{Result: s.result(identity.FromContext(ctx).Session, &out), Awaited: out.Awaited}, nil
}

// reply checks an answer to a message.
func reply(types *msgtype.Set, r *pb.ReplyRequest) (conversations.Answer, error) {
	var c validate.Check
	a := conversations.Answer{To: onlyOpen(&c, "id", r.Id), Ack: r.Ack}
	m := r.Message
	c.In("message")
	for field, set := range map[string]bool{
		"target": m.Target != nil, "reach": m.Reach != 0, "thread_id": m.ThreadId != "", "in_reply_to": m.InReplyTo != "",
	} {
		if set {
			c.Fail(field, "is filled in by the broker; leave it empty")
		}
	}
	a.Draft = unaddressed(&c, types, m)
	if err := c.Err(); err != nil {
		return conversations.Answer{}, err
	}
	var err error
	a.Draft.Content, err = content.Marshal(m)
	return a, err
}

// ResendMessage implements the RPC.
func (s *Service) ResendMessage(ctx context.Context, r *pb.ResendMessageRequest) (*pb.ResendMessageResponse, error) {
	var c validate.Check
	ref := msgid.CheckRef(&c, "id", r.Id, false)
	for i, m := range r.Mailboxes {
		c.Name(fmt.Sprintf("mailboxes[%d]", i), mail.ParseMailbox(m).Name)
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	req, err := idempotency.Of(ctx, "ResendMessage", r.RequestId, r)
	if err != nil {
		return nil, err
	}
	n, revision, err := s.conversations.Resend(ctx, identity.FromContext(ctx), req, ref, r.Mailboxes)
	if err != nil {
		return nil, err
	}
	return &pb.ResendMessageResponse{Revision: revision, Resent: int32(n)}, nil
}

// ResolveThread implements the RPC.
func (s *Service) ResolveThread(ctx context.Context, r *pb.ResolveThreadRequest) (*pb.ResolveThreadResponse, error) {
	req, err := idempotency.Of(ctx, "ResolveThread", r.RequestId, r)
	if err != nil {
		return nil, err
	}
	n, revision, err := s.conversations.Resolve(ctx, identity.FromContext(ctx), req, r.ThreadId, r.Outcome)
	if err != nil {
		return nil, err
	}
	return &pb.ResolveThreadResponse{Revision: revision, Settled: int32(n)}, nil
}

func threadSummary(t *conversations.Thread) *pb.ThreadSummary {
	if t == nil {
		return nil
	}
	return &pb.ThreadSummary{
		ThreadId: t.Name, Messages: t.Messages, Participants: t.Participants, FirstAt: stamp(t.First), LastAt: stamp(t.Last),
		Outcome: t.Outcome, ResolvedBy: t.ResolvedBy, ResolvedAt: stamp(t.ResolvedAt), OpenQuestions: openQuestions(t.Open),
		FirstMessage: threadMessage(t.FirstMessage), LastMessage: threadMessage(t.LastMessage),
	}
}

func threadMessage(m *conversations.ThreadMessage) *pb.ThreadMessage {
	if m == nil {
		return nil
	}
	return &pb.ThreadMessage{
		Id: m.ID.String(), Revision: m.Revision, Sender: m.Sender, Type: m.Type, Subject: m.Subject(),
		CreatedAt: stamp(m.CreatedAt),
	}
}

func openQuestions(list []mail.Question) []*pb.OpenQuestion {
	out := make([]*pb.OpenQuestion, len(list))
	for i := range list {
		q := &list[i]
		out[i] = &pb.OpenQuestion{
			Id: q.ID.String(), Revision: q.Revision, Sender: q.Sender, Subject: q.Subject(), Deadline: stamp(q.Deadline),
			Overdue: q.Overdue,
		}
	}
	return out
}

package mcp

import (
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// messageFields builds the message that a call describes, without its receiver and text.
func messageFields(c *call) (*pb.Message, error) {
	m := &pb.Message{Type: c.arg("type"), TaskId: c.arg("task"), Payload: strings.TrimSpace(c.arg("data"))}
	var err error
	if m.Priority, err = ParsePriority("priority", c.arg("priority")); err != nil {
		return nil, err
	}
	for _, s := range c.args["files"] {
		f, err := ParseFile("files", s)
		if err != nil {
			return nil, err
		}
		m.Files = append(m.Files, f)
	}
	return m, nil
}

// newMessage builds the message that a call describes. A text is its subject if it is one short line, or its
// body beside a subject.
func newMessage(c *call) (*pb.Message, error) {
	m, err := messageFields(c)
	if err != nil {
		return nil, err
	}
	if m.Target, err = ParseReceiver(c.arg("to")); err != nil {
		return nil, err
	}
	m.InReplyTo = c.arg("answers")
	if c.has("subject") {
		m.Subject, m.Body = c.arg("subject"), c.arg("text")
	} else {
		SetText(m, c.arg("text"))
	}
	return m, nil
}

func send(c *call) error {
	m, err := newMessage(c)
	if err != nil {
		return err
	}
	return sendMessage(c, m)
}

// sendMessage sends a message, and says who receives it.
func sendMessage(c *call, m *pb.Message) error {
	answer, err := c.api.SendMessages(c.ctx, &pb.SendMessagesRequest{RequestId: c.requestID, Messages: []*pb.Message{m}})
	if err != nil {
		return err
	}
	for _, r := range answer.GetResults() {
		c.voice.Sent(c.w, r)
		c.warn(r.GetWarnings())
		if text := prompt.Undelivered(r); text != "" {
			return refusef("%s", text)
		}
	}
	return nil
}

func ask(c *call) error {
	m, err := newMessage(c)
	if err != nil {
		return err
	}
	wait, _ := time.ParseDuration(c.arg("ask")) // the server has written it
	answer, err := c.api.Ask(c.ctx, &pb.AskRequest{
		RequestId: c.requestID, Message: m, Wait: durationpb.New(max(wait, time.Millisecond)),
	})
	if err != nil {
		return err
	}
	c.warn(answer.GetWarnings())
	switch {
	case answer.GetNoReply() != nil:
		return &refusal{text: c.voice.NoReply(answer), quoted: answer.GetNoReply().GetError(), fine: true}
	case answer.GetReply() == nil:
		return nothingf("%s", c.voice.NoReplyYet(answer, m.GetThreadId(), prompt.Duration(wait)))
	}
	c.voice.Message(c.w, prompt.Rendered{Message: answer.GetReply()})
	return nil
}

// answerMessage replies to a message without finishing it.
func answerMessage(c *call) error { return replyTo(c, c.arg("answers"), false) }

// replyAndAck replies to a message, and finishes it.
func replyAndAck(c *call) error { return replyTo(c, c.arg("id"), true) }

func replyTo(c *call, id string, ack bool) error {
	if !c.has("text") && !c.has("data") && !c.has("subject") {
		return argumentf("the answer is missing: give text or data")
	}
	m, err := messageFields(c)
	if err != nil {
		return err
	}
	m.Subject, m.Body = c.arg("subject"), c.arg("text")
	answer, err := c.api.Reply(c.ctx, &pb.ReplyRequest{RequestId: c.requestID, Id: id, Message: m, Ack: ack})
	if err != nil {
		return err
	}
	c.warn(answer.GetResult().GetWarnings())
	if answer.GetAwaited() {
		_ = c.say("replied with %d; the waiting call of the asker received it", answer.GetResult().GetRevision())
	} else {
		c.voice.Sent(c.w, answer.GetResult())
	}
	if ack {
		return c.say("acked the message that was answered")
	}
	return nil
}

func ackMessages(c *call) error {
	answer, err := c.api.AckMessages(c.ctx, &pb.AckMessagesRequest{RequestId: c.requestID, Ids: c.args["id"]})
	if err != nil {
		return err
	}
	return c.say("acked %s", strings.Join(answer.GetAcked(), ", "))
}

// claimIDs returns the given ids, or one empty id: the only open claim.
func claimIDs(c *call) []string {
	if !c.has("id") {
		return []string{""}
	}
	return c.args["id"]
}

func nackMessages(c *call) error {
	request := &pb.NackMessagesRequest{RequestId: c.requestID}
	for _, id := range claimIDs(c) {
		request.Nacks = append(request.Nacks, &pb.Nack{ClaimId: id, Fatal: c.arg("final") == "true", Error: c.arg("text")})
	}
	answer, err := c.api.NackMessages(c.ctx, request)
	for _, o := range answer.GetOutcomes() {
		state := prompt.Enum(o.GetState())
		if o.GetState() == pb.DeliveryState_DELIVERY_STATE_DEAD {
			state = "now a dead letter"
		}
		if o.GetDueAt() != nil {
			state += ", again " + c.voice.When(o.GetDueAt())
		}
		_ = c.say("nacked %s: %s", o.GetClaimId(), state)
	}
	return err
}

func releaseClaims(c *call) error {
	answer, err := c.api.ReleaseClaims(c.ctx, &pb.ReleaseClaimsRequest{RequestId: c.requestID, Ids: c.args["id"]})
	if err != nil {
		return err
	}
	return c.say("released %s", strings.Join(answer.GetReleased(), ", "))
}

func extendClaims(c *call) error {
	request := &pb.ExtendClaimsRequest{RequestId: c.requestID}
	for _, id := range claimIDs(c) {
		request.Extensions = append(request.Extensions, &pb.Extension{ClaimId: id})
	}
	answer, err := c.api.ExtendClaims(c.ctx, request)
	if err != nil {
		return err
	}
	return c.say("extended %s", strings.Join(answer.GetClaimIds(), ", "))
}

package prompt

import (
	"encoding/binary"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/calls"
)

// A Voice is how a text names calls and times: as commands for a shell, or as calls of tools.
type Voice struct {
	// Command writes a call as the reader makes it.
	Command func(call calls.Call) string
	// Also is Command for a call that follows another one in a sentence.
	Also func(call calls.Call) string
	// Proposed is Command for a call that the broker proposes.
	Proposed func(call *pb.Call) string
	// Shorten shortens commands of which the reader chooses one. Nil leaves them as they are.
	Shorten func(commands []string) []string
	// When writes a time; "" for nil.
	When func(t *timestamppb.Timestamp) string
	// Since writes the time from which something has lasted, such as "for 3m".
	Since func(t *timestamppb.Timestamp) string
	// Work returns the unfinished work of the agent, of which a message may be. With again, what is known may be
	// too old. Nil returns none.
	Work func(again bool) []*pb.WorkItem
}

func (v Voice) do(request proto.Message, missing ...string) string {
	return v.Command(calls.Do(request, missing...))
}

func (v Voice) also(request proto.Message, missing ...string) string {
	return v.Also(calls.Do(request, missing...))
}

// Answer writes the call that answers a question.
func (v Voice) Answer(q *pb.OpenQuestion) string {
	return v.do(&pb.ReplyRequest{Id: strconv.FormatInt(q.GetRevision(), 10)}, "message.body")
}

// seen writes the call that acknowledges a message or a claim.
func (v Voice) seen(id string) string { return v.do(&pb.AckMessagesRequest{Ids: []string{id}}) }

// OutcomeWait is how long texts propose to wait for an outcome.
const OutcomeWait = 90 * time.Second

// Rendered is a message with what is known beside it: how it stands with a delivery or a claim.
type Rendered struct {
	Message *pb.Message
	Facts   []string // such as "claim 7.1", "attempt 1 of 3"
	Fault   string   // why the last attempt failed, as its agent says
	Next    string   // what to do with it, as a command
}

// Claimed renders a claim.
func (v Voice) Claimed(claim *pb.ClaimedMessage) Rendered {
	r := Rendered{Message: claim.GetMessage()}
	r.Facts = append(r.Facts, "claim "+claim.GetClaimId(), fmt.Sprintf("attempt %d of %d",
		claim.GetAttempt(), claim.GetMaxAttempts()))
	if claim.GetExpiresIn() != nil {
		r.Facts = append(r.Facts, "yours for "+Rough(claim.GetExpiresIn().AsDuration()))
	}
	if claim.GetResumed() {
		r.Facts = append(r.Facts, "held before")
	}
	r.Next = v.AfterClaim(claim.GetMessage(), claim.GetClaimId())
	return r
}

// Received renders a message in a mailbox.
func (v Voice) Received(item *pb.InboxItem) Rendered {
	r := Rendered{Message: item.GetMessage()}
	if d := item.GetDelivery(); d != nil {
		r.Next = v.AfterMail(item.GetMessage(), d)
		r.Facts = append(r.Facts, Standing(d))
	}
	return r
}

// Standing returns the state of a delivery, and whether it was read; "" for a message without one.
func Standing(d *pb.Delivery) string {
	if d == nil {
		return ""
	}
	var m []string
	switch state := d.GetState(); {
	case state == pb.DeliveryState_DELIVERY_STATE_CLAIMED:
		m = append(m, "claimed "+d.GetClaimId())
	case state != pb.DeliveryState_DELIVERY_STATE_PENDING:
		m = append(m, Enum(state))
	case IsQueue(d.GetMailbox()):
		m = append(m, "waiting")
	case d.GetReadAt() == nil && len(d.GetOffers()) > 0:
		m = append(m, "offered")
	case d.GetReadAt() == nil:
		m = append(m, "new")
	default:
		m = append(m, "read")
	}
	if IsQueue(d.GetMailbox()) {
		m = append(m, "in "+d.GetMailbox())
	}
	if d.GetAttempts() > 0 {
		m = append(m, fmt.Sprintf("failed %d of %d", d.GetAttempts(), d.GetMaxAttempts()))
	}
	return strings.Join(m, ", ")
}

// IsQueue reports whether a mailbox is that of a role or a channel.
func IsQueue(mailbox string) bool {
	return strings.HasPrefix(mailbox, "role:") || strings.HasPrefix(mailbox, "channel:")
}

// Message writes a message for a language model: a frame with what matters in its first line, the text and the
// payload, and outside of it what to do next. All that is not the message's own text stays under 200 tokens.
func (v Voice) Message(w io.Writer, r Rendered) {
	m := r.Message
	from := Brief(m.GetSender())
	if role := m.GetSenderRole(); role != "" {
		from += " (" + Brief(role) + ")"
	}
	head := []string{
		fmt.Sprintf("%s from %s to %s", TypeOf(m, Brief), from, Brief(Receiver(m.GetTarget()))),
		fmt.Sprintf("priority %d", m.GetPriority()), "sent " + v.When(m.GetCreatedAt()),
	}
	var text strings.Builder
	line := func(label, value string) {
		if value != "" {
			fmt.Fprintf(&text, "%s: %s\n", label, Clean(value))
		}
	}
	add := func(label, value string) {
		switch {
		case Word(value):
			head = append(head, label+" "+Brief(value))
		case value != "": // the sender has chosen it
			line(strings.ToUpper(label[:1])+label[1:], value)
		}
	}
	if m.GetThreadId() != m.GetId() {
		add("thread", ShortID(m.GetThreadId(), m.GetRevision()))
	}
	add("correlation", ShortID(m.GetCorrelationId(), m.GetRevision()))
	add("answers", ShortID(m.GetInReplyTo(), m.GetRevision()))
	add("task", m.GetTaskId())
	if m.GetRequiresResponse() {
		head = append(head, "an answer is due "+v.When(m.GetResponseDeadline()))
	}
	head = append(head, r.Facts...)
	line("Subject", m.GetSubject())
	line("Labels", Labels(m.GetLabels()))
	line("Files", Files(m.GetFiles()))
	line("Artifacts ("+v.do(&pb.DownloadArtifactRequest{}, "name")+")", strings.Join(m.GetArtifacts(), ", "))
	if m.GetBody() != "" {
		fmt.Fprintln(&text, strings.TrimRight(Clean(m.GetBody()), "\n"))
	}
	line("Payload", m.GetPayload())
	line("Error", r.Fault)
	Framed(w, fmt.Sprintf("message %d: %s", m.GetRevision(), strings.Join(head, ", ")), text.String())
	if r.Next != "" {
		Say(w, "Next: %s", r.Next)
	}
}

// A Typed is a message or an event.
type Typed interface {
	GetType() string
	GetTypeAsSent() string
}

// TypeOf returns the type of a message or event, with the spelling of the sender if it differs. form puts each of the
// two in a form for the reader.
func TypeOf(m Typed, form func(string) string) string {
	if spelling := m.GetTypeAsSent(); spelling != "" {
		return form(m.GetType()) + " (sent as " + form(spelling) + ")"
	}
	return form(m.GetType())
}

// ShortID writes the id of a message as its number, which the last 48 bits of the id are. newest is the highest
// number that it can have. A name is returned as it is, and "" for any other UUID.
func ShortID(id string, newest int64) string {
	u, err := uuid.Parse(id)
	if err != nil || len(id) != len(uuid.Nil.String()) {
		return id
	}
	if n := int64(binary.BigEndian.Uint64(u[8:]) & (1<<48 - 1)); u.Version() == 7 && 0 < n && n <= newest {
		return strconv.FormatInt(n, 10)
	}
	return ""
}

// Summary is one line for lists, of at most 500 runes: the subject, or the first line of the body where the subject
// is empty or begins with "Re:".
func Summary(m *pb.Message) string {
	const most = 500
	for _, s := range []string{ownSubject(m), FirstLine(m.GetBody()), m.GetSubject(), m.GetPayload()} {
		if s != "" {
			return Clip(s, most)
		}
	}
	return ""
}

// ownSubject is a message's subject, or "" if it begins with "Re:" and so repeats that of another
// message.
func ownSubject(m *pb.Message) string {
	const prefix = "re:"
	s := m.GetSubject()
	if len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix) {
		return ""
	}
	return s
}

// FirstLine is the first line of a text that is not blank.
func FirstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return strings.TrimSpace(line)
}

// Directives are the types of messages that tell an agent how to go on, with what it is to do.
var Directives = []struct{ Type, Advice string }{
	{"nudge", "look at what waits for you and go on"},
	{"halt", "stop working now; nothing but directives comes until a resume"},
	{"resume", "go on working"},
	{"terminate", "end now: release what you hold, deregister with agent deregister, and stop"},
	{"shutdown_request", "finish or release what you hold, deregister, and stop"},
}

// Advice says what a directive wants; "" for other messages.
func Advice(m *pb.Message) string {
	for _, d := range Directives {
		if d.Type == m.GetType() {
			return d.Advice
		}
	}
	return ""
}

// todo is the advice with the command that it names.
func (v Voice) todo(m *pb.Message) string {
	return strings.Replace(Advice(m), "agent deregister", v.also(&pb.DeregisterAgentRequest{}), 1)
}

// AfterClaim says what to do with a claim.
func (v Voice) AfterClaim(m *pb.Message, id string) string {
	if i := v.ItemOf(m); i != nil {
		return v.AfterItem(i)
	}
	if todo := v.todo(m); todo != "" {
		return fmt.Sprintf("%s. To say that you have seen it: %s", todo, v.seen(id))
	}
	finish := v.seen(id)
	if m.GetRequiresResponse() || wantsReport(m) {
		finish = v.do(&pb.ReplyRequest{Id: id, Ack: true}, "message.body")
	}
	return fmt.Sprintf("%s when done; %s if it failed; %s to return it", finish,
		v.also(&pb.NackMessagesRequest{Nacks: []*pb.Nack{{ClaimId: id}}}, "nacks.error"),
		v.also(&pb.ReleaseClaimsRequest{Ids: []string{id}}))
}

// wantsReport reports whether the sender of a message should receive the result: an agent that sent
// it to one agent or to a role. A reply needs no further reply.
func wantsReport(m *pb.Message) bool {
	switch m.GetTarget().GetTo().(type) {
	case *pb.Target_Agent, *pb.Target_Role:
		return m.GetInReplyTo() == "" && m.GetSender() != "" && m.GetSender() != "system"
	}
	return false
}

// AfterMail says what to do with a message in the own mailbox.
func (v Voice) AfterMail(m *pb.Message, d *pb.Delivery) string {
	id := strconv.FormatInt(m.GetRevision(), 10)
	switch state := d.GetState(); {
	case state == pb.DeliveryState_DELIVERY_STATE_CLAIMED:
		return v.AfterClaim(m, d.GetClaimId())
	case state != pb.DeliveryState_DELIVERY_STATE_PENDING:
		return ""
	case IsQueue(d.GetMailbox()):
		return v.do(&pb.ClaimMessagesRequest{Ids: []string{id}}) + " to take it"
	}
	if i := v.ItemOf(m); i != nil {
		return v.AfterItem(i)
	}
	if Advice(m) != "" {
		return fmt.Sprintf("%s. To say that you have seen it: %s", v.todo(m), v.seen(id))
	}
	return fmt.Sprintf("%s when dealt with; %s to answer", v.seen(id), v.also(&pb.ReplyRequest{Id: id}, "message.body"))
}

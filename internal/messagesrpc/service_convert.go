package messagesrpc

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/broker"
	"brokerd/internal/content"
	"brokerd/internal/fault"
	"brokerd/internal/inbox"
	"brokerd/internal/mail"
	"brokerd/internal/msgid"
	"brokerd/internal/msgtype"
	"brokerd/internal/tracing"
	"brokerd/internal/validate"
)

// Limits of the messages of rules.ByHand, in bytes unless the comment says otherwise. message.proto has them as
// options.
const (
	maxPayload  = 256 << 10
	maxBody     = 256 << 10
	maxFiles    = 1000 // items, of files and of artifacts
	maxError    = 4 << 10
	maxClaim    = 12 * time.Hour
	claimFor    = 30 * time.Second
	maxTotal    = 30 * time.Minute
	maxWait     = time.Hour
	maxInFlight = 1000

	askWait        = 30 * time.Second
	maxResendAfter = 30 * 24 * time.Hour
)

// draft checks a message that is to be sent, and returns it as a Draft. In m it sets the fields that the sender
// has left empty to their defaults. c knows where the message is in the request.
func draft(c *validate.Check, types *msgtype.Set, m *pb.Message) mail.Draft {
	if m == nil {
		c.Fail("", "is empty; a message is required")
		return mail.Draft{}
	}
	d := unaddressed(c, types, m)
	d.Target, d.One = target(c, m)
	if mail.IsDirective(d.Type) {
		directiveReach(c, m, &d)
	}
	if m.Channel != "" && d.Target.Kind == mail.ToChannel {
		c.Fail("channel", "is a label beside another target; leave it empty when the target is a channel")
	}
	return d
}

// unaddressed is draft without the check of the target.
func unaddressed(c *validate.Check, types *msgtype.Set, m *pb.Message) mail.Draft {
	unstamped(c, m)
	d := mail.Draft{
		Subject: m.Subject, Channel: m.Channel, Thread: m.ThreadId, Correlation: m.CorrelationId, Task: m.TaskId,
		Artifacts: m.Artifacts, OrderingKey: m.OrderingKey, MaxAttempts: int(m.MaxAttempts), PayloadSize: len(m.Payload),
		Textless: m.Subject == "" && m.Body == "" && m.Payload == "",
	}
	if m.Type == "" {
		m.Type = "message"
	}
	c.Name("type", m.Type)
	version(c, m)
	if m.Priority == 0 {
		m.Priority = 5
	}
	c.JSON("payload", m.Payload, maxPayload)
	if c.Err() == nil {
		spelling := m.Type
		if m.Type, d.Doubt = types.Check(spelling, m.Payload); m.Type != spelling {
			m.TypeAsSent = spelling
		}
	}
	d.Type = m.Type
	if len(m.Type) > validate.MaxID {
		c.Fail("type", "is longer than %d bytes in snake_case", validate.MaxID)
	}
	if mail.IsDirective(m.Type) {
		directiveFields(c, m)
	}
	d.Priority = int(m.Priority)
	c.Between("priority", int64(m.Priority), 1, 10)
	c.Line("subject", m.Subject, validate.MaxLine)
	c.Text("body", m.Body, maxBody)
	if m.Channel != "" {
		c.Name("channel", m.Channel)
	}
	c.Line("thread_id", m.ThreadId, validate.MaxID)
	c.Line("correlation_id", m.CorrelationId, validate.MaxID)
	c.Line("task_id", m.TaskId, validate.MaxID)
	c.Line("ordering_key", m.OrderingKey, validate.MaxID)
	if m.InReplyTo != "" {
		d.ReplyTo = msgid.CheckRef(c, "in_reply_to", m.InReplyTo, false)
	}
	c.Labels("labels", m.Labels)
	attachments(c, m)
	d.TTL = c.Duration("ttl", m.Ttl, time.Millisecond, mail.MaxTTL, 0)
	d.NotBefore = c.Time("not_before", m.NotBefore)
	if m.MaxAttempts != 0 {
		c.Between("max_attempts", int64(m.MaxAttempts), 1, 100)
	}
	d.Response = m.RequiresResponse
	if m.ResponseDeadline != nil {
		d.Deadline = c.Time("response_deadline", m.ResponseDeadline)
		if !m.RequiresResponse {
			c.Fail("response_deadline", "means nothing without requires_response")
		}
	}
	if m.TraceParent != "" {
		traceParent(c, m.TraceParent)
	}
	if m.ResendAfter != nil {
		d.ResendAfter = c.Duration("resend_after", m.ResendAfter, time.Second, maxResendAfter, 0)
	}
	return d
}

// traceParent checks the field that names the span of a message.
func traceParent(c *validate.Check, s string) {
	if _, ok := tracing.Parse(s); !ok || len(s) != tracing.Size {
		c.Fail("trace_parent", "is no W3C traceparent such as 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	}
}

// directiveReach refuses a directive to a queue. Without a reach, a directive goes to all agents of its target.
func directiveReach(c *validate.Check, m *pb.Message, d *mail.Draft) {
	switch {
	case !d.One:
	case m.Reach == pb.Reach_REACH_UNSPECIFIED:
		m.Reach = pb.Reach_REACH_ALL
		d.One = false
	default:
		c.Fail("reach", "is REACH_ONE: a directive such as %s goes to agents, not to a queue", m.Type)
	}
}

// directiveFields refuses fields that delay a directive, and raises its priority: the broker delivers it before
// all other messages.
func directiveFields(c *validate.Check, m *pb.Message) {
	if m.NotBefore != nil {
		c.Fail("not_before", "does not go with a directive, which takes effect when it is sent")
	}
	if m.OrderingKey != "" {
		c.Fail("ordering_key", "does not go with a directive, which is handed out before anything else")
	}
	if m.Priority >= 1 && m.Priority < mail.DirectivePriority {
		m.Priority = mail.DirectivePriority
	}
}

// unstamped refuses a message in which a field is set that the broker sets.
func unstamped(c *validate.Check, m *pb.Message) {
	for _, f := range [...]struct {
		name string
		set  bool
	}{
		{"id", m.Id != ""}, {"revision", m.Revision != 0}, {"sender", m.Sender != ""}, {"sender_role", m.SenderRole != ""},
		{"created_at", m.CreatedAt != nil}, {"expires_at", m.ExpiresAt != nil}, {"type_as_sent", m.TypeAsSent != ""},
	} {
		if f.set {
			c.Fail(f.name, "is stamped by the broker; leave it empty")
		}
	}
}

func target(c *validate.Check, m *pb.Message) (t mail.Target, one bool) {
	switch to := m.Target.GetTo().(type) {
	case *pb.Target_Agent:
		if to.Agent == "all" || to.Agent == "ALL" || to.Agent == "everyone" {
			return toEveryone(c, m)
		}
		t = mail.Target{Kind: mail.ToAgent, Name: to.Agent}
		c.Name("target.agent", to.Agent)
	case *pb.Target_Role:
		t = mail.Target{Kind: mail.ToRole, Name: to.Role}
		c.Name("target.role", to.Role)
	case *pb.Target_Channel:
		t = mail.Target{Kind: mail.ToChannel, Name: to.Channel}
		if strings.HasPrefix(to.Channel, mail.EventChannel) {
			c.Fail("target.channel", "%.60q is for events: publish an event of that type", to.Channel)
			break
		}
		c.NewName("target.channel", to.Channel)
	case *pb.Target_Pattern:
		if to.Pattern == "*" {
			return toEveryone(c, m)
		}
		t = mail.Target{Kind: mail.ToPattern, Name: to.Pattern}
		c.Pattern("target.pattern", to.Pattern)
	case *pb.Target_Everyone:
		t = mail.Target{Kind: mail.ToEveryone}
		if !to.Everyone {
			c.Fail("target.everyone", "is false; choose another target, or set it to true")
		}
	default:
		c.Fail("target", "is missing; name an agent, role, channel, pattern or everyone")
	}
	switch m.Reach {
	case pb.Reach_REACH_UNSPECIFIED:
		one = t.Kind == mail.ToRole
	case pb.Reach_REACH_ALL:
	case pb.Reach_REACH_ONE:
		one = true
		if t.Kind != mail.ToRole && t.Kind != mail.ToChannel && t.Kind != 0 {
			c.Fail("reach", "is REACH_ONE, which is for roles and channels only")
		}
	default:
		c.Fail("reach", "%d is no reach: ALL or ONE", m.Reach)
	}
	return t, one
}

// toEveryone changes a target whose name or pattern means everyone to the target everyone.
func toEveryone(c *validate.Check, m *pb.Message) (t mail.Target, one bool) {
	m.Target = &pb.Target{To: &pb.Target_Everyone{Everyone: true}}
	return target(c, m)
}

// version refuses a version that is not MAJOR.MINOR with the major version 1.
func version(c *validate.Check, m *pb.Message) {
	if m.Version == "" {
		m.Version = "1.0"
		return
	}
	var major, minor uint16
	var rest string
	n, _ := fmt.Sscanf(m.Version+"\n", "%d.%d%s\n", &major, &minor, &rest)
	if n != 2 || m.Version != fmt.Sprintf("%d.%d", major, minor) {
		c.Fail("version", "%.40q is not of the form MAJOR.MINOR, such as 1.0", m.Version)
		return
	}
	if major != 1 {
		c.Fail("version", "has major version %d; this broker knows 1", major)
	}
}

func attachments(c *validate.Check, m *pb.Message) {
	c.Count("files", len(m.Files), maxFiles)
	c.Count("artifacts", len(m.Artifacts), maxFiles)
	if len(m.Files) > maxFiles || len(m.Artifacts) > maxFiles {
		return
	}
	for i, f := range m.Files {
		field := fmt.Sprintf("files[%d]", i)
		if f.GetPath() == "" {
			c.Fail(field+".path", "is empty; a path is required")
		}
		c.Line(field+".path", f.GetPath(), validate.MaxPath)
		if f.GetLine() < 0 {
			c.Fail(field+".line", "is negative")
		}
	}
	for i, name := range m.Artifacts {
		field := fmt.Sprintf("artifacts[%d]", i)
		if name == "" {
			c.Fail(field, "is empty")
		}
		c.Line(field, name, validate.MaxPath)
	}
}

// drafts checks a batch that is sent as a whole: the first fault refuses all of it.
func drafts(types *msgtype.Set, messages []*pb.Message) ([]mail.Draft, error) {
	var c validate.Check
	if len(messages) == 0 {
		c.Fail("messages", "is empty; at least one message is required")
	}
	c.Count("messages", len(messages), mail.MaxBatch)
	if err := c.Err(); err != nil {
		return nil, err
	}
	all := make([]mail.Draft, len(messages))
	for i, m := range messages {
		c.InItem("messages", i)
		all[i] = draft(&c, types, m)
		if err := c.Err(); err != nil {
			return nil, err
		}
		if all[i].Content, all[i].Fault = content.Marshal(m); all[i].Fault != nil {
			return nil, fault.Indexed(all[i].Fault, i, len(messages))
		}
	}
	return all, nil
}

// wire returns a stored message as one of the API. It appends the content as unknown fields, without decoding it:
// on the wire they follow the other fields, and protobuf merges all fields of a message.
func wire(m *mail.Message) *pb.Message {
	out := &pb.Message{
		Id: m.ID.String(), Revision: m.Revision, Sender: m.Sender, SenderRole: m.SenderRole,
		CreatedAt: timestamppb.New(m.CreatedAt), ThreadId: m.Thread,
	}
	if m.Thread == "" {
		out.ThreadId = out.Id
	}
	if !m.ExpiresAt.IsZero() {
		out.ExpiresAt = timestamppb.New(m.ExpiresAt)
	}
	out.ProtoReflect().SetUnknown(m.Content)
	return out
}

func (s *Service) claimed(c *broker.Claim) *pb.ClaimedMessage {
	return &pb.ClaimedMessage{
		ClaimId: c.ClaimID(), Message: wire(&c.Message), Attempt: int32(c.Attempt), MaxAttempts: int32(c.MaxAttempts),
		Mailbox: c.Mailbox, ExpiresIn: durationpb.New(c.ExpiresIn), Resumed: c.Resumed, TraceParent: s.traces.OfClaim(c),
	}
}

func (s *Service) claimedAll(claims []broker.Claim) []*pb.ClaimedMessage {
	out := make([]*pb.ClaimedMessage, len(claims))
	for i := range claims {
		out[i] = s.claimed(&claims[i])
	}
	return out
}

func inboxItem(i *mail.Item) *pb.InboxItem {
	out := &pb.InboxItem{Message: wire(&i.Message)}
	if i.Delivery.State != 0 {
		out.Delivery = delivery(i.Revision, &i.Delivery)
	}
	return out
}

func inboxItems(items []mail.Item) []*pb.InboxItem {
	out := make([]*pb.InboxItem, len(items))
	for i := range items {
		out[i] = inboxItem(&items[i])
	}
	return out
}

func delivery(revision int64, d *mail.Delivery) *pb.Delivery {
	out := &pb.Delivery{
		Mailbox: d.Mailbox, State: pb.DeliveryState(d.State), Arrival: d.Arrival,
		Attempts: int32(d.Attempts), MaxAttempts: int32(d.MaxAttempts), Consumer: d.Consumer,
		ClaimedAt: stamp(d.ClaimedAt), DeliveredAt: stamp(d.DeliveredAt), ReadAt: stamp(d.ReadAt),
		FinishedAt: stamp(d.FinishedAt),
	}
	if d.Claims > 0 {
		out.ClaimId = msgid.ClaimID(revision, d.Claims)
		out.Holder = d.Holder
	}
	if d.State == mail.Acked {
		out.AckedBy = d.Holder
	}
	if d.State == mail.Delayed {
		out.DueAt = stamp(d.DueAt)
	}
	for i := range d.Offers {
		out.Offers = append(out.Offers, offerProto(&d.Offers[i]))
	}
	for _, t := range d.History {
		out.History = append(out.History, &pb.Attempt{
			Number: int32(t.Number), Agent: t.Agent, Consumer: t.Consumer,
			ClaimedAt: stamp(t.ClaimedAt), EndedAt: stamp(t.EndedAt), Error: t.Error,
		})
	}
	return out
}

// stamp returns nil for the zero time.
func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// claimRef checks a field that must have a claim id.
func claimRef(c *validate.Check, field, s string) msgid.Ref {
	ref, ok := msgid.ParseRef(s)
	if !ok || ref.Claim == 0 {
		c.Fail(field, "%.60q is not a claim id (4711.2)", s)
	}
	return ref
}

// claimOrMessage checks a field that has a claim id, or names a message and means the claim on it.
func claimOrMessage(c *validate.Check, field, s string) msgid.Ref {
	return msgid.CheckRef(c, field, s, true)
}

// onlyOpen is claimOrMessage, but permits an empty field, which means the caller's only open claim.
func onlyOpen(c *validate.Check, field, s string) msgid.Ref {
	if s == "" {
		return msgid.Ref{}
	}
	return msgid.CheckRef(c, field, s, true)
}

// choice checks the channels of a filter, which may be those of events.
func choice(c *validate.Check, types *msgtype.Set, f *pb.MessageFilter) inbox.Choice {
	out := inbox.Choice{
		Channels: slices.Clone(f.GetChannels()), Senders: f.GetSenders(), Correlation: f.GetCorrelationId(),
		Thread: f.GetThreadId(), Task: f.GetTaskId(), Priority: int(f.GetLowestPriority()),
		Types: types.Spellings(f.GetTypes()),
	}
	for i, s := range out.Channels {
		c.Name(fmt.Sprintf("filter.channels[%d]", i), strings.TrimPrefix(s, mail.EventChannel))
		out.Channels[i] = mail.ChannelName(s)
	}
	return out
}

// names checks a field with a list of names.
func names(c *validate.Check, field string, list []string) {
	c.Count(field, len(list), mail.MaxTypes)
	for i, s := range list[:min(len(list), mail.MaxTypes)] {
		c.Name(fmt.Sprintf("%s[%d]", field, i), s)
	}
}

// wish checks the fields that all requests for claims have.
func wish(
	c *validate.Check, known *msgtype.Set, at, consumer string, mailboxes, types []string, lowest int32,
) broker.Wish {
	c.OptionalName(at+"consumer", consumer)
	c.Count(at+"mailboxes", len(mailboxes), mail.MaxBatch)
	for i, m := range mailboxes[:min(len(mailboxes), mail.MaxBatch)] {
		c.Name(fmt.Sprintf("%smailboxes[%d]", at, i), mail.ParseMailbox(m).Name)
	}
	names(c, at+"types", types)
	c.Between(at+"lowest_priority", int64(lowest), 0, 10)
	w := broker.Wish{Consumer: consumer, Mailboxes: mailboxes, Priority: int(lowest)}
	if c.Err() == nil {
		w.Types = known.Spellings(types)
	}
	return w
}

// topic checks the fields that restrict a claim to one conversation, one task or some senders.
func topic(c *validate.Check, r *pb.ClaimMessagesRequest) broker.Topic {
	c.Line("thread_id", r.ThreadId, validate.MaxID)
	c.Line("task_id", r.TaskId, validate.MaxID)
	c.Line("correlation_id", r.CorrelationId, validate.MaxID)
	names(c, "senders", r.Senders)
	return broker.Topic{Thread: r.ThreadId, Task: r.TaskId, Correlation: r.CorrelationId, Senders: r.Senders}
}

// A refCheck checks a field of a settlement that names its claim.
type refCheck func(c *validate.Check, field, s string) msgid.Ref

func nackSettlement(c *validate.Check, n *pb.Nack, ref refCheck) broker.Settlement {
	s := broker.Settlement{
		Verb: broker.Nack, Ref: ref(c, "claim_id", n.GetClaimId()), Fatal: n.GetFatal(), Error: n.GetError(),
	}
	c.Text("error", n.GetError(), maxError)
	if n.GetDelay() != nil {
		wait := c.Duration("delay", n.Delay, 0, maxClaim, 0)
		s.Delay = &wait
	}
	return s
}

func extendSettlement(c *validate.Check, e *pb.Extension, ref refCheck) broker.Settlement {
	return broker.Settlement{
		Verb: broker.Extend, Ref: ref(c, "claim_id", e.GetClaimId()),
		For: c.Duration("claim_for", e.GetClaimFor(), time.Second, maxClaim, 0),
	}
}

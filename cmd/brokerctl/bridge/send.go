package bridge

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
)

// callTimeout bounds one call. A send waits inside its call for the sender's rate.
const callTimeout = 15 * time.Second

// maxThread is the broker's limit for the bytes of a thread_id.
const maxThread = 128

// correlation returns the correlation id of the message with a key.
func correlation(key uuid.UUID) string { return "bridge:" + key.String() }

// keyOf returns the key that a message of a bridge has; "" for other messages.
func keyOf(m *pb.Message) string {
	key, found := strings.CutPrefix(m.GetCorrelationId(), "bridge:")
	if !found {
		return ""
	}
	return key
}

// send sends a message once, whatever number of times it is called with the same key. The result is
// nil once the message is sent, a refusal if the broker will never accept it, and another error if
// the caller should try again.
func (b *bridge) send(ctx context.Context, key uuid.UUID, sender string, m *pb.Message) error {
	_, _, err := b.sendOnce(ctx, key, sender, m)
	return err
}

// sendOnce is send. It returns the id of the message, and the message itself if an earlier call has sent it. The id is
// empty if the file was no message but an act.
func (b *bridge) sendOnce(ctx context.Context, key uuid.UUID, sender string, m *pb.Message) (
	id string, earlier *pb.Message, err error) {
	incarnation, err := b.roster.join(ctx, sender)
	if err != nil {
		return "", nil, err
	}
	if incarnation == 0 {
		return "", nil, refusal(fmt.Sprintf("another client has registered %s, and only that client sends in its name", sender))
	}
	earlier, attempts, err := b.attempts(ctx, key)
	if err != nil || earlier != nil {
		return earlier.GetId(), earlier, err
	}
	request := key
	if attempts > 0 {
		request = uuid.NewSHA1(key, []byte(strconv.Itoa(attempts)))
	}
	m.CorrelationId = correlation(key)
	if err := b.answer(ctx, sender, m); err != nil {
		return "", nil, refused(err)
	}
	as := b.broker.As(sender).AtIncarnation(incarnation)
	if done, err := b.act(ctx, key, as, sender, m); done || err != nil {
		return "", nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout) // an act has its own, because it may upload large artifacts
	defer cancel()
	in := &pb.SendMessagesRequest{RequestId: request.String(), Messages: []*pb.Message{m}}
	out, err := as.Messages().SendMessages(ctx, in)
	if pattern := m.GetTarget().GetPattern(); b.parts && pattern != "" && status.Code(err) == codes.NotFound {
		m.Target = &pb.Target{To: &pb.Target_Pattern{Pattern: "*" + strings.Trim(pattern, "*") + "*"}}
		if wider, err2 := as.Messages().SendMessages(ctx, in); status.Code(err2) != codes.NotFound {
			out, err = wider, err2
		}
	}
	if client.Reason(err) == "REQUEST_ID_REUSED" { // sent before, with another message to answer
		earlier, err = b.find(ctx, key)
		return earlier.GetId(), earlier, err
	}
	if err != nil {
		return "", nil, refused(err)
	}
	sent := out.GetResults()[0]
	if sent.GetRefusedCount() == 0 {
		return sent.GetId(), nil, nil
	}
	var full []string
	for _, r := range sent.GetRecipients() {
		if r.GetOutcome() == pb.RecipientOutcome_RECIPIENT_OUTCOME_REFUSED {
			full = append(full, r.GetMailbox())
		}
	}
	if sent.GetRefusedCount() == sent.GetRecipientCount() {
		return "", nil, refusal("the mailboxes of all recipients are full: " + strings.Join(full, ", "))
	}
	b.Log(fmt.Sprintf("message %d of %s did not reach full mailboxes: %s", sent.GetRevision(), sender, strings.Join(full, ", ")))
	return sent.GetId(), nil, nil
}

// find returns the message with a key; nil if there is none that has reached a mailbox.
func (b *bridge) find(ctx context.Context, key uuid.UUID) (*pb.Message, error) {
	m, _, err := b.attempts(ctx, key)
	return m, err
}

// attempts is find. It also returns how many messages with the key no mailbox has taken because all were full. The
// bridge rejects such a message, so that a file with its key is a new send.
func (b *bridge) attempts(ctx context.Context, key uuid.UUID) (m *pb.Message, full int, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	page, err := b.broker.Messages().ListMessages(ctx, &pb.ListMessagesRequest{
		Box: pb.MessageBox_MESSAGE_BOX_ALL, Filter: &pb.MessageFilter{CorrelationId: correlation(key)}})
	if err != nil {
		return nil, 0, err
	}
	for _, item := range page.GetItems() { // oldest first; a reply has the correlation id of the message that it answers
		m := item.GetMessage()
		if m.GetSender() != page.GetItems()[0].GetMessage().GetSender() {
			break
		}
		reached, err := b.reached(ctx, m)
		if err != nil || reached {
			return m, full, err
		}
		full++
	}
	return nil, full, nil
}

// reached reports whether a mailbox has taken a message, or there was none for it. The event of the send says so.
func (b *bridge) reached(ctx context.Context, m *pb.Message) (bool, error) {
	page, err := b.broker.Events().ListEvents(ctx, &pb.ListEventsRequest{AfterRevision: m.GetRevision() - 1,
		UntilRevision: m.GetRevision(), Filter: &pb.EventFilter{Types: []string{"message.sent"}}})
	if err != nil || len(page.GetEvents()) == 0 {
		return true, err
	}
	var sent struct{ Recipients, Refused int }
	err = json.Unmarshal([]byte(page.GetEvents()[0].GetDetails()), &sent)
	return sent.Refused == 0 || sent.Refused < sent.Recipients, err
}

// answer finds the message that m answers, unless m names it: the message with the thread's name as
// its id, else the newest one in the thread from the recipient to the sender. An answer to a message
// that the broker does not know is an ordinary message, and the name that it has becomes a label.
func (b *bridge) answer(ctx context.Context, sender string, m *pb.Message) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	for _, id := range []string{m.GetInReplyTo(), m.GetThreadId()} {
		if _, err := uuid.Parse(id); err != nil {
			continue
		}
		_, err := b.broker.Messages().GetMessage(ctx, &pb.GetMessageRequest{Id: id})
		if err == nil {
			if m.InReplyTo = id; m.ThreadId == id {
				m.ThreadId = "" // the broker takes the thread of the message
			}
			return nil
		}
		if status.Code(err) != codes.NotFound {
			return err
		}
	}
	if id := m.GetInReplyTo(); id != "" {
		m.InReplyTo = ""
		if fits(m.Labels, "in_reply_to", id) {
			m.Labels["in_reply_to"] = id
		}
	}
	if id := m.GetThreadId(); id == "" || len(id) > maxThread {
		return nil
	}
	to := m.GetTarget().GetAgent()
	if to == "" {
		return nil
	}
	thread, err := b.broker.Messages().ListMessages(ctx, &pb.ListMessagesRequest{
		Box: pb.MessageBox_MESSAGE_BOX_ALL, PageSize: 1,
		NewestFirst: true, Filter: &pb.MessageFilter{ThreadId: m.GetThreadId(), Senders: []string{to}}})
	if err != nil {
		return err
	}
	for _, item := range thread.GetItems() {
		if question := item.GetMessage(); question.GetTarget().GetAgent() == sender {
			m.InReplyTo = question.GetId()
		}
	}
	return nil
}

// event adds an event to the log, once for each key.
func (b *bridge) event(ctx context.Context, key uuid.UUID, kind, summary string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := b.broker.Events().PublishEvent(ctx, &pb.PublishEventRequest{RequestId: key.String(), Type: "bridge." + kind,
		Severity: pb.Severity_SEVERITY_WARNING, Summary: oneLine(summary, 512)})
	if client.Reason(err) == "REQUEST_ID_REUSED" {
		return nil
	}
	if err = refused(err); rejected(err) {
		b.Log(fmt.Sprintf("publish bridge.%s: %v", kind, err))
		return nil
	}
	return err
}

// acknowledge finishes messages of an agent. A message that has ended in another way is finished too.
func (b *bridge) acknowledge(ctx context.Context, agent string, ids ...string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	as := b.broker.As(agent).Messages()
	for len(ids) > 0 {
		n := min(len(ids), 500)
		_, err := as.AckMessages(ctx, &pb.AckMessagesRequest{Ids: ids[:n]})
		if ended(err) && n > 1 {
			for _, id := range ids[:n] {
				if err = b.acknowledge(ctx, agent, id); err != nil {
					break
				}
			}
		}
		if err != nil && !ended(err) {
			return err
		}
		ids = ids[n:]
	}
	return nil
}

// ended reports whether an ack was refused because the delivery has already reached its end, or
// because another agent has it.
func ended(err error) bool {
	switch client.Reason(err) {
	case "AGENT_NOT_REGISTERED", "STALE_INCARNATION", "SESSION_CLOSED", "SESSION_NOT_FOUND":
		return false
	}
	code := status.Code(err)
	return code == codes.NotFound || code == codes.FailedPrecondition
}

package engine

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
	"brokerd/cmd/brokerctl/bridge/mailfile"
	pb "brokerd/gen/brokerd/v1"
)

// CallTimeout bounds one call. A send waits inside its call for the sender's rate.
const CallTimeout = 15 * time.Second

// maxThread is the broker's limit for the bytes of a thread_id.
const maxThread = 128

// correlation returns the correlation id of the message with a key.
func correlation(key uuid.UUID) string { return "bridge:" + key.String() }

// KeyOf returns the key that a message of a bridge has; "" for other messages.
func KeyOf(m *pb.Message) string {
	key, found := strings.CutPrefix(m.GetCorrelationId(), "bridge:")
	if !found {
		return ""
	}
	return key
}

// A Sender sends the messages of the folder.
type Sender struct {
	broker *client.Client
	roster *Roster
	calls  *calls
	parts  bool // of the kind
	log    func(line string)
}

// Send sends a message once, whatever number of times it is called with the same key. The result is
// nil once the message is sent, a refusal if the broker will never accept it, and another error if
// the caller should try again.
func (s *Sender) Send(ctx context.Context, key uuid.UUID, sender string, m *pb.Message) error {
	_, _, err := s.SendOnce(ctx, key, sender, m)
	return err
}

// SendOnce is send. It returns the id of the message, and the message itself if an earlier call has sent it. The id is
// empty if the file was no message but an act.
func (s *Sender) SendOnce(ctx context.Context, key uuid.UUID, sender string, m *pb.Message) (
	id string, earlier *pb.Message, err error) {
	incarnation, err := s.roster.Join(ctx, sender)
	if err != nil {
		return "", nil, err
	}
	if incarnation == 0 {
		return "", nil, mailfile.Refusalf("another client has registered %s, and only that client sends in its name", sender)
	}
	earlier, attempts, err := s.attempts(ctx, key)
	if err != nil || earlier != nil {
		return earlier.GetId(), earlier, err
	}
	request := key
	if attempts > 0 {
		request = uuid.NewSHA1(key, []byte(strconv.Itoa(attempts)))
	}
	m.CorrelationId = correlation(key)
	if err := s.answer(ctx, sender, m); err != nil {
		return "", nil, Refused(err)
	}
	as := s.broker.As(sender).AtIncarnation(incarnation)
	if done, err := s.calls.act(ctx, key, as, sender, m); done || err != nil {
		return "", nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, CallTimeout) // an act has its own, because it may upload large artifacts
	defer cancel()
	in := &pb.SendMessagesRequest{RequestId: request.String(), Messages: []*pb.Message{m}}
	out, err := as.Messages().SendMessages(ctx, in)
	if pattern := m.GetTarget().GetPattern(); s.parts && pattern != "" && status.Code(err) == codes.NotFound {
		m.Target = &pb.Target{To: &pb.Target_Pattern{Pattern: "*" + strings.Trim(pattern, "*") + "*"}}
		if wider, err2 := as.Messages().SendMessages(ctx, in); status.Code(err2) != codes.NotFound {
			out, err = wider, err2
		}
	}
	if client.Reason(err) == "REQUEST_ID_REUSED" { // sent before, with another message to answer
		earlier, err = s.Find(ctx, key)
		return earlier.GetId(), earlier, err
	}
	if err != nil {
		return "", nil, Refused(err)
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
		return "", nil, mailfile.Refusal("the mailboxes of all recipients are full: " + strings.Join(full, ", "))
	}
	s.log(fmt.Sprintf("message %d of %s did not reach full mailboxes: %s", sent.GetRevision(), sender, strings.Join(full, ", ")))
	return sent.GetId(), nil, nil
}

// Find returns the message with a key; nil if there is none that has reached a mailbox.
func (s *Sender) Find(ctx context.Context, key uuid.UUID) (*pb.Message, error) {
	m, _, err := s.attempts(ctx, key)
	return m, err
}

// attempts is find. It also returns how many messages with the key no mailbox has taken because all were full. The
// bridge rejects such a message, so that a file with its key is a new send.
func (s *Sender) attempts(ctx context.Context, key uuid.UUID) (m *pb.Message, full int, err error) {
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	page, err := s.broker.Messages().ListMessages(ctx, &pb.ListMessagesRequest{
		Box: pb.MessageBox_MESSAGE_BOX_ALL, Filter: &pb.MessageFilter{CorrelationId: correlation(key)}})
	if err != nil {
		return nil, 0, err
	}
	for _, item := range page.GetItems() { // oldest first; a reply has the correlation id of the message that it answers
		m := item.GetMessage()
		if m.GetSender() != page.GetItems()[0].GetMessage().GetSender() {
			break
		}
		reached, err := s.reached(ctx, m)
		if err != nil || reached {
			return m, full, err
		}
		full++
	}
	return nil, full, nil
}

// reached reports whether a mailbox has taken a message, or there was none for it. The event of the send says so.
func (s *Sender) reached(ctx context.Context, m *pb.Message) (bool, error) {
	page, err := s.broker.Events().ListEvents(ctx, &pb.ListEventsRequest{AfterRevision: m.GetRevision() - 1,
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
func (s *Sender) answer(ctx context.Context, sender string, m *pb.Message) error {
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	for _, id := range []string{m.GetInReplyTo(), m.GetThreadId()} {
		if _, err := uuid.Parse(id); err != nil {
			continue
		}
		_, err := s.broker.Messages().GetMessage(ctx, &pb.GetMessageRequest{Id: id})
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
		if mailfile.Fits(m.Labels, "in_reply_to", id) {
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
	thread, err := s.broker.Messages().ListMessages(ctx, &pb.ListMessagesRequest{
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

// Acknowledge finishes messages of an agent. A message that has ended in another way is finished too.
func Acknowledge(ctx context.Context, broker *client.Client, agent string, ids ...string) error {
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	as := broker.As(agent).Messages()
	for len(ids) > 0 {
		n := min(len(ids), 500)
		_, err := as.AckMessages(ctx, &pb.AckMessagesRequest{Ids: ids[:n]})
		if Ended(err) && n > 1 {
			for _, id := range ids[:n] {
				if err = Acknowledge(ctx, broker, agent, id); err != nil {
					break
				}
			}
		}
		if err != nil && !Ended(err) {
			return err
		}
		ids = ids[n:]
	}
	return nil
}

// Ended reports whether an ack was refused because the delivery has already reached its end, or
// because another agent has it.
func Ended(err error) bool {
	switch client.Reason(err) {
	case "AGENT_NOT_REGISTERED", "STALE_INCARNATION", "SESSION_CLOSED", "SESSION_NOT_FOUND":
		return false
	}
	code := status.Code(err)
	return code == codes.NotFound || code == codes.FailedPrecondition
}

// Message returns a message with its deliveries; nil if the broker does not have it any more.
func Message(ctx context.Context, broker *client.Client, id string) (*pb.GetMessageResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	out, err := broker.Messages().GetMessage(ctx, &pb.GetMessageRequest{Id: id})
	if status.Code(err) == codes.NotFound {
		return nil, nil
	}
	return out, err
}

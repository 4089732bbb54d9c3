package importer

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
)

const (
	mostBytes = 1 << 20 // the size of the largest message that any session allows

	// longestTTL is the longest time to live that the broker accepts. A message without expires_at never expires in the
	// file. Without a time to live, it would have that of its channel, which is 1 h for the channel general.
	longestTTL = 365 * 24 * time.Hour
)

// localMessage decides on an unfinished message without the broker.
func localMessage(r row) outcome {
	if done := content(r); done.as != undecided {
		return done
	}
	switch at, err := r.time("expires_at"); {
	case err != nil:
		return skip("%v", err)
	case !at.IsZero() && time.Until(at) < time.Millisecond:
		return outcome{as: expired}
	}
	return outcome{}
}

// content skips a message whose columns no broker accepts.
func content(r row) outcome {
	for _, column := range messageColumns {
		if !utf8.ValidString(r.text(column)) {
			return skip("%s is no valid UTF-8", column)
		}
	}
	names := []string{"from_agent", "channel", "type"}
	if r["to_agent"] != nil {
		names = append(names, "to_agent")
	}
	if done := wrongName(r, names...); done.as != undecided {
		return done
	}
	if v := r.text("version"); !strings.HasPrefix(v, "1.") {
		return skip("version %q is not 1.x", clip(v, 40))
	}
	if n, ok := r.whole("priority"); !ok || n < 1 || n > 10 {
		return skip("priority %q is no number from 1 to 10", clip(r.text("priority"), 40))
	}
	payload := r.text("payload")
	switch {
	case len(payload) > mostBytes:
		return skip("payload has %d bytes, too many for a message", len(payload))
	case !json.Valid([]byte(payload)):
		return skip("payload is no JSON")
	}
	return outcome{}
}

// messageOf makes the message of a row that content accepts.
func messageOf(r row, k key) *pb.Message {
	priority, _ := r.whole("priority")
	m := &pb.Message{
		Type: r.text("type"), Version: r.text("version"), Priority: int32(priority), Payload: r.text("payload"),
		CorrelationId: r.text("correlation_id"), ThreadId: thread(k),
		Labels: map[string]string{"original_id": r.text("id"), "original_timestamp": r.text("timestamp")},
		Ttl:    durationpb.New(longestTTL),
	}
	if r["to_agent"] == nil {
		m.Target = &pb.Target{To: &pb.Target_Channel{Channel: r.text("channel")}}
		return m
	}
	m.Target = &pb.Target{To: &pb.Target_Agent{Agent: r.text("to_agent")}}
	m.Channel = r.text("channel")
	return m
}

// thread is the conversation of an imported message, by which a later import finds it.
func thread(k key) string { return "import:" + k.String() }

// sendMessage sends an unfinished message.
func (m *run) sendMessage(ctx context.Context, r row, k key, a attempt) (outcome, error) {
	if a.again {
		switch there, err := m.find(ctx, k); {
		case err != nil:
			return outcome{}, err
		case there != nil:
			return outcome{as: alreadyThere}, nil
		}
		if done := localMessage(r); done.as != undecided {
			return done, nil
		}
	}
	message := messageOf(r, k)
	if at, _ := r.time("expires_at"); !at.IsZero() {
		rest := time.Until(at)
		if rest < time.Millisecond {
			return outcome{as: expired}, nil
		}
		message.Ttl = durationpb.New(min(rest, longestTTL))
	}
	return m.send(ctx, r, message, k, a)
}

// send sends a message of a row in the name of its sender.
func (m *run) send(ctx context.Context, r row, message *pb.Message, k key, a attempt) (outcome, error) {
	sender := r.text("from_agent")
	agents := []string{sender}
	if to := message.GetTarget().GetAgent(); to != "" {
		agents = append(agents, to)
	}
	for _, agent := range agents {
		if _, err := m.roster.ensure(ctx, agent, nil); err != nil {
			return refused(outcome{}, err)
		}
	}
	if n := proto.Size(message); n > mostBytes {
		return skip("the message has %d bytes, and at most 1 MiB is possible", n), nil
	}
	// Another attempt of the same row in another entry of the ledger is another request: the broker refused the first.
	id := uuid.NewSHA1(k, binary.BigEndian.AppendUint64(nil, uint64(a.number)))
	var out *pb.SendMessagesResponse
	for {
		var err error
		out, err = m.broker.As(sender).Messages().SendMessages(ctx,
			&pb.SendMessagesRequest{RequestId: id.String(), Messages: []*pb.Message{message}})
		if client.Reason(err) == "SEND_RATE" && client.RetryDelay(err) > 0 { // the turn is more than 30 s away
			if err := sleep(ctx, client.RetryDelay(err)); err != nil {
				return outcome{}, err
			}
			continue
		}
		if client.Reason(err) == "REQUEST_ID_REUSED" { // sent by an earlier import, with more time to live
			there, err := m.find(ctx, k)
			if err != nil || there != nil {
				return outcome{as: alreadyThere}, err
			}
		}
		if err != nil {
			return refused(outcome{}, err)
		}
		break
	}
	sent := out.GetResults()[0]
	switch {
	case sent.GetRecipientCount() == 0:
		return outcome{as: noSubscribers}, nil
	case sent.GetRefusedCount() == sent.GetRecipientCount():
		return skip("the mailbox of %s is full: raise the limit with brokerctl session configure --mailbox-limit N, "+
			"and import again", sent.GetRecipients()[0].GetMailbox()), nil
	case sent.GetDuplicate():
		return outcome{as: alreadyThere}, nil
	}
	done := outcome{as: imported}
	if n := sent.GetRefusedCount(); n > 0 {
		done.reason = fmt.Sprintf("%d of %d mailboxes were full, so their agents have not got it", n, sent.GetRecipientCount())
	}
	return done, nil
}

// find returns the message of a row that an earlier import has sent, with its deliveries; nil if there is none. A
// message to an agent whose mailbox was full does not count.
func (m *run) find(ctx context.Context, k key) (*pb.GetMessageResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	page, err := m.broker.Messages().ListMessages(ctx, &pb.ListMessagesRequest{
		Box: pb.MessageBox_MESSAGE_BOX_ALL, PageSize: 1, Filter: &pb.MessageFilter{ThreadId: thread(k)}})
	if err != nil || len(page.GetItems()) == 0 {
		return nil, err
	}
	there, err := m.broker.Messages().GetMessage(ctx, &pb.GetMessageRequest{Id: page.GetItems()[0].GetMessage().GetId()})
	if err != nil || len(there.GetDeliveries()) == 0 && there.GetMessage().GetTarget().GetAgent() != "" {
		return nil, err
	}
	return there, nil
}

// line returns a text as one line of at most a number of bytes.
func line(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == utf8.RuneError {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, " "))
	return clip(strings.TrimSpace(s), most)
}

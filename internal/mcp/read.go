package mcp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

const (
	inboxPage  = 100                  // messages
	inboxOffer = 24 << 10             // bytes of the contents of new messages that one result shows
	inboxBytes = 24 << 10             // and of the others
	inboxNew   = 48 << 10             // bytes of the text about new messages
	inboxText  = mostText - 2*mostEnd // and about all, so that none is cut out
)

// showInbox shows the new messages and notices in the agent's own mailbox, which it offers, and then its
// other unfinished messages.
func showInbox(c *call) error {
	more, err := showNewMail(c)
	if err != nil {
		return err
	}
	page, err := c.api.ListMessages(c.ctx, &pb.ListMessagesRequest{
		Box: pb.MessageBox_MESSAGE_BOX_INBOX, PageSize: inboxPage,
	})
	if err != nil {
		return err
	}
	bytes, left, elsewhere := 0, 0, 0
	for _, item := range page.GetItems() {
		m, d := item.GetMessage(), item.GetDelivery()
		size := len(m.GetBody()) + len(m.GetPayload())
		switch {
		case prompt.IsNotice(item), d.GetReadAt() == nil && d.GetState() == pb.DeliveryState_DELIVERY_STATE_PENDING:
			for _, o := range d.GetOffers() { // only open ones are listed
				if o.GetMark() != c.mark {
					elsewhere++
				}
			}
			continue
		case bytes+size > inboxBytes, c.out.Len()+len(rendered(c, item)) > inboxText:
			left++
			continue
		}
		bytes += size
		c.voice.Message(c.w, c.voice.Received(item))
	}
	if more > 0 {
		_ = c.say("%d more new messages; the same call shows them", more)
	}
	if elsewhere > 0 {
		_ = c.say("On the way to another session, or to this one by a hook: %s; what nobody receives is new again after a minute",
			prompt.Count(int64(elsewhere), "message"))
	}
	if left > 0 || page.GetNextPageToken() != "" {
		_ = c.say("some messages that were read before are left out; settle others first")
	}
	if len(page.GetItems()) == 0 {
		_ = c.say("no messages")
	}
	if waiting := prompt.Owed(c.voice.Work(false)); len(waiting) > 0 {
		return c.say("Open work: %s; %s shows the commands", prompt.KindsOf(waiting), "turn {}")
	}
	return nil
}

// showNewMail offers new messages and notices, as many as one result can show whole, shows them, and returns
// how many more there are. The middle of a single message may be left out.
func showNewMail(c *call) (more int32, err error) {
	var items []*pb.InboxItem
	for limit := int32(inboxPage); ; {
		c.offer.asks()
		offered, err := c.api.OfferMessages(c.ctx, &pb.OfferMessagesRequest{
			Way: pb.OfferWay_OFFER_WAY_MCP, Harness: c.server.Harness, Mark: c.mark, Limit: limit, MaxBytes: inboxOffer,
		})
		if err != nil {
			return 0, err
		}
		items, more = offered.GetItems(), offered.GetMore()
		for _, item := range items {
			if d := item.GetDelivery(); d != nil {
				d.Offers = nil // this one
			}
		}
		fit := fitting(c, items)
		if fit == len(items) || len(items) == 1 {
			break
		}
		returnOffer(c, "one result cannot show so many")
		c.mark, limit = c.server.Mark(), max(int32(fit), 1)
	}
	var notices []string
	for _, item := range items {
		text := rendered(c, item)
		switch {
		case prompt.IsNotice(item):
			notices = append(notices, item.GetMessage().GetSubject())
		case len(text) > inboxNew:
			c.out.WriteString(prompt.Shorten(text, inboxNew, mostEnd))
			id := prompt.ShortID(item.GetMessage().GetId(), item.GetMessage().GetRevision())
			_ = c.say("The middle of message %s is left out; all of it: (in a shell) brokerctl message get %s", id, id)
		default:
			c.out.WriteString(text)
		}
	}
	prompt.Notices(c.w, notices)
	c.offer.shows(len(items))
	return more, nil
}

// rendered returns the text about a message or notice, with the mark of the call.
func rendered(c *call, item *pb.InboxItem) string {
	var text strings.Builder
	w := prompt.NewWriter(&text, func() string { return c.mark }, "texts of others")
	if prompt.IsNotice(item) {
		prompt.Notices(w, []string{item.GetMessage().GetSubject()})
	} else {
		c.voice.Message(w, c.voice.Received(item))
	}
	_ = w.Flush() // to memory
	return text.String()
}

// fitting returns how many of the messages one result can show whole.
func fitting(c *call, items []*pb.InboxItem) int {
	bytes := 0
	for i, item := range items {
		if bytes += len(rendered(c, item)); bytes > inboxNew {
			return i
		}
	}
	return len(items)
}

// showSummary counts what the agent has before it.
func showSummary(c *call) error {
	answer, err := c.api.GetInboxSummary(c.ctx, &pb.GetInboxSummaryRequest{})
	if err != nil {
		return err
	}
	c.voice.Summary(c.w, answer)
	return nil
}

// showThread shows a conversation, by its id or one of its messages. With a wait, it first waits for a message
// to the agent in it.
func showThread(c *call) error {
	id := c.arg("read")
	thread := id
	if conditions["message"].MatchString(id) {
		answer, err := c.api.GetMessage(c.ctx, &pb.GetMessageRequest{Id: id})
		switch {
		case status.Code(err) == codes.NotFound: // a thread may be named as its creator likes
		case err != nil:
			return err
		default:
			thread = answer.GetMessage().GetThreadId()
		}
	}
	filter := &pb.MessageFilter{ThreadId: thread}
	if wait := c.wait(); wait > 0 {
		_, err := c.await(wait, func(left *durationpb.Duration) (bool, error) {
			return arrived(c, filter, left)
		})
		if err != nil {
			return err
		}
	}
	page, err := c.api.ListMessages(c.ctx, &pb.ListMessagesRequest{
		Box: pb.MessageBox_MESSAGE_BOX_ALL, Filter: filter, PageSize: inboxPage,
	})
	if err != nil {
		return err
	}
	if len(page.GetItems()) == 0 {
		return refusef("no message belongs to thread %s", thread)
	}
	for _, item := range page.GetItems() {
		c.voice.Message(c.w, prompt.Rendered{Message: item.GetMessage()})
	}
	s := page.GetThread()
	c.voice.Thread(c.w, s, prompt.ShortID(s.GetThreadId(), page.GetRevision()))
	return nil
}

// arrived waits for an unread message to the agent in a thread. It reads nothing.
func arrived(c *call, filter *pb.MessageFilter, wait *durationpb.Duration) (bool, error) {
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	stream, err := c.api.Receive(ctx, &pb.ReceiveRequest{Filter: filter, Wait: wait, KeepNotices: true, Limit: 1})
	if err != nil {
		return false, err
	}
	batch, err := stream.Recv()
	if errors.Is(err, io.EOF) {
		return false, nil
	}
	return len(batch.GetItems()) > 0, err
}

// showArtifact shows the content of an artifact.
func showArtifact(c *call) error {
	name, version := c.arg("artifact"), int64(0)
	if i := strings.LastIndexByte(name, '@'); i > 0 {
		if n, err := strconv.ParseInt(name[i+1:], 10, 64); err == nil {
			name, version = name[:i], n
		}
	}
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	// A model reads no more than a result has.
	stream, err := c.api.DownloadArtifact(ctx, &pb.DownloadArtifactRequest{
		Name: name, Version: version, Length: 2 * mostText,
	})
	if err != nil {
		return err
	}
	var content bytes.Buffer
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		content.Write(part.GetChunk())
	}
	_, _ = c.w.Write(content.Bytes()) // to memory
	return nil
}

package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
)

// The status of a message. It only ascends.
const (
	statusDelivered    = "delivered"
	statusRead         = "read"
	statusAcknowledged = "acknowledged"
	statusResolved     = "resolved"
	statusExpired      = "expired"
	statusCancelled    = "cancelled"
	statusFailed       = "failed" // a dead letter
)

// statusRank returns the place of a status in the life of a message; 0 for an unknown one.
func statusRank(s string) int {
	order := []string{statusDelivered, statusRead, statusAcknowledged, statusResolved,
		statusExpired, statusCancelled, statusFailed}
	return slices.Index(order, strings.ToLower(s)) + 1
}

// status returns the status that a file has, and whether the message requires a response, if the file has changed since
// the last call. A file that its agent has removed for good is acknowledged.
func (box *agentBox) status(name string) (status string, question, changed bool, err error) {
	full := path.Join(box.dir, name)
	version, err := box.b.version(full)
	if errors.Is(err, fs.ErrNotExist) {
		if !box.gone(name) {
			return "", false, false, nil
		}
		return statusAcknowledged, false, true, nil
	}
	if err != nil {
		return "", false, false, err
	}
	delete(box.missing, name)
	_, err = box.b.root.Lstat(full + readMarker)
	version.marked = err == nil
	if box.seen[name] == version {
		return "", false, false, nil
	}
	data, err := box.b.read(full)
	if err != nil && !rejected(err) { // a file that its agent has just removed is missing at the next call
		return "", false, false, ignoreAbsent(err)
	}
	// A file that its agent is writing is read again when it has changed.
	if f, err := parse(data); err == nil {
		status, _ = jsonString(f["status"])
		status = strings.ToLower(status)
		question = string(f["requires_response"]) == "true"
	}
	if version.marked && statusRank(status) < statusRank(statusRead) {
		status = statusRead
	}
	box.seen[name] = version
	return status, question, true, nil
}

// keepRead is how long a file stays in the inbox after its agent has marked it as read: the program that answers it
// reads the file again.
const keepRead = time.Hour

// finish moves a file whose message has ended, and the copy in the sender's log, to archive/. It returns false for a
// file that is still to stay: one that has not settled, or that its agent has marked as read less than keepRead ago.
func (f *agentMessages) finish(box *agentBox, name string) (bool, error) {
	full := path.Join(box.dir, name)
	mark, err := f.b.root.Lstat(full + readMarker)
	if f.b.unsettled(full) || err == nil && f.b.changedWithin(full+readMarker, mark, keepRead) {
		return false, nil
	}
	delete(box.seen, name)
	return true, f.archive(box.dir, name)
}

// follow reads the states of messages whose files no local agent reads, at most followed of them, and
// writes each state into its file. A file whose message has ended moves to archive/. A file or a folder
// that it cannot change does not hinder the others.
func (p *agentSends) follow(ctx context.Context) error {
	const atOnce = 200
	p.f.mu.Lock()
	defer p.f.mu.Unlock()
	local := p.f.b.roster.joined()
	dirs, failed := p.f.messageFolders()
	looked := 0
	for _, dir := range dirs {
		if path.Dir(dir) == agentInboxes && slices.Contains(local, path.Base(dir)) {
			continue
		}
		box, err := p.f.box(ctx, dir)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		var ended []string
		for id, name := range box.entries { // in another order each time
			if strings.HasPrefix(id, keyPrefix) || looked == atOnce {
				continue
			}
			looked++
			out, err := p.f.b.message(ctx, id)
			if err != nil {
				return errors.Join(failed, err)
			}
			s := statusOf(out.GetDeliveries())
			err = p.f.b.setStatus(path.Join(dir, name), s)
			if err == nil && statusRank(s) >= statusRank(statusAcknowledged) {
				var finished bool
				if finished, err = p.f.finish(box, name); finished && err == nil {
					ended = append(ended, id)
				}
			}
			failed = errors.Join(failed, err)
		}
		failed = errors.Join(failed, box.change(ctx, ended, nil))
	}
	return failed
}

// statusOf returns the status of a message: the lowest of its deliveries. A message without
// deliveries has ended.
func statusOf(deliveries []*pb.Delivery) string {
	lowest := ""
	for _, d := range deliveries {
		s := "sent"
		switch {
		case d.GetState() == pb.DeliveryState_DELIVERY_STATE_ACKED:
			s = statusAcknowledged
		case d.GetState() == pb.DeliveryState_DELIVERY_STATE_DEAD:
			s = statusFailed
		case d.GetState() == pb.DeliveryState_DELIVERY_STATE_EXPIRED:
			s = statusExpired
		case d.GetState() == pb.DeliveryState_DELIVERY_STATE_CANCELLED:
			s = statusCancelled
		case d.GetReadAt() != nil:
			s = statusRead
		case d.GetDeliveredAt() != nil:
			s = statusDelivered
		}
		if lowest == "" || statusRank(s) < statusRank(lowest) {
			lowest = s
		}
	}
	if lowest == "" {
		return statusAcknowledged
	}
	return lowest
}

// message returns a message with its deliveries; nil if the broker does not have it any more.
func (b *bridge) message(ctx context.Context, id string) (*pb.GetMessageResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	out, err := b.broker.Messages().GetMessage(ctx, &pb.GetMessageRequest{Id: id})
	if status.Code(err) == codes.NotFound {
		return nil, nil
	}
	return out, err
}

// replied reports whether an agent has answered a message.
func (b *bridge) replied(ctx context.Context, agent string, m *pb.Message) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	page, err := b.broker.Messages().ListMessages(ctx, &pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_ALL,
		NewestFirst: true, PageSize: 1000,
		Filter: &pb.MessageFilter{ThreadId: m.GetThreadId(), Senders: []string{agent}}})
	return slices.ContainsFunc(page.GetItems(), func(item *pb.InboxItem) bool {
		return item.GetMessage().GetInReplyTo() == m.GetId()
	}), err
}

// markRead marks mail of an agent as read.
func (b *bridge) markRead(ctx context.Context, agent string, ids []string) error {
	for len(ids) > 0 {
		n := min(len(ids), 500)
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		_, err := b.broker.As(agent).Messages().ListMessages(ctx, &pb.ListMessagesRequest{
			Box: pb.MessageBox_MESSAGE_BOX_INBOX, Ids: ids[:n], MarkRead: true, PageSize: 1000})
		cancel()
		if err != nil && status.Code(err) != codes.NotFound {
			return err
		}
		ids = ids[n:]
	}
	return nil
}

// setStatus raises the status in a file. A file that is not there, or has the status or a later one,
// stays as it is.
func (b *bridge) setStatus(name, to string) error {
	if statusRank(to) == 0 {
		return nil
	}
	return b.edit(name, func(data []byte) ([]byte, error) {
		f, err := parse(data)
		if err != nil {
			return nil, err
		}
		if now, _ := jsonString(f["status"]); statusRank(now) >= statusRank(to) {
			return data, nil
		}
		value, err := json.Marshal(to)
		if err != nil {
			return nil, err
		}
		return withField(data, "status", value)
	})
}

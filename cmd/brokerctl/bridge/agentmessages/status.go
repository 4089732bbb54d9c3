package agentmessages

import (
	"cmp"
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

	"brokerd/cmd/brokerctl/bridge/engine"
	"brokerd/cmd/brokerctl/bridge/mailfile"
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
func (box *box) status(name string) (status string, question, changed bool, err error) {
	full := path.Join(box.Dir, name)
	version, err := versionOf(box.b.Folder, full)
	if errors.Is(err, fs.ErrNotExist) {
		if !box.Gone(name) {
			return "", false, false, nil
		}
		return statusAcknowledged, false, true, nil
	}
	if err != nil {
		return "", false, false, err
	}
	box.Found(name)
	_, err = box.b.Folder.Lstat(full + readMarker)
	version.marked = err == nil
	if box.seen[name] == version {
		return "", false, false, nil
	}
	data, err := box.b.Folder.Read(full)
	if err != nil && !mailfile.Rejected(err) { // a file that its agent has just removed is missing at the next call
		return "", false, false, ignoreAbsent(err)
	}
	// A file that its agent is writing is read again when it has changed.
	if f, err := mailfile.Parse(data); err == nil {
		status, _ = mailfile.JSONString(f["status"])
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
func (f *format) finish(box *box, name string) (bool, error) {
	full := path.Join(box.Dir, name)
	mark, err := f.b.Folder.Lstat(full + readMarker)
	if f.b.Folder.Unsettled(full) || err == nil && f.b.Folder.ChangedWithin(full+readMarker, mark, keepRead) {
		return false, nil
	}
	delete(box.seen, name)
	return true, f.archive(box.Dir, name)
}

// follow reads the states of messages whose files no local agent reads, at most followed of them, and
// writes each state into its file. A file whose message has ended moves to archive/. A file or a folder
// that it cannot change does not hinder the others.
func (p *sends) follow(ctx context.Context) error {
	const atOnce = 200
	p.f.mu.Lock()
	defer p.f.mu.Unlock()
	local := p.f.b.Roster.Joined()
	dirs, failed := p.f.messageFolders()
	looked := 0
	for _, dir := range dirs {
		if path.Dir(dir) == inboxesDir && slices.Contains(local, path.Base(dir)) {
			continue
		}
		box, err := p.f.box(ctx, dir)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		var ended []string
		for id, name := range box.Entries { // in another order each time
			if strings.HasPrefix(id, keyPrefix) || looked == atOnce {
				continue
			}
			looked++
			out, err := engine.Message(ctx, p.f.b.Broker, id)
			if err != nil {
				return errors.Join(failed, err)
			}
			s := statusOf(out.GetDeliveries())
			err = setStatus(p.f.b.Folder, path.Join(dir, name), s)
			if err == nil && statusRank(s) >= statusRank(statusAcknowledged) {
				var finished bool
				if finished, err = p.f.finish(box, name); finished && err == nil {
					ended = append(ended, id)
				}
			}
			failed = errors.Join(failed, err)
		}
		failed = errors.Join(failed, box.Change(ctx, ended, nil))
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
	return cmp.Or(lowest, statusAcknowledged)
}

// replied reports whether the agent has answered a message.
func (p *mail) replied(ctx context.Context, m *pb.Message) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, engine.CallTimeout)
	defer cancel()
	page, err := p.f.b.Broker.Messages().ListMessages(ctx, &pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_ALL,
		NewestFirst: true, PageSize: 1000,
		Filter: &pb.MessageFilter{ThreadId: m.GetThreadId(), Senders: []string{p.agent}}})
	return slices.ContainsFunc(page.GetItems(), func(item *pb.InboxItem) bool {
		return item.GetMessage().GetInReplyTo() == m.GetId()
	}), err
}

// markRead marks mail of the agent as read.
func (p *mail) markRead(ctx context.Context, ids []string) error {
	for len(ids) > 0 {
		n := min(len(ids), 500)
		ctx, cancel := context.WithTimeout(ctx, engine.CallTimeout)
		_, err := p.f.b.Broker.As(p.agent).Messages().ListMessages(ctx, &pb.ListMessagesRequest{
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
func setStatus(f *engine.Folder, name, to string) error {
	if statusRank(to) == 0 {
		return nil
	}
	return edit(f, name, func(data []byte) ([]byte, error) {
		f, err := mailfile.Parse(data)
		if err != nil {
			return nil, err
		}
		if now, _ := mailfile.JSONString(f["status"]); statusRank(now) >= statusRank(to) {
			return data, nil
		}
		value, err := json.Marshal(to)
		if err != nil {
			return nil, err
		}
		return withField(data, "status", value)
	})
}

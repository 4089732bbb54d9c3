package messagesrpc

import (
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/inbox"
	"brokerd/internal/mail"
	"brokerd/internal/msgid"
	"brokerd/internal/validate"
)

// checkListingLook checks the fields of a list that say which messages of the inbox it shows, and in which order.
func checkListingLook(c *validate.Check, r *pb.ListMessagesRequest, l *inbox.ListOptions) {
	l.Look = inbox.Look{Priority: r.Order == pb.MessageOrder_MESSAGE_ORDER_PRIORITY, Queues: r.IncludeQueues}
	l.IDs = msgid.CheckRefs(c, "ids", r.Ids, mail.MaxBatch, false)
	l.Mailbox = r.Mailbox
	mailboxField(c, r.Mailbox)
	own := r.Box == pb.MessageBox_MESSAGE_BOX_UNSPECIFIED || r.Box == pb.MessageBox_MESSAGE_BOX_INBOX
	for field, set := range map[string]bool{
		"order": l.Look.Priority, "include_queues": l.Look.Queues, "ids": len(l.IDs) > 0, "mailbox": l.Mailbox != "",
	} {
		if set && !own {
			c.Fail(field, "is for the inbox only")
		}
	}
	if l.Mailbox != "" && (l.Look.Asked() || l.MarkRead || len(l.IDs) > 0) {
		c.Fail("mailbox", "does not go together with mark_read, order, include_queues and ids")
	}
	l.Look.Queues = l.Look.Queues || l.Mailbox != "" && mail.ParseMailbox(l.Mailbox).Kind != mail.AgentMailbox
	if l.Look.Priority && l.Newest {
		c.Fail("newest_first", "does not go together with MESSAGE_ORDER_PRIORITY")
	}
	if len(l.IDs) > 0 && (l.Look.Asked() || l.Newest || r.Filter != nil || r.FromTime != nil || r.ToTime != nil) {
		c.Fail("ids", "names the messages: leave filter, from_time, to_time, newest_first, order and include_queues empty")
	}
}

// checkReadingLook checks the same fields of a Receive.
func checkReadingLook(c *validate.Check, r *pb.ReceiveRequest, options *inbox.ReceiveOptions) {
	options.Look = inbox.Look{Priority: r.Order == pb.MessageOrder_MESSAGE_ORDER_PRIORITY, Queues: r.IncludeQueues}
	if !options.Look.Asked() {
		return
	}
	for field, set := range map[string]bool{
		"after_revision": r.AfterRevision != 0, "cursor": r.Cursor != "", "follow": r.Follow, "auto_ack": r.AutoAck,
	} {
		if set {
			c.Fail(field, "does not go together with MESSAGE_ORDER_PRIORITY or include_queues")
		}
	}
}

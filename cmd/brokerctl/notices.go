package main

import (
	"io"
	"slices"

	"github.com/spf13/cobra"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// isNotice reports whether an item of an inbox is an unread notice.
func isNotice(item *pb.InboxItem) bool { return prompt.IsNotice(item) }

// printNotices writes notices, one a line.
func printNotices(w io.Writer, subjects []string) { prompt.Notices(w, subjects) }

// showInbox lists an inbox. Unread notices are no rows: they follow in one block, and are read by that.
func (c *cli) showInbox(cmd *cobra.Command, broker *client.Client, items []*pb.InboxItem) error {
	format, err := c.format()
	if err != nil {
		return err
	}
	var notices []*pb.InboxItem
	mail := slices.DeleteFunc(slices.Clone(items), func(item *pb.InboxItem) bool {
		if isNotice(item) {
			notices = append(notices, item)
		}
		return isNotice(item)
	})
	if format == formatJSON {
		mail = items
	}
	if len(mail)+len(notices) == 0 || len(mail) > 0 {
		if err := list(c, cmd, mail, c.inboxView()); err != nil {
			return err
		}
	}
	ids, subjects := make([]string, len(notices)), make([]string, len(notices))
	for i, item := range notices {
		ids[i], subjects[i] = item.GetMessage().GetId(), item.GetMessage().GetSubject()
	}
	if format != formatJSON {
		printNotices(cmd.OutOrStdout(), subjects)
	}
	for batch := range slices.Chunk(ids, 1000) {
		request := &pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_INBOX, Ids: batch, MarkRead: true, PageSize: int32(len(batch))}
		if _, err := broker.Messages().ListMessages(cmd.Context(), request); err != nil {
			return err
		}
	}
	if format == formatJSON || broker.Identity().Agent == "" {
		return nil
	}
	work, err := workOf(cmd.Context(), broker)
	if waiting := owed(work); len(waiting) > 0 {
		prompt.Say(cmd.OutOrStdout(), "Open work: %s; %s shows the commands", prompt.KindsOf(waiting), c.command("next"))
	}
	return err
}

package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	pb "brokerd/gen/brokerd/v1"
)

// inboxOptions are the options of inbox.
type inboxOptions struct {
	filterOptions
	markRead bool
	newest   bool
	limit    int
}

// AddFlags adds the options.
func (o *inboxOptions) AddFlags(f *pflag.FlagSet) {
	o.filterOptions.AddFlags(f)
	f.BoolVar(&o.markRead, "mark-read", false, "mark what is listed as read")
	f.BoolVar(&o.newest, "newest", false, "newest first")
	f.IntVar(&o.limit, "limit", 100, "list at most this many; 0 = all")
}

func newInboxCommand(c *cli) *cobra.Command {
	o := &inboxOptions{}
	cmd := &cobra.Command{
		Use:   "inbox",
		Short: "List the agent's unfinished messages",
		Long: `List the unfinished messages in the agent's own mailbox, with how each stands: new, read, claimed (with the
claim id), delayed, blocked, and how often it failed.`,
		Example: `  brokerctl --agent builder-1 inbox
  brokerctl --agent builder-1 inbox --lowest-priority high --mark-read -o prompt`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			filter, err := o.filter()
			if err != nil {
				return err
			}
			return listMessages(c, cmd, &pb.ListMessagesRequest{
				Box: pb.MessageBox_MESSAGE_BOX_INBOX, Filter: filter, MarkRead: o.markRead, NewestFirst: o.newest,
			}, o.limit, c.inboxView())
		},
	}
	o.AddFlags(cmd.Flags())
	o.complete(c, cmd)
	return cmd
}

// listMessages lists messages over all pages.
func listMessages(c *cli, cmd *cobra.Command, request *pb.ListMessagesRequest, limit int, v view[*pb.InboxItem]) error {
	broker, err := c.connect(cmd.Context())
	if err != nil {
		return err
	}
	items, err := pages(limit, func(size int32, token string) ([]*pb.InboxItem, string, error) {
		request.PageSize, request.PageToken = size, token
		page, err := broker.Messages().ListMessages(cmd.Context(), request)
		return page.GetItems(), page.GetNextPageToken(), err
	})
	if err != nil {
		return err
	}
	return list(c, cmd, items, v)
}

package messages

import (
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/words"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// inboxOptions are the options of inbox.
type inboxOptions struct {
	filterOptions
	lookOptions
	when     command.TimeRange
	markRead bool
	newest   bool
	limit    int

	summary bool
	follow  bool
	wait    time.Duration
	cursor  string
	autoAck bool

	operator bool
}

// AddFlags adds the options.
func (o *inboxOptions) AddFlags(f *pflag.FlagSet) {
	o.filterOptions.AddFlags(f)
	o.lookOptions.AddFlags(f)
	o.when.AddFlags(f, "messages sent")
	f.BoolVar(&o.markRead, "mark-read", false, "mark the listed messages in the agent's own mailbox as read")
	f.BoolVar(&o.newest, "newest", false, "newest first")
	f.IntVar(&o.limit, "limit", 0, "list at most this many; 0: all (default: 100; with --follow all)")
	f.BoolVar(&o.summary, "summary", false, "only counts by priority and type, open questions and directives")
	f.BoolVar(&o.follow, "follow", false, "keep printing new messages, also after restarts of the broker")
	command.DurationVar(f, &o.wait, "wait", 0, "if there are none, wait up to this long for a first message")
	f.StringVar(&o.cursor, "cursor", "", "continue where the last read with this name stopped; the broker stores the position")
	f.BoolVar(&o.operator, "operator", false, "the operators' mailbox: replies to their messages, and what agents send to operator")
	f.BoolVar(&o.autoAck, "auto-ack", false, "finish the messages before printing them: at most one delivery")
}

// NewInboxCommand returns the command brokerctl inbox.
func NewInboxCommand(c *command.Caller) *cobra.Command {
	o := &inboxOptions{}
	cmd := &cobra.Command{
		Use:   "inbox [ID...]",
		Short: "List the agent's unfinished messages, or follow them",
		Long: `List the unfinished messages in the agent's own mailbox with their state: new,
read, claimed (with the claim id), delayed or blocked, and the failed attempts.
With IDs (message ids or revisions), list only these, also finished ones. With
--queues, also list the messages that wait in the queues of the agent's role and
channels, from which claim takes. Then come the notices of the broker, each once.
With --operator, list the mailbox that all operators share: the replies to their
messages, and what agents send to the receiver operator.

With --follow, --wait, --cursor or --auto-ack, read the messages as brokerctl
receive does. Exit code 4 then means: nothing came within --wait.`,
		Example: `  brokerctl --agent builder-1 inbox --summary
  brokerctl --agent builder-1 inbox --lowest-priority high --mark-read
  brokerctl --agent builder-1 inbox --queues --order priority
  brokerctl --agent builder-1 inbox --type review_approved --wait 90s
  brokerctl inbox --operator`,
		Args:              messageIDs,
		ValidArgsFunction: c.CompleteArgs(true, words.WaitingWords),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(c, cmd, args) },
	}
	o.AddFlags(cmd.Flags())
	o.lookOptions.complete(cmd, "summary", "follow", "cursor", "auto-ack")
	for _, listing := range []string{"summary", "mark-read", "newest", "since", "until"} {
		for _, reading := range []string{"follow", "wait", "cursor", "auto-ack"} {
			cmd.MarkFlagsMutuallyExclusive(listing, reading)
		}
	}
	cmd.MarkFlagsMutuallyExclusive("follow", "wait")
	cmd.MarkFlagsMutuallyExclusive("summary", "mark-read")
	for _, listing := range []string{"newest", "since", "until"} {
		cmd.MarkFlagsMutuallyExclusive("summary", listing)
	}
	return cmd
}

func (o *inboxOptions) run(c *command.Caller, cmd *cobra.Command, ids []string) error {
	if o.operator {
		if c.Global.Agent != "" {
			return problem.Usagef("--operator and --agent exclude each other")
		}
		c.Global.Operator, c.Found = true, nil
	}
	if err := o.needsAgent(c, cmd); err != nil {
		return err
	}
	if len(ids) > 0 {
		return o.listGiven(c, cmd, ids)
	}
	if o.summary {
		return showInboxSummary(c, cmd)
	}
	if o.follow || o.wait > 0 || o.cursor != "" || o.autoAck {
		r := receiveOptions{
			filterOptions: o.filterOptions, lookOptions: o.lookOptions, cursor: o.cursor, follow: o.follow, wait: o.wait, autoAck: o.autoAck, limit: int32(min(o.limit, 1<<30)),
		}
		return r.run(c, cmd)
	}
	filter, err := o.filter(cmd.Context(), c)
	if err != nil {
		return err
	}
	order, err := o.parse()
	if err != nil {
		return err
	}
	limit := o.limit
	if !cmd.Flags().Changed("limit") {
		limit = 100
	}
	since, until, err := o.when.Parse(c)
	if err != nil {
		return err
	}
	broker, items, err := fetchMessages(c, cmd, &pb.ListMessagesRequest{
		Box: pb.MessageBox_MESSAGE_BOX_INBOX, Filter: filter, MarkRead: o.markRead, NewestFirst: o.newest,
		FromTime: since, ToTime: until, Order: order, IncludeQueues: o.queues,
	}, limit)
	if err != nil {
		return err
	}
	if err := showInbox(c, cmd, broker, items); err != nil || !c.Global.Operator {
		return err
	}
	return showOwed(c, cmd, broker)
}

// showOwed says which questions in the operators' mailbox wait for an answer.
func showOwed(c *command.Caller, cmd *cobra.Command, broker *client.Client) error {
	format, err := c.Format()
	if err != nil || format == output.FormatJSON {
		return err
	}
	summary, err := broker.Messages().GetInboxSummary(cmd.Context(), &pb.GetInboxSummaryRequest{})
	if status.Code(err) == codes.PermissionDenied { // an observer answers none
		return nil
	}
	if err == nil {
		c.Voice().Owed(cmd.OutOrStdout(), summary.GetOwed())
	}
	return err
}

// needsAgent refuses a caller who names no agent and does not ask for the operators' mailbox: the name is
// missing more often than that mailbox is meant. With --operator, it refuses the credential of an agent.
func (o *inboxOptions) needsAgent(c *command.Caller, cmd *cobra.Command) error {
	broker, err := c.Connect(cmd.Context(), c.RetryNotice(cmd))
	if err != nil || broker.Identity().Agent != "" {
		return err
	}
	own, err := broker.Agents().GetAgent(cmd.Context(), &pb.GetAgentRequest{}) // of the caller, whose credential may name it
	switch {
	case o.operator && err == nil:
		return problem.Usagef("--operator needs the credential of an operator; this one is that of the agent %s", own.GetAgent().GetName())
	case !c.Global.Operator && status.Code(err) == codes.InvalidArgument:
		return problem.Usagef("the agent's name is missing: give --agent NAME; --operator lists the operators' mailbox")
	}
	return nil
}

// listGiven lists given messages.
func (o *inboxOptions) listGiven(c *command.Caller, cmd *cobra.Command, ids []string) error {
	if err := onlyWithIDs(cmd, "mark-read"); err != nil {
		return err
	}
	return listMessages(c, cmd, &pb.ListMessagesRequest{
		Box: pb.MessageBox_MESSAGE_BOX_INBOX, Ids: ids, MarkRead: o.markRead,
	}, 0, InboxView(c))
}

// showInboxSummary counts what the agent has before it.
func showInboxSummary(c *command.Caller, cmd *cobra.Command) error {
	broker, err := c.Connect(cmd.Context())
	if err != nil {
		return err
	}
	answer, err := broker.Messages().GetInboxSummary(cmd.Context(), &pb.GetInboxSummaryRequest{})
	if err != nil {
		return err
	}
	return c.Show(cmd, answer, func(w io.Writer) { c.Voice().Summary(w, answer) })
}

// listMessages lists messages over all pages.
func listMessages(c *command.Caller, cmd *cobra.Command, request *pb.ListMessagesRequest, limit int, v output.View[*pb.InboxItem]) error {
	_, items, err := fetchMessages(c, cmd, request, limit)
	if err != nil {
		return err
	}
	return output.List(&c.Output, cmd, items, v)
}

// fetchMessages returns the messages of all pages.
func fetchMessages(
	c *command.Caller, cmd *cobra.Command, request *pb.ListMessagesRequest, limit int,
) (*client.Client, []*pb.InboxItem, error) {
	broker, err := c.Connect(cmd.Context())
	if err != nil {
		return nil, nil, err
	}
	items, err := command.Pages(limit, func(size int32, token string) ([]*pb.InboxItem, string, error) {
		request.PageSize, request.PageToken = size, token
		page, err := broker.Messages().ListMessages(cmd.Context(), request)
		return page.GetItems(), page.GetNextPageToken(), err
	})
	return broker, items, err
}

// showInbox lists an inbox. Unread notices are no rows: they follow in one block, and are read by that.
func showInbox(c *command.Caller, cmd *cobra.Command, broker *client.Client, items []*pb.InboxItem) error {
	format, err := c.Format()
	if err != nil {
		return err
	}
	var notices []*pb.InboxItem
	mail := slices.DeleteFunc(slices.Clone(items), func(item *pb.InboxItem) bool {
		if prompt.IsNotice(item) {
			notices = append(notices, item)
		}
		return prompt.IsNotice(item)
	})
	if format == output.FormatJSON {
		mail = items
	}
	if len(mail)+len(notices) == 0 || len(mail) > 0 {
		if err := output.List(&c.Output, cmd, mail, InboxView(c)); err != nil {
			return err
		}
	}
	ids, subjects := make([]string, len(notices)), make([]string, len(notices))
	for i, item := range notices {
		ids[i], subjects[i] = item.GetMessage().GetId(), item.GetMessage().GetSubject()
	}
	if format != output.FormatJSON {
		prompt.Notices(cmd.OutOrStdout(), subjects)
	}
	for batch := range slices.Chunk(ids, 1000) {
		request := &pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_INBOX, Ids: batch, MarkRead: true, PageSize: int32(len(batch))}
		if _, err := broker.Messages().ListMessages(cmd.Context(), request); err != nil {
			return err
		}
	}
	if format == output.FormatJSON || broker.Identity().Agent == "" {
		return nil
	}
	work, err := command.WorkOf(cmd.Context(), broker)
	if waiting := prompt.Owed(work); len(waiting) > 0 {
		prompt.Say(cmd.OutOrStdout(), "Open work: %s; %s shows the commands", prompt.KindsOf(waiting), c.Command("next"))
	}
	return err
}

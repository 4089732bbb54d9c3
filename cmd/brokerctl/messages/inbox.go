package messages

import (
	"io"
	"slices"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/calls"
	"brokerd/internal/prompt"
)

// NewInboxCommand returns the command brokerctl inbox.
func NewInboxCommand(c *command.Caller) *cobra.Command {
	cmd := takingIDs(inboxCommand.Command(c))
	command.Says(c, cmd, func(call calls.Call, q *pb.ListMessagesRequest) []string {
		settings, err := c.Settings()
		switch {
		case !proto.Equal(q, &pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_INBOX}):
			return nil
		case call.Agent == "" && (err != nil || settings.Agent.Value == ""):
			return []string{"--operator"}
		}
		return []string{}
	})
	return command.Says(c, cmd, func(calls.Call, *pb.GetInboxSummaryRequest) []string { return []string{"--summary"} })
}

var inboxCommand = command.Procedure[*pb.ListMessagesRequest]{
	Page: command.Page{
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
	},
	Args: waitingIDs,
	Options: slices.Concat(filter, look, []command.Option{
		command.Since("from_time", "", "messages sent"),
		command.Until("to_time", "messages sent"),
		{Field: "mark_read", Usage: "mark the listed messages in the agent's own mailbox as read"},
		{Field: "newest_first", Name: "newest", Usage: "newest first"},
		{Name: "limit", Type: "int", Value: command.Limit.Value,
			Usage: "list at most this many; 0: all, also the default of --follow"},
		{Name: "summary", Type: "bool", Usage: "only counts by priority and type, open questions and directives"},
		{Name: "follow", Type: "bool", Usage: followUsage},
		{Name: "wait", Type: "duration", Usage: firstUsage},
		{Name: "cursor", Type: "string", Kind: command.Name, Usage: cursorUsage},
		{Name: "operator", Type: "bool",
			Usage: "the operators' mailbox: replies to their messages, and what agents send to operator"},
		{Name: "auto-ack", Type: "bool", Usage: autoAckUsage},
	}),
	Apart: slices.Concat(
		apart("order queues", "summary follow cursor auto-ack"),
		apart("summary mark-read newest since until", "follow wait cursor auto-ack"),
		apart("summary", "mark-read newest since until"),
		apart("follow", "wait"),
	),
	Run: func(g *command.Given, q *pb.ListMessagesRequest) error {
		c, cmd := g.Caller, g.Cmd
		if g.On("operator") {
			if c.Global.Agent != "" {
				return problem.Usagef("--operator and --agent exclude each other")
			}
			c.Global.Operator, c.Found = true, nil
		}
		if err := needsAgent(g); err != nil {
			return err
		}
		q.Box = pb.MessageBox_MESSAGE_BOX_INBOX
		if len(q.GetIds()) > 0 {
			if err := onlyWithIDs(cmd, "mark-read"); err != nil {
				return err
			}
			_, items, err := fetchMessages(g, q)
			if err != nil {
				return err
			}
			return output.List(&c.Output, cmd, items, InboxView(c))
		}
		if g.On("summary") {
			return showInboxSummary(c, cmd)
		}
		r := &pb.ReceiveRequest{
			Cursor: g.Text("cursor"), Follow: g.On("follow"), Wait: command.Duration(g.Duration("wait")), Filter: q.GetFilter(),
			AutoAck: g.On("auto-ack"), Order: q.GetOrder(), IncludeQueues: q.GetIncludeQueues(),
		}
		if r.GetFollow() || r.GetWait() != nil || r.GetCursor() != "" || r.GetAutoAck() {
			if cmd.Flags().Changed("limit") {
				r.Limit = int32(min(g.Int("limit"), 1<<30))
			}
			return receive(g, r)
		}
		if err := nameThread(g, q.GetFilter()); err != nil {
			return err
		}
		broker, items, err := fetchMessages(g, q)
		if err != nil {
			return err
		}
		if err := showInbox(c, cmd, broker, items); err != nil || !c.Global.Operator {
			return err
		}
		return showOwed(c, cmd, broker)
	},
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
func needsAgent(g *command.Given) error {
	ctx := g.Cmd.Context()
	broker, err := g.Connect(ctx, g.RetryNotice(g.Cmd))
	if err != nil || broker.Identity().Agent != "" {
		return err
	}
	own, err := broker.Agents().GetAgent(ctx, &pb.GetAgentRequest{}) // of the caller, whose credential may name it
	switch {
	case g.On("operator") && err == nil:
		return problem.Usagef("--operator needs the credential of an operator; this one is that of the agent %s",
			own.GetAgent().GetName())
	case !g.Global.Operator && status.Code(err) == codes.InvalidArgument:
		return problem.Usagef("the agent's name is missing: give --agent NAME; --operator lists the operators' mailbox")
	}
	return nil
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

// fetchMessages returns the messages of the pages up to --limit.
func fetchMessages(g *command.Given, request *pb.ListMessagesRequest) (*client.Client, []*pb.InboxItem, error) {
	broker, err := g.Connect(g.Cmd.Context())
	if err != nil {
		return nil, nil, err
	}
	page := func(size int32, token string) ([]*pb.InboxItem, string, error) {
		request.PageSize, request.PageToken = size, token
		page, err := broker.Messages().ListMessages(g.Cmd.Context(), request)
		return page.GetItems(), page.GetNextPageToken(), err
	}
	items, err := command.UpToLimit(g, request.GetNewestFirst(), page)
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
		request := &pb.ListMessagesRequest{
			Box: pb.MessageBox_MESSAGE_BOX_INBOX, Ids: batch, MarkRead: true, PageSize: int32(len(batch)),
		}
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

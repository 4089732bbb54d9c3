package messages

import (
	"context"
	"errors"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// receiveOptions are the options of receive.
type receiveOptions struct {
	filterOptions
	lookOptions
	after  int64
	cursor string
	follow bool
	wait   time.Duration
	limit  int32

	autoAck bool
}

// AddFlags adds the options.
func (o *receiveOptions) AddFlags(f *pflag.FlagSet) {
	o.filterOptions.AddFlags(f)
	o.lookOptions.AddFlags(f)
	f.Int64Var(&o.after, "after", 0, "only messages that arrived after this revision")
	f.StringVar(&o.cursor, "cursor", "", "continue where the last read with this name stopped; the broker stores the position")
	f.BoolVar(&o.follow, "follow", false, "keep printing new messages, also after restarts of the broker")
	command.DurationVar(f, &o.wait, "wait", 0, "if there are none, wait up to this long for a first message")
	f.Int32Var(&o.limit, "limit", 0, "end after this many messages")
	f.BoolVar(&o.autoAck, "auto-ack", false, "finish the messages before printing them: at most one delivery")
}

// NewReceiveCommand returns the command brokerctl receive.
func NewReceiveCommand(c *command.Caller) *cobra.Command {
	o := &receiveOptions{}
	cmd := &cobra.Command{
		Use:   "receive",
		Short: "Read the agent's mailbox, in order of arrival",
		Long: `Print the unfinished messages in the agent's mailbox in order of arrival and,
with --follow, the new ones. Reading changes no message's state; claim takes
messages, ack finishes them, and --auto-ack does both.

To read only new messages, give the arrival of the last one (--after), or let
the broker store the position (--cursor).

Exit code 4: the mailbox is empty, or nothing came within --wait.`,
		Example: `  brokerctl --agent builder-1 receive --cursor main --wait 30s -o json
  brokerctl --agent builder-1 receive --queues --order priority --limit 5
  brokerctl --agent builder-1 receive --follow --type nudge --type halt`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return o.run(c, cmd) },
	}
	o.AddFlags(cmd.Flags())
	o.lookOptions.complete(cmd, "after", "cursor", "follow", "auto-ack")
	cmd.MarkFlagsMutuallyExclusive("after", "cursor")
	cmd.MarkFlagsMutuallyExclusive("follow", "wait")
	return cmd
}

func (o *receiveOptions) run(c *command.Caller, cmd *cobra.Command) error {
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	order, err := o.parse()
	if err != nil {
		return err
	}
	broker, err := c.Connect(ctx, c.RetryNotice(cmd))
	if err != nil {
		return err
	}
	filter, err := o.filter(ctx, c)
	if err != nil {
		return err
	}
	if o.follow {
		print, err := output.Follow(&c.Output, cmd, InboxView(c))
		if err != nil {
			return err
		}
		options := client.FollowOptions{After: o.after, Cursor: o.cursor, Filter: filter, AutoAck: o.autoAck, Limit: o.limit}
		for item, err := range broker.Follow(ctx, options) {
			if err != nil {
				return err
			}
			if err := print(item); err != nil {
				return err
			}
		}
		return ctx.Err()
	}

	done := c.Progress(o.wait, "messages")
	stream, err := broker.Messages().Receive(ctx, &pb.ReceiveRequest{
		AfterRevision: o.after, Cursor: o.cursor, Wait: command.Duration(o.wait), Filter: filter, Limit: o.limit, AutoAck: o.autoAck,
		Order: order, IncludeQueues: o.queues,
	})
	var items []*pb.InboxItem
	for err == nil {
		var page *pb.ReceiveResponse
		page, err = stream.Recv()
		items = append(items, page.GetItems()...)
	}
	done()
	if errors.Is(err, io.EOF) {
		err = nil
	}
	switch {
	case len(items) > 0: // also those before an error: the broker may have finished them already
		return errors.Join(output.List(&c.Output, cmd, items, InboxView(c)), err)
	case err != nil:
		return err
	}
	return problem.Failf(problem.ExitNothing, "nothing %s", prompt.Either(o.wait > 0, "came within "+prompt.Duration(o.wait), "is there"))
}

// InboxView lists messages in a mailbox.
func InboxView(c *command.Caller) output.View[*pb.InboxItem] {
	return output.View[*pb.InboxItem]{
		Columns: []table.Column{
			{Name: "REV", Typical: 6}, {Name: "PRIO", Rank: 2}, {Name: "SENT", Typical: c.TimeWidth()}, {Name: "FROM", Min: 10, Typical: 12},
			{Name: "TYPE", Rank: 3, Min: 8, Typical: 15}, {Name: "STATE", Typical: 14, State: true}, {Name: "TEXT", Min: 28, Typical: 40},
			{Name: "SENT AS", Wide: true, Typical: 15}, {Name: "ID", Wide: true, Typical: 36},
		},
		Row: func(item *pb.InboxItem) []string {
			m := item.GetMessage()
			return []string{
				strconv.FormatInt(m.GetRevision(), 10), strconv.Itoa(int(m.GetPriority())), c.When(m.GetCreatedAt()),
				m.GetSender(), m.GetType(), prompt.Standing(item.GetDelivery()), prompt.Summary(m), m.GetTypeAsSent(), m.GetId(),
			}
		},
		Prompt: func(w io.Writer, item *pb.InboxItem) {
			if prompt.IsNotice(item) {
				prompt.Notices(w, []string{item.GetMessage().GetSubject()})
				return
			}
			c.PrintPrompt(w, c.Voice().Received(item))
		},
		None: "no messages",
	}
}

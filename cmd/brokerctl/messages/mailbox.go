package messages

import (
	"strconv"

	"github.com/spf13/cobra"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/jsonform"
	"brokerd/internal/prompt"
)

// NewMailboxCommand returns the commands of brokerctl mailbox.
func NewMailboxCommand(c *command.Caller) *cobra.Command {
	return command.Group("mailbox", "List the mailboxes that hold messages",
		`Every agent has a mailbox. So has a role or channel whose messages go to one of its
agents.`,
		"  brokerctl mailbox list", newMailboxListCommand(c))
}

func newMailboxListCommand(c *command.Caller) *cobra.Command {
	var order string
	var limit int
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List mailboxes by the age or the number of their messages",
		Long: `List the mailboxes that hold waiting, claimed or dead messages. OLDEST is when the
oldest message that a claim could take was sent. For an agent: the mailboxes that
it takes from.`,
		Example: `  brokerctl mailbox list
  brokerctl mailbox list --order waiting --limit 20`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			by, err := output.ParseEnum("order", pb.MailboxOrder(0).Descriptor(), order)
			if err != nil {
				return err
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			mailboxes, err := command.Pages(limit, func(size int32, token string) ([]*pb.MailboxSummary, string, error) {
				page, err := broker.Messages().ListMailboxes(cmd.Context(), &pb.ListMailboxesRequest{
					Order: pb.MailboxOrder(by), PageSize: size, PageToken: token,
				})
				return page.GetMailboxes(), page.GetNextPageToken(), err
			})
			if err != nil {
				return err
			}
			return output.List(&c.Output, cmd, mailboxes, MailboxView(c))
		},
	}
	cmd.Flags().StringVar(&order, "order", "", "oldest (message first), or waiting: the fullest first (default: oldest)")
	orders := jsonform.EnumNames(pb.MailboxOrder(0).Descriptor())
	command.Must(cmd.RegisterFlagCompletionFunc("order", cobra.FixedCompletions(orders, cobra.ShellCompDirectiveNoFileComp)))
	command.LimitVar(cmd.Flags(), &limit, 100)
	return cmd
}

// MailboxView lists mailboxes.
func MailboxView(c *command.Caller) output.View[*pb.MailboxSummary] {
	return output.View[*pb.MailboxSummary]{
		Columns: []table.Column{
			{Name: "MAILBOX", Min: 16}, {Name: "OLDEST"}, {Name: "WAITING"}, {Name: "CLAIMED"}, {Name: "DEAD"},
		},
		Row: func(m *pb.MailboxSummary) []string {
			return []string{m.GetMailbox(), c.When(m.GetOldestAt()), strconv.FormatInt(m.GetWaiting(), 10),
				strconv.FormatInt(m.GetClaimed(), 10), prompt.UpTo1000(m.GetDead())}
		},
		None: "no mailbox holds messages",
	}
}

package main

import (
	"strconv"

	"github.com/spf13/cobra"

	"brokerd/cmd/brokerctl/table"
	"brokerd/internal/jsonform"
	"brokerd/internal/prompt"

	pb "brokerd/gen/brokerd/v1"
)

func newMailboxCommand(c *cli) *cobra.Command {
	return group("mailbox", "List the mailboxes that hold messages",
		`Every agent has a mailbox. So has a role or channel whose messages go to one of its
agents.`,
		"  brokerctl mailbox list", newMailboxListCommand(c))
}

func newMailboxListCommand(c *cli) *cobra.Command {
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
			by, err := parseEnum("order", pb.MailboxOrder(0).Descriptor(), order)
			if err != nil {
				return err
			}
			broker, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			mailboxes, err := pages(limit, func(size int32, token string) ([]*pb.MailboxSummary, string, error) {
				page, err := broker.Messages().ListMailboxes(cmd.Context(), &pb.ListMailboxesRequest{
					Order: pb.MailboxOrder(by), PageSize: size, PageToken: token,
				})
				return page.GetMailboxes(), page.GetNextPageToken(), err
			})
			if err != nil {
				return err
			}
			return list(c, cmd, mailboxes, c.mailboxView())
		},
	}
	cmd.Flags().StringVar(&order, "order", "", "oldest (message first), or waiting: the fullest first (default: oldest)")
	orders := jsonform.EnumNames(pb.MailboxOrder(0).Descriptor())
	must(cmd.RegisterFlagCompletionFunc("order", cobra.FixedCompletions(orders, cobra.ShellCompDirectiveNoFileComp)))
	limitVar(cmd.Flags(), &limit, 100)
	return cmd
}

// mailboxView lists mailboxes.
func (c *cli) mailboxView() view[*pb.MailboxSummary] {
	return view[*pb.MailboxSummary]{
		columns: []table.Column{
			{Name: "MAILBOX", Min: 16}, {Name: "OLDEST"}, {Name: "WAITING"}, {Name: "CLAIMED"}, {Name: "DEAD"},
		},
		row: func(m *pb.MailboxSummary) []string {
			return []string{m.GetMailbox(), c.when(m.GetOldestAt()), strconv.FormatInt(m.GetWaiting(), 10),
				strconv.FormatInt(m.GetClaimed(), 10), prompt.UpTo1000(m.GetDead())}
		},
		none: "no mailbox holds messages",
	}
}

package messages

import (
	"strconv"

	"github.com/spf13/cobra"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// NewMailboxCommand returns the commands of brokerctl mailbox.
func NewMailboxCommand(c *command.Caller) *cobra.Command {
	return command.Group("mailbox", "List the mailboxes that hold messages",
		`Every agent has a mailbox. So has a role or channel whose messages go to one of its
agents.`,
		"  brokerctl mailbox list", mailboxList.Command(c))
}

var mailboxList = command.Listing[*pb.ListMailboxesRequest, *pb.ListMailboxesResponse, *pb.MailboxSummary]{
	Page: command.Page{
		Use:   "list",
		Short: "List mailboxes by the age or the number of their messages",
		Long: `List the mailboxes that hold waiting, claimed or dead messages. OLDEST is when the
oldest message that a claim could take was sent. For an agent: the mailboxes that
it takes from.`,
		Example: `  brokerctl mailbox list
  brokerctl mailbox list --order waiting --limit 20`,
	},
	Items: (*pb.ListMailboxesResponse).GetMailboxes,
	Options: []command.Option{
		{Field: "order", Usage: "oldest (message first), or waiting: the fullest first (default: oldest)"},
	},
	View: func(g *command.Given) output.View[*pb.MailboxSummary] { return MailboxView(g.Caller) },
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

package mail

import (
	"strings"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/words"
	pb "brokerd/gen/brokerd/v1"
)

// Taking are the options of a claim that say what to take; claim and work share them.
var Taking = []command.Option{
	{Field: "mailboxes", Name: "mailbox", Comma: true, Kind: words.Mailbox,
		Usage: "only from this mailbox: the agent's name, role:NAME or channel:NAME; repeatable " +
			"(default: all that the agent may take from)"},
	{Name: "role", Type: "string", Kind: words.Role,
		Usage: "only from this role's queue; the same as --mailbox role:NAME"},
	{Field: "types", Name: "type", Comma: true, Kind: words.MessageType, Usage: "only this type; repeatable"},
	{Field: "lowest_priority", Kind: command.Priority, Usage: "only this priority or a higher one"},
}

// AddQueue adds the queue of the option --role to the mailboxes.
func AddQueue(g *command.Given, q *pb.ClaimMessagesRequest) {
	if role := g.Text("role"); role != "" {
		q.Mailboxes = append(q.Mailboxes, "role:"+role)
	}
}

// IsQueue reports whether a mailbox is the queue of a role or channel.
func IsQueue(mailbox string) bool {
	return strings.HasPrefix(mailbox, "role:") || strings.HasPrefix(mailbox, "channel:")
}

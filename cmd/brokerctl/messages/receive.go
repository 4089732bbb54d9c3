package messages

import (
	"context"
	"errors"
	"io"
	"slices"
	"strconv"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// What the options say that inbox and receive share, but set in other requests.
const (
	followUsage  = "keep printing new messages, also after restarts of the broker"
	firstUsage   = "if there are none, wait up to this long for a first message"
	cursorUsage  = "continue where the last read with this name stopped; the broker stores the position"
	autoAckUsage = "finish the messages before printing them: at most one delivery"
)

// Receive is brokerctl receive.
var Receive = command.Procedure[*pb.ReceiveRequest]{
	Page: command.Page{
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
	},
	Options: slices.Concat(filter, look, []command.Option{
		{Field: "after_revision", Name: "after", Kind: command.Revision,
			Usage: "only messages that arrived after this revision"},
		{Field: "cursor", Kind: command.Name, Usage: cursorUsage},
		{Field: "follow", Usage: followUsage},
		{Field: "wait", Usage: firstUsage},
		{Field: "limit", Usage: "end after this many messages"},
		{Field: "auto_ack", Usage: autoAckUsage},
	}),
	Apart: slices.Concat(
		apart("order queues", "after cursor follow auto-ack"), apart("after", "cursor"), apart("follow", "wait"),
	),
	Says: true,
	Run:  receive,
}

func receive(g *command.Given, q *pb.ReceiveRequest) error {
	c, cmd := g.Caller, g.Cmd
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	broker, err := c.Connect(ctx, c.RetryNotice(cmd))
	if err != nil {
		return err
	}
	if err := nameThread(g, q.GetFilter()); err != nil {
		return err
	}
	if q.GetFollow() {
		print, err := output.Follow(&c.Output, cmd, InboxView(c))
		if err != nil {
			return err
		}
		options := client.FollowOptions{
			After: q.GetAfterRevision(), Cursor: q.GetCursor(), Filter: q.GetFilter(), AutoAck: q.GetAutoAck(),
			Limit: q.GetLimit(),
		}
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

	wait := q.GetWait().AsDuration()
	done := c.Progress(wait, "messages")
	stream, err := broker.Messages().Receive(ctx, q)
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
	return problem.Failf(problem.ExitNothing, "nothing %s",
		prompt.Either(wait > 0, "came within "+prompt.Duration(wait), "is there"))
}

// InboxView lists messages in a mailbox.
func InboxView(c *command.Caller) output.View[*pb.InboxItem] {
	return output.View[*pb.InboxItem]{
		Columns: []table.Column{
			{Name: "REV", Typical: 6}, {Name: "PRIO", Rank: 2}, {Name: "SENT", Typical: c.TimeWidth()},
			{Name: "FROM", Min: 10, Typical: 12}, {Name: "TYPE", Rank: 3, Min: 8, Typical: 15},
			{Name: "STATE", Typical: 14, State: true}, {Name: "TEXT", Min: 28, Typical: 40},
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
			c.Voice().Message(w, c.Voice().Received(item))
		},
		None: "no messages",
	}
}

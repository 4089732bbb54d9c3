package messages

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/mail"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/words"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// NewMessageCommand returns the commands of brokerctl message.
func NewMessageCommand(c *command.Caller) *cobra.Command {
	return command.Group("message", "Look up, list, resend and cancel messages", "",
		"  brokerctl message list --since 1h",
		messageGet.Command(c), messageList.Command(c), messageReport.Command(c), messageResend.Command(c),
		messageCancel.Command(c))
}

var messageGet = command.Spec[*pb.GetMessageRequest, *pb.GetMessageResponse]{
	Page: command.Page{
		Use:   "get ID",
		Short: "Show a message and its state for each recipient",
		Long: "Show which recipients received, read, claimed, finished or failed it. " +
			"ID is the message's id, its revision, or a claim id.",
		Example: "  brokerctl message get 4711",
	},
	Args: oneMessage,
	Text: func(g *command.Given, w io.Writer, _ *pb.GetMessageRequest, a *pb.GetMessageResponse) {
		mail.Render(g.Caller, w, prompt.Rendered{Message: a.GetMessage()})
		output.Apart(w)
		PrintDeliveries(g.Caller, w, a.GetDeliveries())
	},
}

// oneMessage is the argument of the commands about a message.
var oneMessage = []command.Arg{{Field: "id", Name: "the message's id", Kind: words.MessageID}}

// PrintDeliveries lists how it stands with every recipient, and below it what went wrong.
func PrintDeliveries(c *command.Caller, w io.Writer, deliveries []*pb.Delivery) {
	if len(deliveries) == 0 {
		prompt.Say(w, "no recipients")
		return
	}
	t := c.NewTable(w, table.Column{Name: "RECIPIENT", Min: 12}, table.Column{Name: "STATE", State: true},
		table.Column{Name: "SINCE"}, table.Column{Name: "BY", Rank: 1, Min: 8},
		table.Column{Name: "FAILED", Rank: 2}, table.Column{Name: "READ", Rank: 3})
	for _, d := range deliveries {
		since := d.GetFinishedAt()
		by := d.GetAckedBy()
		if d.GetState() == pb.DeliveryState_DELIVERY_STATE_CLAIMED {
			since, by = d.GetClaimedAt(), d.GetHolder()
		}
		if d.GetState() == pb.DeliveryState_DELIVERY_STATE_DELAYED {
			since = d.GetDueAt()
		}
		t.Row(d.GetMailbox(), prompt.Enum(d.GetState()), c.When(since), by,
			fmt.Sprintf("%d of %d", d.GetAttempts(), d.GetMaxAttempts()),
			prompt.Either(d.GetReadAt() != nil, c.When(d.GetReadAt()), "no"))
	}
	_ = t.Flush() // to the command's own output: an error cannot be reported anywhere
	for _, d := range deliveries {
		for _, o := range d.GetOffers() {
			fmt.Fprintf(w, "%s, offer %d by %s to session %s, %s: %s\n",
				prompt.Clean(d.GetMailbox()), o.GetNumber(), byWay(o.GetWay()), prompt.OneLine(o.GetHarness()), c.When(o.GetOfferedAt()), prompt.OneLine(offerOutcome(o)))
		}
		for _, a := range d.GetHistory() {
			fmt.Fprintf(w, "%s, attempt %d by %s, %s: %s\n", prompt.Clean(d.GetMailbox()), a.GetNumber(),
				prompt.Clean(a.GetAgent()), c.When(a.GetEndedAt()), prompt.OneLine(a.GetError()))
		}
	}
}

// ways are how an offer reaches a model, in words.
var ways = map[pb.OfferWay]string{
	pb.OfferWay_OFFER_WAY_TURN_END:   "the hook at the end of a turn",
	pb.OfferWay_OFFER_WAY_TOOL_CALL:  "the hook after a tool call",
	pb.OfferWay_OFFER_WAY_PROMPT:     "the hook of the user's prompt",
	pb.OfferWay_OFFER_WAY_WAKE:       "a listener that wakes the session",
	pb.OfferWay_OFFER_WAY_PLUGIN:     "a plugin",
	pb.OfferWay_OFFER_WAY_APP_SERVER: "the coding agent's server",
	pb.OfferWay_OFFER_WAY_TERMINAL:   "its terminal",
	pb.OfferWay_OFFER_WAY_MCP:        "an MCP tool",
	pb.OfferWay_OFFER_WAY_SHELL:      "a command",
	pb.OfferWay_OFFER_WAY_QUEUE:      "the coding agent's queue",
}

func byWay(w pb.OfferWay) string { return cmp.Or(ways[w], "an unknown way") }

// offerOutcome says what became of an offer.
func offerOutcome(o *pb.Offer) string {
	after := func(at *timestamppb.Timestamp) string {
		return " after " + prompt.Rough(at.AsTime().Sub(o.GetOfferedAt().AsTime()))
	}
	switch {
	case o.GetAcceptedAt() != nil:
		return "accepted" + after(o.GetAcceptedAt())
	case o.GetReturnedAt() != nil:
		return "returned" + after(o.GetReturnedAt()) + ", " + o.GetWhy()
	}
	return "no evidence yet that the model received it"
}

var messageList = command.Procedure[*pb.ListMessagesRequest]{
	Page: command.Page{
		Use:   "list",
		Short: "List messages: the inbox, the sent ones, or all of the session",
		Example: `  brokerctl --agent lead message list --box sent --since 1h
  brokerctl message list --mailbox role:builder --limit 20
  brokerctl message list --thread T --newest --limit 20 -o json`,
	},
	Options: append([]command.Option{
		{Field: "box", Usage: "inbox, sent or all (default: inbox for an agent, all with --task or --thread)"},
		{Field: "mailbox", Kind: words.Mailbox,
			Usage: "the unfinished messages of this mailbox, by arrival: an agent's name, role:NAME or channel:NAME " +
				"(operators, observers)"},
		command.Since("from_time", "", "messages sent"),
		command.Until("to_time", "messages sent"),
		{Field: "newest_first", Name: "newest", Usage: "newest first"},
		command.Limit,
	}, filter...),
	Says: true,
	Run: func(g *command.Given, q *pb.ListMessagesRequest) error {
		c, ctx := g.Caller, g.Cmd.Context()
		switch {
		case q.GetMailbox() != "" && q.GetBox() > pb.MessageBox_MESSAGE_BOX_INBOX:
			return problem.Usagef("--mailbox lists an inbox: leave out --box %s", g.Text("box"))
		case q.GetMailbox() != "":
			q.Box = pb.MessageBox_MESSAGE_BOX_INBOX
		case q.GetBox() == 0 && q.GetFilter().GetTaskId()+q.GetFilter().GetThreadId() != "":
			q.Box = pb.MessageBox_MESSAGE_BOX_ALL // the conversation, with its finished messages
		}
		if err := nameThread(g, q.GetFilter()); err != nil {
			return err
		}
		broker, items, err := fetchMessages(g, q)
		if err != nil {
			return err
		}
		if q.Box == pb.MessageBox_MESSAGE_BOX_UNSPECIFIED && broker.Identity().Agent == "" {
			q.Box = pb.MessageBox_MESSAGE_BOX_ALL
		}
		v := MessageView(c, q.GetBox() <= pb.MessageBox_MESSAGE_BOX_INBOX)
		format, _ := c.Format() // an error is that of list
		oneBox := q.GetMailbox() == "" && q.GetBox() != pb.MessageBox_MESSAGE_BOX_ALL
		if len(items) == 0 && format != output.FormatJSON && oneBox {
			if v.None, err = noMessages(ctx, broker, q); err != nil {
				return err
			}
		}
		return output.List(&c.Output, g.Cmd, items, v)
	},
}

// noMessages says that a box has no messages of a request, and whether other boxes have some.
func noMessages(ctx context.Context, broker *client.Client, request *pb.ListMessagesRequest) (string, error) {
	answer, err := broker.Messages().ListMessages(ctx, &pb.ListMessagesRequest{
		Box: pb.MessageBox_MESSAGE_BOX_ALL, Filter: request.GetFilter(), FromTime: request.GetFromTime(),
		ToTime: request.GetToTime(), PageSize: 1,
	})
	if err != nil || len(answer.GetItems()) == 0 {
		return "no messages", err
	}
	where := prompt.Either(request.GetBox() == pb.MessageBox_MESSAGE_BOX_SENT,
		"no messages sent by the agent", "no messages in the inbox")
	return where + "; --box all shows others that match", nil
}

// MessageView lists messages with their receivers, and with the state of the agent's own copies.
func MessageView(c *command.Caller, states bool) output.View[*pb.InboxItem] {
	const state = 6
	v := output.View[*pb.InboxItem]{
		Columns: []table.Column{
			{Name: "REV"}, {Name: "PRIO", Rank: 2}, {Name: "SENT"}, {Name: "FROM", Min: 10}, {Name: "TO", Min: 10},
			{Name: "TYPE", Rank: 3, Min: 8}, {Name: "STATE", Rank: 1, State: true}, {Name: "TEXT", Min: 28}, {Name: "SENT AS", Wide: true},
			{Name: "ID", Wide: true},
		},
		Row: func(item *pb.InboxItem) []string {
			m := item.GetMessage()
			return []string{
				strconv.FormatInt(m.GetRevision(), 10), strconv.Itoa(int(m.GetPriority())), c.When(m.GetCreatedAt()),
				m.GetSender(), prompt.Receiver(m.GetTarget()), m.GetType(), prompt.Standing(item.GetDelivery()),
				prompt.Summary(m), m.GetTypeAsSent(), m.GetId(),
			}
		},
		Prompt: func(w io.Writer, item *pb.InboxItem) { c.Voice().Message(w, c.Voice().Received(item)) },
		None:   "no messages",
	}
	if states {
		return v
	}
	row := v.Row
	v.Columns = slices.Delete(v.Columns, state, state+1)
	v.Row = func(item *pb.InboxItem) []string { return slices.Delete(row(item), state, state+1) }
	return v
}

var messageCancel = command.Spec[*pb.CancelMessageRequest, *pb.CancelMessageResponse]{
	Page: command.Page{
		Use:   "cancel ID",
		Short: "Cancel the copies of a message that no agent has claimed",
		Long: `Cancel the copies of a message that no agent has claimed. Only its sender and
operators may do so. Exit code 5: all copies are claimed or finished.`,
		Example: `  brokerctl --agent lead message cancel 4711 --reason "not needed any more"`,
	},
	Args:    oneMessage,
	Options: []command.Option{{Field: "reason", Usage: "why, for the event log"}, command.RequestID},
	After: func(
		_ *command.Given, _ *client.Client, _ *pb.CancelMessageRequest, a *pb.CancelMessageResponse,
	) (bool, error) {
		if n := a.GetKept(); a.GetCancelled() == 0 && n > 0 {
			return true, problem.Failf(problem.ExitConflict, "cancelled no copy: %s %s claimed or finished",
				prompt.Count(n, "copy"), prompt.Either(n == 1, "is", "are"))
		}
		return false, nil
	},
	Text: func(_ *command.Given, w io.Writer, _ *pb.CancelMessageRequest, a *pb.CancelMessageResponse) {
		copies := prompt.Count(a.GetCancelled(), "copy")
		prompt.Say(w, "withdrew %s; %d claimed or finished and left alone", copies, a.GetKept())
	},
}

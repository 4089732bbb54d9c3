package messages

import (
	"context"
	"io"

	"google.golang.org/protobuf/types/known/timestamppb"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/each"
	"brokerd/cmd/brokerctl/internal/mail"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/words"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/jsonform"
	"brokerd/internal/prompt"
)

var messageReport = command.Spec[*pb.GetMessageRequest, *pb.GetMessageResponse]{
	Page: command.Page{
		Use:   "report ID",
		Short: "Show which recipients received, read and finished a message",
		Long: `Show which recipients received, read and finished a message, in short; message
get shows each of them in full. message resend redelivers it to the recipients
that have not finished it.`,
		Example: `  brokerctl --agent lead message report 4711`,
	},
	Args: oneMessage,
	After: func(
		g *command.Given, _ *client.Client, _ *pb.GetMessageRequest, a *pb.GetMessageResponse,
	) (bool, error) {
		r := newMessageReport(a)
		if format, err := g.Format(); err != nil || format == output.FormatJSON {
			return true, g.ShowValue(g.Cmd, r, "")
		}
		r.print(g.Caller, g.Cmd.OutOrStdout())
		return true, nil
	},
}

// A MessageReport lists what each recipient did with a message: each of them is in one list.
type MessageReport struct {
	ID         string `json:"id"`
	Revision   int64  `json:"revision"`
	Recipients int    `json:"recipients"`

	Finished []receipt `json:"finished"` // acknowledged
	Working  []receipt `json:"working"`  // claimed
	Read     []receipt `json:"read"`     // and not finished
	Offered  []receipt `json:"offered"`  // to a coding agent, and not accepted yet
	Got      []receipt `json:"got"`      // shown to it, not marked as read
	Waiting  []receipt `json:"waiting"`  // neither
	Failed   []receipt `json:"failed"`   // dead, expired or cancelled

	message *pb.Message
}

// receipt is one recipient.
type receipt struct {
	Mailbox string `json:"mailbox"`
	State   string `json:"state"`
	Way     string `json:"way"` // of the offer that was accepted or is open; empty = none
	By      string `json:"by"`  // who finished or holds it
	At      string `json:"at"`  // since when; RFC 3339

	since *timestamppb.Timestamp
	way   pb.OfferWay
}

func newMessageReport(answer *pb.GetMessageResponse) MessageReport {
	m := answer.GetMessage()
	r := MessageReport{
		ID: m.GetId(), Revision: m.GetRevision(), Recipients: len(answer.GetDeliveries()), message: m,
		Finished: []receipt{}, Working: []receipt{}, Read: []receipt{}, Offered: []receipt{},
		Got: []receipt{}, Waiting: []receipt{}, Failed: []receipt{},
	}
	for _, d := range answer.GetDeliveries() {
		entry := receipt{Mailbox: d.GetMailbox(), State: prompt.Enum(d.GetState())}
		add := func(group *[]receipt, by string, since *timestamppb.Timestamp) {
			entry.By, entry.since = by, since
			if since != nil {
				entry.At = jsonform.Time(since)
			}
			*group = append(*group, entry)
		}
		open := false
		for _, o := range d.GetOffers() {
			if o.GetReturnedAt() == nil {
				entry.Way, entry.way, open = prompt.Enum(o.GetWay()), o.GetWay(), o.GetAcceptedAt() == nil
			}
		}
		switch {
		case d.GetState() == pb.DeliveryState_DELIVERY_STATE_ACKED:
			add(&r.Finished, d.GetAckedBy(), d.GetFinishedAt())
		case d.GetState() == pb.DeliveryState_DELIVERY_STATE_CLAIMED:
			add(&r.Working, d.GetHolder(), d.GetClaimedAt())
		case d.GetFinishedAt() != nil:
			add(&r.Failed, "", d.GetFinishedAt())
		case d.GetReadAt() != nil:
			add(&r.Read, "", d.GetReadAt())
		case open:
			add(&r.Offered, "", d.GetOffers()[len(d.GetOffers())-1].GetOfferedAt())
		case d.GetDeliveredAt() != nil:
			add(&r.Got, "", d.GetDeliveredAt())
		default:
			add(&r.Waiting, "", nil)
		}
	}
	return r
}

// print writes one line a list, and what could be done.
func (r MessageReport) print(c *command.Caller, w io.Writer) {
	m := r.message
	prompt.Say(w, "message %d, %s from %s to %s, sent %s: %d of %s finished it", r.Revision, prompt.TypeOf(m, prompt.OneLine), prompt.OneLine(mail.Sender(m)),
		prompt.OneLine(prompt.Receiver(m.GetTarget())), c.When(m.GetCreatedAt()), len(r.Finished), prompt.Count(r.Recipients, "recipient"))
	line := func(label string, group []receipt) {
		var who []string
		for _, entry := range group {
			s := entry.Mailbox
			s += prompt.Either(entry.State != "pending" && entry.State != "acked" && entry.State != "claimed", " "+entry.State, "")
			s += prompt.Either(entry.By != "" && entry.By != entry.Mailbox, " by "+entry.By, "")
			s += prompt.Either(entry.way != 0 && entry.State == "pending", " by "+byWay(entry.way), "")
			who = append(who, s+prompt.Either(entry.since != nil, " ("+c.When(entry.since)+")", ""))
		}
		if len(who) > 0 {
			prompt.Say(w, "%s: %s", label, prompt.OneLine(prompt.Names(who, len(who))))
		}
	}
	line("finished", r.Finished)
	line("working on it", r.Working)
	line("read, not finished", r.Read)
	line("offered, not accepted yet", r.Offered)
	line("got, not read", r.Got)
	line("not seen", r.Waiting)
	line("given up", r.Failed)
	if len(r.Read)+len(r.Offered)+len(r.Got)+len(r.Waiting) > 0 {
		prompt.Say(w, "to redeliver it to them: %s message resend %d", c.Global.Again(), r.Revision)
	}
}

var messageResend = command.Spec[*pb.ResendMessageRequest, *pb.ResendMessageResponse]{
	Page: command.Page{
		Use:   "resend ID [RECIPIENT...]",
		Short: "Redeliver a message to the recipients that have not finished it",
		Long: `Redeliver a message, as unread, to the recipients that have neither finished nor
claimed it; with RECIPIENTs (an agent's name, role:NAME or channel:NAME), only
to these. Only its sender and operators may do so.`,
		Example: `  brokerctl --agent lead message resend 4711
  brokerctl --agent lead message resend 4711 builder-2`,
	},
	Args: []command.Arg{
		{Field: "id", Name: "the message's id", Kind: words.MessageID},
		{Field: "mailboxes", After: func(before []string) command.Kind {
			return command.Kind{Words: recipientsOf(before[0])}
		}},
	},
	Options: []command.Option{command.RequestID},
	Text: func(_ *command.Given, w io.Writer, _ *pb.ResendMessageRequest, a *pb.ResendMessageResponse) {
		prompt.Say(w, "redelivered it to %s", prompt.Count(a.GetResent(), "recipient"))
	},
}

// recipientsOf completes the recipients of a message.
func recipientsOf(id string) command.WordList {
	return func(ctx context.Context, broker *client.Client) ([]string, error) {
		answer, err := broker.Messages().GetMessage(ctx, &pb.GetMessageRequest{Id: id})
		return each.Of(answer.GetDeliveries(), (*pb.Delivery).GetMailbox), err
	}
}

package top

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"brokerd/client"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// queues shows the mailboxes, the one with the oldest message first. The frames have the 100 fullest;
// the loaded data adds the oldest.
var queues = view{
	title: "Queues", short: "Queues", question: "Where does work get old?", none: "no mailbox holds messages",
	columns: []table.Column{
		{Name: "MAILBOX", Min: 16}, {Name: "OLDEST"}, {Name: "WAITING"}, {Name: "CLAIMED"}, {Name: "DEAD"},
	},
	load: func(ctx context.Context, broker *client.Client) (any, error) {
		page, err := broker.Messages().ListMailboxes(ctx, &pb.ListMailboxesRequest{PageSize: 200})
		return page.GetMailboxes(), err
	},
	rows: func(s snapshot) []row {
		boxes := map[string]*pb.OverviewMailbox{}
		loaded, _ := s.data.([]*pb.MailboxSummary)
		for _, m := range loaded {
			boxes[m.GetMailbox()] = &pb.OverviewMailbox{
				Mailbox: m.GetMailbox(), Waiting: m.GetWaiting(), Claimed: m.GetClaimed(), Dead: m.GetDead(),
				Oldest: m.GetOldestAt(),
			}
		}
		if len(s.frame.GetMailboxes()) < mostBoxes { // then they are all
			clear(boxes)
		}
		for _, m := range s.frame.GetMailboxes() {
			boxes[m.GetMailbox()] = m
		}
		var rows []row
		for name, m := range boxes {
			rows = append(rows, row{key: name, item: m, cells: []cell{
				text(name), s.ago(m.GetOldest()), number(m.GetWaiting()), number(m.GetClaimed()),
				upTo(m.GetDead(), 1000),
			}})
		}
		slices.SortFunc(rows, func(a, b row) int {
			return cmp.Or(cmp.Compare(a.cells[1].by, b.cells[1].by), cmp.Compare(b.cells[2].by, a.cells[2].by),
				cmp.Compare(a.key, b.key))
		})
		return rows
	},
	open: func(ctx context.Context, o opening, r row) ([]section, error) {
		why, err := o.explained(ctx, explainMailbox(r.key))
		if err != nil {
			return nil, err
		}
		sections := append(why, section{title: "mailbox", message: r.item})
		waiting, err := o.Messages().ListMessages(ctx, &pb.ListMessagesRequest{
			Box: pb.MessageBox_MESSAGE_BOX_INBOX, Mailbox: r.key, PageSize: mostShown,
		})
		if err != nil {
			return nil, err
		}
		if len(waiting.GetItems()) > 0 {
			most := prompt.Either(waiting.GetNextPageToken() != "", fmt.Sprintf("%d oldest ", len(waiting.GetItems())), "")
			sections = append(sections, section{title: "its " + most + "unfinished messages, the oldest first"})
		}
		for _, item := range waiting.GetItems() {
			sections = append(sections, messageSection(item.GetMessage(), enum(item.GetDelivery().GetState()).text))
		}
		return sections, nil
	},
	actions: func(rows []row, _ func(*pb.Call) string) []action {
		return one(rows, func(m *pb.OverviewMailbox) []action {
			name := m.GetMailbox()
			var actions []action
			if m.GetDead() > 0 {
				actions = append(actions, redriveAll(field{name: "mailbox", value: name}))
			}
			return append(actions, action{
				label: "move messages", effect: "Move the waiting messages of " + name + " to another mailbox",
				fields: []field{{name: "to", required: true}, {name: "reason"}},
				run: func(ctx context.Context, broker *client.Client, v values) (string, error) {
					moved, err := broker.Admin().MoveMessages(ctx,
						&pb.MoveMessagesRequest{From: name, To: v["to"], Reason: v["reason"]})
					return fmt.Sprintf("moved %s, %d left", prompt.Count(int64(moved.GetMoved()), "message"), moved.GetLeft()), err
				},
			}, action{
				label: "cancel a message", effect: "Withdraw a message from the mailboxes where no agent has claimed it",
				fields: []field{{name: "message", required: true}, {name: "reason"}},
				run: func(ctx context.Context, broker *client.Client, v values) (string, error) {
					c, err := broker.Messages().CancelMessage(ctx,
						&pb.CancelMessageRequest{Id: v["message"], Reason: v["reason"]})
					return fmt.Sprintf("cancelled %s, kept %d", prompt.Count(int64(c.GetCancelled()), "delivery"), c.GetKept()), err
				},
			})
		})
	},
}

const (
	mostBoxes = 100 // mailboxes of a frame
	mostShown = 200 // messages in the details of a mailbox
)

// explainMailbox asks about the agents that take from a mailbox.
func explainMailbox(name string) *pb.ExplainRequest {
	if role, ok := strings.CutPrefix(name, "role:"); ok {
		return &pb.ExplainRequest{Subject: &pb.ExplainRequest_Role{Role: role}}
	}
	return &pb.ExplainRequest{Subject: &pb.ExplainRequest_Agent{Agent: name}}
}

// messageSection shows a message of a list. state is that of its delivery, empty if there may be several.
func messageSection(m *pb.Message, state string) section {
	if state != "" {
		state = " (" + state + ")"
	}
	return section{
		title: fmt.Sprintf("%d %s%s from %s: %s", m.GetRevision(), m.GetType(), state, m.GetSender(), m.GetSubject()),
		at:    m.GetCreatedAt(), text: m.GetBody(),
	}
}

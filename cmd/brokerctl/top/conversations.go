package top

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"brokerd/client"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// conversations shows the threads of messages, the one with the newest message first.
var conversations = view{
	title: "Conversations", short: "Threads", question: "Who waits for an answer?", none: "there are no messages",
	columns: []table.Column{
		{Name: "THREAD", Min: 8}, {Name: "LAST"}, {Name: "MESSAGES", Rank: 3}, {Name: "OPEN", Rank: 1, Min: 14},
		{Name: "BETWEEN", Rank: 2, Min: 14}, {Name: "LAST MESSAGE", Min: 20},
	},
	load: func(ctx context.Context, broker *client.Client) (any, error) {
		page, err := broker.Messages().ListThreads(ctx, &pb.ListThreadsRequest{PageSize: 200})
		return page.GetThreads(), err
	},
	rows: func(s snapshot) []row {
		threads, _ := s.data.([]*pb.ThreadSummary)
		var rows []row
		for _, t := range threads {
			id, first, last := t.GetThreadId(), t.GetFirstMessage(), t.GetLastMessage()
			if id == first.GetId() {
				id = strconv.FormatInt(first.GetRevision(), 10)
			}
			open := text("")
			open.by = never
			if asked := t.GetOpenQuestions(); len(asked) > 0 {
				open = text(asked[0].GetSender() + " asks")
				if d := asked[0].GetDeadline(); d != nil {
					open.by, open.text = s.ago(d).by, open.text+", due "+s.ago(d).text
				}
				if asked[0].GetOverdue() {
					open.text = "overdue: " + open.text
				}
			}
			rows = append(rows, row{key: t.GetThreadId(), item: t, cells: []cell{
				text(id), s.ago(t.GetLastAt()), upTo(t.GetMessages(), 100), open,
				text(strings.Join(t.GetParticipants(), ", ")),
				text(last.GetSender() + ": " + last.GetSubject()),
			}})
		}
		return rows
	},
	open: func(ctx context.Context, o opening, r row) ([]section, error) {
		page, err := o.Messages().ListMessages(ctx, &pb.ListMessagesRequest{
			Box: pb.MessageBox_MESSAGE_BOX_ALL, Filter: &pb.MessageFilter{ThreadId: r.key}, PageSize: 200,
			NewestFirst: true,
		})
		if err != nil {
			return nil, err
		}
		sections := []section{{message: r.item}}
		for _, item := range page.GetItems() {
			sections = append(sections, messageSection(item.GetMessage(), ""))
		}
		return sections, nil
	},
	actions: func(rows []row, _ func(*pb.Call) string) []action {
		return one(rows, func(t *pb.ThreadSummary) []action {
			last := t.GetLastMessage()
			answered := fmt.Sprintf("message %d of %s", last.GetRevision(), last.GetSender())
			id := last.GetId()
			if asked := t.GetOpenQuestions(); len(asked) > 0 {
				answered = fmt.Sprintf("the open question %d of %s", asked[0].GetRevision(), asked[0].GetSender())
				id = asked[0].GetId()
			}
			return []action{
				{
					label: "reply", effect: "Reply to " + answered, fields: []field{{name: "text", required: true}},
					run: func(ctx context.Context, broker *client.Client, v values) (string, error) {
						r, err := broker.Messages().Reply(ctx,
							&pb.ReplyRequest{Id: id, Message: &pb.Message{Body: v["text"]}})
						return fmt.Sprintf("replied as %d", r.GetResult().GetRevision()), err
					},
				},
				{
					label: "send", effect: "Send a message of this conversation to an agent",
					fields: []field{{name: "to", value: last.GetSender(), required: true},
						{name: "subject", required: true}, {name: "text"}},
					run: func(ctx context.Context, broker *client.Client, v values) (string, error) {
						return send(ctx, broker, &pb.Message{
							Target: agent(v["to"]), ThreadId: t.GetThreadId(), Subject: v["subject"], Body: v["text"],
						})
					},
				},
				{
					label: "resend", effect: "Redeliver " + answered + " to the recipients that have not finished it",
					run: func(ctx context.Context, broker *client.Client, _ values) (string, error) {
						r, err := broker.Messages().ResendMessage(ctx, &pb.ResendMessageRequest{Id: id})
						return "redelivered to " + prompt.Count(int64(r.GetResent()), "mailbox"), err
					},
				},
				{
					label: "resolve", effect: "Note the outcome, and settle the open questions",
					fields: []field{{name: "outcome", required: true}},
					run: func(ctx context.Context, broker *client.Client, v values) (string, error) {
						r, err := broker.Messages().ResolveThread(ctx,
							&pb.ResolveThreadRequest{ThreadId: t.GetThreadId(), Outcome: v["outcome"]})
						return "resolved; settled " + prompt.Count(int64(r.GetSettled()), "open question"), err
					},
				},
			}
		})
	},
}

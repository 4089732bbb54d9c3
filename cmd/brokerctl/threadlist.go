package main

import (
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
)

func newThreadListCommand(c *cli) *cobra.Command {
	when := timeRange{since: "1d"}
	var limit int
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List conversations by their newest message",
		Long: `List conversations, the one with the newest message first. The command reads the
session's messages, or for an agent those that it sent or received, back to
--since.`,
		Example: `  brokerctl thread list
  brokerctl --agent lead thread list --since 7d --limit 20`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			request := &pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_ALL, NewestFirst: true}
			var err error
			if request.FromTime, request.ToTime, err = when.parse(c); err != nil {
				return err
			}
			broker, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			items, err := pages(0, func(size int32, token string) ([]*pb.InboxItem, string, error) {
				request.PageSize, request.PageToken = size, token
				page, err := broker.Messages().ListMessages(cmd.Context(), request)
				return page.GetItems(), page.GetNextPageToken(), err
			})
			if err != nil {
				return err
			}
			threads := threadsOf(items)
			if limit > 0 {
				threads = threads[:min(limit, len(threads))]
			}
			return list(c, cmd, threads, c.threadView(items))
		},
	}
	when.AddFlags(cmd.Flags(), "messages sent")
	limitVar(cmd.Flags(), &limit, 100)
	return cmd
}

// threadsOf groups messages, which are sorted from the newest to the oldest, by their conversation.
func threadsOf(items []*pb.InboxItem) []*pb.ThreadSummary {
	var threads []*pb.ThreadSummary
	byID := map[string]*pb.ThreadSummary{}
	for _, item := range items {
		m := item.GetMessage()
		t := byID[m.GetThreadId()]
		if t == nil {
			t = &pb.ThreadSummary{ThreadId: m.GetThreadId(), LastAt: m.GetCreatedAt()}
			byID[m.GetThreadId()] = t
			threads = append(threads, t)
		}
		t.Messages++
		t.FirstAt = m.GetCreatedAt()
		for _, name := range []string{m.GetSender(), receiver(m.GetTarget())} {
			if !slices.Contains(t.Participants, name) {
				t.Participants = append(t.Participants, name)
			}
		}
	}
	return threads
}

// threadView lists conversations. A conversation without a name of its own is shown by the revision
// of its first message, and each with the subject of that message.
func (c *cli) threadView(items []*pb.InboxItem) view[*pb.ThreadSummary] {
	first := map[string]*pb.Message{}
	for _, item := range items {
		first[item.GetMessage().GetThreadId()] = item.GetMessage()
	}
	return view[*pb.ThreadSummary]{
		columns: []table.Column{
			{Name: "THREAD", Min: 12}, {Name: "LAST"}, {Name: "MESSAGES", Rank: 1},
			{Name: "BETWEEN", Min: 16}, {Name: "TEXT", Min: 28},
		},
		row: func(t *pb.ThreadSummary) []string {
			m := first[t.GetThreadId()]
			id := t.GetThreadId()
			if isID(id) {
				id = strconv.FormatInt(m.GetRevision(), 10)
			}
			return []string{id, c.when(t.GetLastAt()), strconv.FormatInt(t.GetMessages(), 10),
				names(t.GetParticipants(), len(t.GetParticipants())), summary(m)}
		},
		none: "no conversations in this time",
	}
}

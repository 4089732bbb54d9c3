package messages

import (
	"strconv"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

var threadList = command.Listing[*pb.ListThreadsRequest, *pb.ListThreadsResponse, *pb.ThreadSummary]{
	Page: command.Page{
		Use:   "list",
		Short: "List conversations by their newest message",
		Long: `List the session's conversations, the one with the newest message first. TEXT is
the first message, LAST MESSAGE the newest one, and OPEN the oldest question
without an answer.`,
		Example: `  brokerctl thread list
  brokerctl thread list --open --since 7d`,
	},
	Items: (*pb.ListThreadsResponse).GetThreads,
	Options: []command.Option{
		{Field: "open", Usage: "only conversations with an open question"},
		command.Since("from_time", "1d", "conversations with their newest message"),
		command.Until("to_time", "conversations with their newest message"),
	},
	Newest: true,
	View:   func(g *command.Given) output.View[*pb.ThreadSummary] { return ThreadView(g.Caller) },
}

// ThreadView lists conversations. A conversation that is named after its first message is shown by
// the revision of that message.
func ThreadView(c *command.Caller) output.View[*pb.ThreadSummary] {
	return output.View[*pb.ThreadSummary]{
		Columns: []table.Column{
			{Name: "THREAD", Min: 12}, {Name: "LAST"}, {Name: "MESSAGES", Rank: 2}, {Name: "BETWEEN", Min: 16},
			{Name: "TEXT", Min: 20}, {Name: "LAST MESSAGE", Rank: 3, Min: 16}, {Name: "OPEN", Rank: 1, Min: 12},
		},
		Row: func(t *pb.ThreadSummary) []string {
			first, last := t.GetFirstMessage(), t.GetLastMessage()
			id, newest, open := t.GetThreadId(), "", ""
			if id == first.GetId() {
				id = strconv.FormatInt(first.GetRevision(), 10)
			}
			if last.GetRevision() != first.GetRevision() {
				newest = last.GetSender() + ": " + last.GetSubject()
			}
			if q := t.GetOpenQuestions(); len(q) > 0 {
				open = c.Voice().Question(q[0], true)
			}
			messages := strconv.FormatInt(t.GetMessages(), 10) + prompt.Either(t.GetMessages() >= 100, "+", "")
			return []string{id, c.When(t.GetLastAt()), messages, prompt.Names(t.GetParticipants(), len(t.GetParticipants())),
				first.GetSubject(), newest, open}
		},
		None: "no such conversations",
	}
}

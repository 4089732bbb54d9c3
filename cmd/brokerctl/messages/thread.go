package messages

import (
	"context"
	"io"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/mail"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/words"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// NewThreadCommand returns the commands of brokerctl thread.
func NewThreadCommand(c *command.Caller) *cobra.Command {
	return command.Group("thread", "List and show conversations, and note their outcome", `A thread is a conversation: a message, its replies, and all messages that were
sent with the same --thread. ID is the thread's, or the id, revision or claim id
of one of its messages.`, "  brokerctl thread get 4711",
		threadGet.Command(c), threadList.Command(c), threadResolve.Command(c))
}

var threadGet = command.Spec[*pb.ListMessagesRequest, *pb.ListMessagesResponse]{
	Page: command.Page{
		Use:   "get ID",
		Short: "Show a conversation: messages, participants, open questions",
		Example: `  brokerctl thread get 4711
  brokerctl thread get login-design -o json`,
	},
	Call: func(
		g *command.Given, broker *client.Client, q *pb.ListMessagesRequest,
	) (*pb.ListMessagesResponse, error) {
		answer := &pb.ListMessagesResponse{}
		var err error
		answer.Items, err = command.UpToLimit(g, false, func(size int32, token string) ([]*pb.InboxItem, string, error) {
			q.Box, q.PageSize, q.PageToken = pb.MessageBox_MESSAGE_BOX_ALL, size, token
			page, err := broker.Messages().ListMessages(g.Cmd.Context(), q)
			if s := page.GetThread(); s != nil {
				answer.Thread = s
			}
			answer.Revision = page.GetRevision()
			return page.GetItems(), page.GetNextPageToken(), err
		})
		if err == nil && len(answer.GetItems()) == 0 {
			err = problem.Failf(problem.ExitNotFound, "no message belongs to thread %s", q.GetFilter().GetThreadId())
		}
		return answer, err
	},
	Args:    []command.Arg{{Field: "filter.thread_id", Name: "the thread's id", Kind: thread}},
	Options: []command.Option{command.Limit},
	Text: func(g *command.Given, w io.Writer, _ *pb.ListMessagesRequest, a *pb.ListMessagesResponse) {
		for _, item := range a.GetItems() {
			mail.Render(g.Caller, w, prompt.Rendered{Message: item.GetMessage()})
			output.Apart(w)
		}
		g.Voice().Thread(w, a.GetThread(), g.ShortID(a.GetThread().GetThreadId(), a.GetRevision()))
	},
}

var threadResolve = command.Spec[*pb.ResolveThreadRequest, *pb.ResolveThreadResponse]{
	Page: command.Page{
		Use:   "resolve ID OUTCOME...",
		Short: "Note the outcome of a conversation and settle its open questions",
		Long: `Note the outcome of a conversation and settle its open questions. Operators may
do so, and agents that sent or received one of its messages. A second call
replaces the outcome.`,
		Example: `  brokerctl --agent lead thread resolve 4711 "We use the branch login"`,
	},
	Args: []command.Arg{
		{Field: "thread_id", Name: "the thread's id", Kind: thread},
		{Field: "outcome", Name: "the outcome", Text: true, Kind: command.Joined},
	},
	Options: []command.Option{command.RequestID},
	Text: func(g *command.Given, w io.Writer, _ *pb.ResolveThreadRequest, a *pb.ResolveThreadResponse) {
		settled := prompt.Count(a.GetSettled(), "open question")
		prompt.Say(w, "resolved thread %s; %s settled", prompt.Clean(g.Args[0]), settled)
	},
}

// thread is a thread that is named by itself or by one of its messages.
var thread = command.Kind{
	Words: words.ThreadWords,
	Read: func(g *command.Given, to command.Target, texts []string) error {
		id, err := threadOf(g.Caller, g.Cmd.Context(), texts[0])
		to.Set(protoreflect.ValueOfString(id))
		return err
	},
}

// threadOf connects, and returns the thread that is meant: that of the message, if id is a revision or a claim id. Another
// id may be a thread's own name.
func threadOf(c *command.Caller, ctx context.Context, id string) (string, error) {
	if id == "" {
		return "", nil
	}
	broker, err := c.Connect(ctx)
	if err != nil || !words.IsID(id) {
		return id, err
	}
	answer, err := broker.Messages().GetMessage(ctx, &pb.GetMessageRequest{Id: id})
	if status.Code(err) == codes.NotFound {
		return id, nil // a thread may be named as it likes
	}
	return answer.GetMessage().GetThreadId(), err
}

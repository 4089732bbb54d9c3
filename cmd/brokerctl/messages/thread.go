package messages

import (
	"context"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

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
		newThreadGetCommand(c), threadList.Command(c), newThreadResolveCommand(c))
}

func newThreadGetCommand(c *command.Caller) *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:   "get ID",
		Short: "Show a conversation: messages, participants, open questions",
		Example: `  brokerctl thread get 4711
  brokerctl thread get login-design -o json`,
		Args:              command.Exactly("the thread's id"),
		ValidArgsFunction: c.CompleteArgs(false, words.ThreadWords),
		RunE: func(cmd *cobra.Command, args []string) error {
			thread, err := threadOf(c, cmd.Context(), args[0])
			if err != nil {
				return err
			}
			answer := &pb.ListMessagesResponse{}
			answer.Items, err = command.Pages(limit, func(size int32, token string) ([]*pb.InboxItem, string, error) {
				page, err := c.Client.Messages().ListMessages(cmd.Context(), &pb.ListMessagesRequest{
					Box: pb.MessageBox_MESSAGE_BOX_ALL, Filter: &pb.MessageFilter{ThreadId: thread}, PageSize: size, PageToken: token,
				})
				if s := page.GetThread(); s != nil {
					answer.Thread = s
				}
				answer.Revision = page.GetRevision()
				return page.GetItems(), page.GetNextPageToken(), err
			})
			if err != nil {
				return err
			}
			if len(answer.GetItems()) == 0 {
				return problem.Failf(problem.ExitNotFound, "no message belongs to thread %s", thread)
			}
			return c.Show(cmd, answer, func(w io.Writer) {
				for _, item := range answer.GetItems() {
					mail.Render(c, w, prompt.Rendered{Message: item.GetMessage()})
					output.Apart(w)
				}
				c.Voice().Thread(w, answer.GetThread(), c.ShortID(answer.GetThread().GetThreadId(), answer.GetRevision()))
			})
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 100, "show at most this many messages; 0: all")
	return cmd
}

func newThreadResolveCommand(c *command.Caller) *cobra.Command {
	var requestID string
	cmd := &cobra.Command{
		Use:   "resolve ID OUTCOME...",
		Short: "Note the outcome of a conversation and settle its open questions",
		Long: `Note the outcome of a conversation and settle its open questions. Operators may
do so, and agents that sent or received one of its messages. A second call
replaces the outcome.`,
		Example: `  brokerctl --agent lead thread resolve 4711 "We use the branch login"`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 2 {
				return problem.Usagef("%s is missing", []string{"the thread's id", "the outcome"}[len(args)])
			}
			return nil
		},
		ValidArgsFunction: c.CompleteArgs(false, words.ThreadWords),
		RunE: func(cmd *cobra.Command, args []string) error {
			thread, err := threadOf(c, cmd.Context(), args[0])
			if err != nil {
				return err
			}
			answer, err := c.Client.Messages().ResolveThread(cmd.Context(), &pb.ResolveThreadRequest{
				RequestId: requestID, ThreadId: thread, Outcome: strings.Join(args[1:], " "),
			})
			if err != nil {
				return err
			}
			return c.Show(cmd, answer, func(w io.Writer) {
				prompt.Say(w, "resolved thread %s; %s settled", prompt.Clean(args[0]), prompt.Count(answer.GetSettled(), "open question"))
			})
		},
	}
	command.AddRequestID(cmd, &requestID)
	return cmd
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

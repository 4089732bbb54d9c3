package messages

import (
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/mail"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/words"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// NewAskCommand returns the command brokerctl ask.
func NewAskCommand(c *command.Caller) *cobra.Command {
	o := &sendOptions{}
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "ask RECEIVER TEXT...",
		Short: "Send a question and wait for the answer",
		Long: `Send a question, wait for the answer and print it. Only this command receives the
answer; an answer that comes later goes to the agent's mailbox.

Exit code 4: no answer came within --wait, or none can come any more, with the reason:
the question is a dead letter, has expired, was cancelled, or was acknowledged without
an answer. Exit code 3, at once: no registered
agent could answer.

ask also takes the flags of brokerctl send.`,
		Annotations: map[string]string{command.FlagsOf: "send"},
		Example: `  brokerctl --agent builder-1 ask lead "Which branch do I use?"
  brokerctl --agent builder-1 ask role:reviewer "Good to merge?" --wait 90s`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 2 {
				return problem.Usagef("%s is missing", []string{"the receiver", "the question"}[len(args)])
			}
			return nil
		},
		ValidArgsFunction: c.CompleteArgs(false, words.ReceiverNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := o.message(c, cmd, []string{args[0], strings.Join(args[1:], " ")})
			if err != nil {
				return err
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			done := c.Progress(wait, "the answer")
			answer, err := broker.Messages().Ask(cmd.Context(), &pb.AskRequest{RequestId: o.requestID, Message: m, Wait: durationpb.New(wait)})
			done()
			if err != nil {
				return err
			}
			c.Warn(cmd, answer.GetWarnings())
			if answer.GetNoReply() != nil {
				return unanswered(c, answer)
			}
			if answer.GetReply() == nil {
				return problem.Failf(problem.ExitNothing, "%s", c.Voice().NoReplyYet(answer, m.GetThreadId(), prompt.Duration(wait)))
			}
			return c.Show(cmd, answer, func(w io.Writer) { mail.Render(c, w, prompt.Rendered{Message: answer.GetReply()}) })
		},
	}
	o.AddFlags(cmd.Flags())
	o.complete(c, cmd)
	command.DurationVar(cmd.Flags(), &wait, "wait", 30*time.Second, "how long to wait for the answer, 1ms to 1h")
	return cmd
}

// unanswered returns the error of a question to which no answer can come.
func unanswered(c *command.Caller, answer *pb.AskResponse) error {
	none, text := answer.GetNoReply(), c.Voice().NoReply(answer)
	if none.GetError() != "" {
		return c.FailQuoting(problem.ExitNothing, text, none.GetError())
	}
	return problem.Failf(problem.ExitNothing, "%s", text)
}

// replyOptions are the options of reply.
type replyOptions struct {
	command.ContentOptions
	subject, kind  string
	labels         []string
	ack            bool
	requestID      string
	payloadVersion string
}

// NewReplyCommand returns the command brokerctl reply.
func NewReplyCommand(c *command.Caller) *cobra.Command {
	o := &replyOptions{}
	cmd := &cobra.Command{
		Use:   "reply [ID] TEXT...",
		Short: "Answer a message",
		Long: `Answer a message. TEXT becomes the body. The broker fills in receiver, thread,
correlation, task and, without --subject, the subject: "Re: " and that of the
message. With --ack, the broker also finishes the claim; it does both or neither.

ID is a claim id, a message's id or its revision; without it, the agent's only
open claim is meant. If the text begins with a number, quote the
whole text: otherwise the number is taken for the ID.`,
		Example: `  brokerctl --agent lead reply 4711 "Use the branch login"
  brokerctl --agent builder-1 reply --ack "Done, see the branch login"
  brokerctl --agent builder-1 reply 4711.1 --ack --payload '{"ok":true}'`,
		ValidArgsFunction: c.CompleteArgs(false, words.ClaimWords),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(c, cmd, args) },
	}
	f := cmd.Flags()
	o.ContentOptions.AddFlags(f)
	o.AddPriority(f)
	f.BoolVar(&o.ack, "ack", false, "also finish the claim of the answered message")
	f.StringVar(&o.subject, "subject", "", "one line, beside the text (default: Re: and the subject of the answered message)")
	f.StringVar(&o.kind, "type", "", "type of the message (default: message)")
	f.StringVar(&o.payloadVersion, "payload-version", "", "version of the payload's format, MAJOR.MINOR (default: 1.0)")
	f.StringArrayVar(&o.labels, "label", nil, "a label; repeatable")
	command.AddRequestID(cmd, &o.requestID)
	return cmd
}

func (o *replyOptions) run(c *command.Caller, cmd *cobra.Command, args []string) error {
	request, err := o.request(c, cmd, args)
	if err != nil {
		return err
	}
	broker, err := c.Connect(cmd.Context())
	if err != nil {
		return err
	}
	answer, err := broker.Messages().Reply(cmd.Context(), request)
	if err != nil {
		return err
	}
	c.Warn(cmd, answer.GetResult().GetWarnings())
	return c.Show(cmd, answer, func(w io.Writer) {
		r := answer.GetResult()
		if answer.GetAwaited() {
			prompt.Say(w, "replied with %d; the waiting call of the asker received it", r.GetRevision())
		} else {
			c.Voice().Sent(w, r)
		}
		if o.ack {
			prompt.Say(w, "acked the message that was answered")
		}
	})
}

// request builds what the command line describes.
func (o *replyOptions) request(c *command.Caller, cmd *cobra.Command, args []string) (*pb.ReplyRequest, error) {
	id, words := o.split(args)
	if len(words) > 0 && o.Body != "" {
		return nil, problem.Usagef("the text is given twice, as argument and with --body; a line beside it goes to --subject")
	}
	if len(words) == 0 && o.Body == "" && o.Payload == "" && o.subject == "" {
		return nil, problem.Usagef("the answer is missing: give a text, --body or --payload")
	}
	// The rest is what send makes of the same options.
	s := sendOptions{ContentOptions: o.ContentOptions, kind: o.kind, payloadVersion: o.payloadVersion, labels: o.labels}
	m, err := s.content(c, cmd)
	if err != nil {
		return nil, err
	}
	m.Subject = o.subject
	if len(words) > 0 {
		m.Body = strings.Join(words, " ")
	}
	return &pb.ReplyRequest{RequestId: o.requestID, Id: id, Message: m, Ack: o.ack}, nil
}

// split tells the id from the text.
func (o *replyOptions) split(args []string) (id string, text []string) {
	if len(args) > 0 && words.IsID(args[0]) && (len(args) > 1 || o.Body != "" || o.Payload != "" || o.subject != "") {
		return args[0], args[1:]
	}
	return "", args
}

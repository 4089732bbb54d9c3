package messages

import (
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/mail"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/words"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/calls"
	"brokerd/internal/prompt"
)

// Ask is brokerctl ask.
var Ask = command.Procedure[*pb.AskRequest]{
	Page: command.Page{
		Use:   "ask RECEIVER TEXT...",
		Short: "Send a question and wait for the answer",
		Long: `Send a question, wait for the answer and print it. Only this command receives the
answer; an answer that comes later goes to the agent's mailbox.

Exit code 4: no answer came within --wait, or none can come any more, with the reason:
the question is a dead letter, has expired, was cancelled, or was acknowledged without
an answer. Exit code 3, at once: no registered
agent could answer.

ask also takes the flags of brokerctl send.`,
		Example: `  brokerctl --agent builder-1 ask lead "Which branch do I use?"
  brokerctl --agent builder-1 ask role:reviewer "Good to merge?" --wait 90s`,
	},
	FlagsOf: "send",
	Args: []command.Arg{
		{Field: "message.target", Name: "the receiver", Kind: receiver}, {Name: "the question", Text: true},
	},
	Options: append(sendOptions("message"), command.Option{
		Field: "wait", Value: "30s", Zero: true, Usage: "how long to wait for the answer, 1ms to 1h",
	}),
	Apart: sendApart,
	Run: func(g *command.Given, q *pb.AskRequest) error {
		c, cmd := g.Caller, g.Cmd
		if _, err := complete(g, q.GetMessage(), g.Args[1:]); err != nil {
			return err
		}
		broker, err := c.Connect(cmd.Context())
		if err != nil {
			return err
		}
		wait := q.GetWait().AsDuration()
		done := c.Progress(wait, "the answer")
		answer, err := broker.Messages().Ask(cmd.Context(), q)
		done()
		if err != nil {
			return err
		}
		c.Warn(cmd, answer.GetWarnings())
		if answer.GetNoReply() != nil {
			return unanswered(c, answer)
		}
		if answer.GetReply() == nil {
			late := c.Voice().NoReplyYet(answer, q.GetMessage().GetThreadId(), prompt.Duration(wait))
			return problem.Failf(problem.ExitNothing, "%s", late)
		}
		return c.Show(cmd, answer, func(w io.Writer) {
			mail.Render(c, w, prompt.Rendered{Message: answer.GetReply()})
		})
	},
}

// unanswered returns the error of a question to which no answer can come.
func unanswered(c *command.Caller, answer *pb.AskResponse) error {
	none, text := answer.GetNoReply(), c.Voice().NoReply(answer)
	if none.GetError() != "" {
		return c.FailQuoting(problem.ExitNothing, text, none.GetError())
	}
	return problem.Failf(problem.ExitNothing, "%s", text)
}

// NewReplyCommand returns the command brokerctl reply.
func NewReplyCommand(c *command.Caller) *cobra.Command {
	cmd := reply.Command(c)
	cmd.Args = cobra.ArbitraryArgs // the text may be an option
	return command.Says(c, cmd, func(call calls.Call, q *pb.ReplyRequest) []string {
		if q.GetMessage() != nil || !slices.Equal(call.Missing, []string{"message.body"}) {
			return nil
		}
		words := []string{q.GetId(), "ANSWER"}
		if q.GetAck() {
			words = append(words, "--ack")
		}
		return words
	})
}

var reply = command.Procedure[*pb.ReplyRequest]{
	Page: command.Page{
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
	},
	Args: []command.Arg{{Kind: command.Kind{Words: words.ClaimWords}}, {Text: true}},
	Options: append(contentOptions("message"), []command.Option{
		{Field: "ack", Usage: "also finish the claim of the answered message"},
		{Field: "message.subject",
			Usage: "one line, beside the text (default: Re: and the subject of the answered message)"},
		{Field: "message.type", Kind: words.MessageType, Usage: "type of the message (default: message)"},
	}...),
	Run: func(g *command.Given, q *pb.ReplyRequest) error {
		if q.Message == nil {
			q.Message = &pb.Message{}
		}
		text, body, subject := g.Args, g.Text("body"), g.Text("subject")
		if len(text) > 0 && words.IsID(text[0]) && (len(text) > 1 || body+g.Text("payload")+subject != "") {
			q.Id, text = text[0], text[1:]
		}
		switch {
		case len(text) > 0 && body != "":
			return problem.Usagef("the text is given twice, as argument and with --body; a line beside it goes to --subject")
		case len(text) > 0:
			q.Message.Body = strings.Join(text, " ")
		case body+g.Text("payload")+subject == "":
			return problem.Usagef("the answer is missing: give a text, --body or --payload")
		}
		if _, err := trimPayload(g, q.GetMessage()); err != nil {
			return err
		}
		broker, err := g.Connect(g.Cmd.Context())
		if err != nil {
			return err
		}
		answer, err := broker.Messages().Reply(g.Cmd.Context(), q)
		if err != nil {
			return err
		}
		g.Warn(g.Cmd, answer.GetResult().GetWarnings())
		return g.Show(g.Cmd, answer, func(w io.Writer) {
			r := answer.GetResult()
			if answer.GetAwaited() {
				prompt.Say(w, "replied with %d; the waiting call of the asker received it", r.GetRevision())
			} else {
				g.Voice().Sent(w, r)
			}
			if q.GetAck() {
				prompt.Say(w, "acked the message that was answered")
			}
		})
	},
}

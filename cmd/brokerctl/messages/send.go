package messages

import (
	"io"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/transfer"
	"brokerd/cmd/brokerctl/internal/words"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/mcp"
	"brokerd/internal/prompt"
)

// contentOptions are the options of a message that send, ask and reply share. message is its field in the request.
func contentOptions(message string) []command.Option {
	return append([]command.Option{
		{Field: message + ".priority", Kind: command.Priority,
			Usage: "1 to 10, or low (3), normal (5), high (7), critical (10)"},
		{Field: message + ".version", Name: "payload-version", Kind: command.Kind{Name: "VERSION"},
			Usage: "version of the payload's format, MAJOR.MINOR (default: 1.0)"},
		{Field: message + ".labels", Name: "label", Usage: "a label; repeatable"},
		command.RequestID,
	}, command.ContentOptions(message, rawJSON)...)
}

var (
	receiver = command.Kind{
		Words: words.ReceiverNames, Read: command.As(command.ParseReceiver),
		Write: func(m proto.Message) string { return prompt.Receiver(m.(*pb.Target)) },
	}

	// rawJSON keeps the white space, for a payload that becomes an artifact.
	rawJSON = command.Kind{Name: "JSON", Read: func(g *command.Given, to command.Target, texts []string) error {
		text, err := g.RawJSON(g.Cmd, to.Flag, texts[len(texts)-1])
		to.Set(protoreflect.ValueOfString(text))
		return err
	}}
)

// trimPayload takes the white space around the payload away, and returns the payload as it was read.
func trimPayload(g *command.Given, m *pb.Message) (asRead string, err error) {
	asRead = m.GetPayload()
	m.Payload = strings.TrimSpace(asRead)
	return asRead, g.OneSource()
}

// sendOptions are the options of send, which ask has too.
func sendOptions(message string) []command.Option {
	return append([]command.Option{
		{Field: message + ".reach", Name: "all", Means: int32(pb.Reach_REACH_ALL),
			Usage: "a copy for each match (the default, except for a role)"},
		{Field: message + ".reach", Name: "one", Means: int32(pb.Reach_REACH_ONE),
			Usage: "only for the first match that claims it (the default for a role)"},
		{Field: message + ".type", Kind: words.MessageType,
			Usage: "type of the message, such as task_assignment (default: message)"},
		{Field: message + ".channel", Kind: words.Channel,
			Usage: "a channel as label, beside another receiver; its default TTL applies"},
		{Field: message + ".thread_id", Name: "thread", Kind: threadName,
			Usage: "conversation that it belongs to (default: that of --reply-to, or a new one)"},
		{Field: message + ".correlation_id", Name: "correlation", Kind: anID,
			Usage: "your own id, to recognise an answer by"},
		{Field: message + ".in_reply_to", Name: "reply-to", Kind: words.MessageID,
			Usage: "id or revision of the message that it answers"},
		{Field: message + ".task_id", Name: "task", Kind: words.Task, Usage: "task that it belongs to"},
		{Field: message + ".ttl",
			Usage: "discard it if it is not finished within this time (default: the channel's TTL, or none)"},
		{Name: "delay", Type: "duration", Usage: "deliver it after this time"},
		{Field: message + ".not_before", Kind: command.Ahead,
			Usage: "deliver it at this time: RFC 3339, or 2h or 1d (from now)"},
		{Field: message + ".ordering_key", Kind: command.Kind{Name: "KEY"},
			Usage: "deliver messages with the same key one after the other"},
		{Field: message + ".max_attempts",
			Usage: "failed attempts until it becomes a dead letter (default: the session's)"},
		{Field: message + ".requires_response", Usage: "ask for an answer within the session's response time"},
		{Name: "respond-within", Type: "duration", Usage: "ask for an answer within this time"},
		{Field: message + ".resend_after",
			Usage: "redeliver after this time if neither read nor claimed, up to 5 times"},
	}, contentOptions(message)...)
}

// sendApart are those of them that exclude each other.
var sendApart = [][]string{{"all", "one"}, {"delay", "not-before"}}

// Send is brokerctl send.
var Send = command.Procedure[*pb.SendMessagesRequest]{
	Page: command.Page{
		Use:   "send RECEIVER [TEXT]",
		Short: "Send a message",
		Long: `Send a message. When the command ends, the message is on disk.

TEXT becomes the subject if it is one line of at most 200 bytes, or if there is
a --body; otherwise it becomes the body. RECEIVER is an agent, role:NAME,
channel:NAME, a pattern or everyone (brokerctl help receivers).

If no agent has the role or subscribes to the channel, or if the message has no
text, the send succeeds with a warning. Recipients with
a full mailbox are left out; exit code 1: all of them were full.

A --payload of @FILE or - that is larger than the session permits becomes an
artifact, the message refers to it, and standard error says so.`,
		Example: `  brokerctl --agent lead send builder-1 "Add login" --type task_assignment
  brokerctl --agent lead send role:reviewer "Please look" --file a.go:42
  git diff | brokerctl --agent builder-1 send channel:general "My diff" --body -
  brokerctl send everyone "Stand-up in 5 minutes" --priority high --ttl 5m`,
	},
	Args: []command.Arg{
		{Field: "messages.target", Name: "the receiver", Kind: receiver}, {Name: "the text", Text: true},
	},
	Options: sendOptions("messages"),
	Apart:   sendApart,
	Run: func(g *command.Given, q *pb.SendMessagesRequest) error {
		m := q.GetMessages()[0]
		payload, err := complete(g, m, g.Args[1:])
		if err != nil {
			return err
		}
		broker, err := g.Connect(g.Cmd.Context())
		if err != nil {
			return err
		}
		named := m.GetArtifacts()
		if err := transfer.PayloadArtifact(g, broker, m, payload); err != nil {
			return err
		}
		warnAbsent(g.Caller, g.Cmd, broker, named)
		return send(g.Caller, g.Cmd, q)
	},
}

// complete sets what no single option of send says, and the text. It returns the payload as it was read.
func complete(g *command.Given, m *pb.Message, text []string) (payload string, err error) {
	if len(text) > 0 {
		mcp.SetText(m, strings.Join(text, " "))
	}
	for _, name := range []string{"ttl", "respond-within"} {
		if g.Cmd.Flags().Changed(name) && g.Duration(name) == 0 {
			return "", problem.Usagef("--%s 0s: it must be above 0", name)
		}
	}
	if delay := g.Duration("delay"); delay > 0 {
		m.NotBefore = timestamppb.New(g.Env.Now().Add(delay))
	}
	if within := g.Duration("respond-within"); within > 0 {
		m.RequiresResponse, m.ResponseDeadline = true, timestamppb.New(g.Env.Now().Add(within))
	}
	return trimPayload(g, m)
}

// send sends one message and prints what became of it.
func send(c *command.Caller, cmd *cobra.Command, request *pb.SendMessagesRequest) error {
	broker, err := c.Connect(cmd.Context())
	if err != nil {
		return err
	}
	answer, err := broker.Messages().SendMessages(cmd.Context(), request)
	if err != nil {
		return err
	}
	for _, r := range answer.GetResults() {
		if err := c.Show(cmd, r, func(w io.Writer) { c.Voice().Sent(w, r) }); err != nil {
			return err
		}
		c.Warn(cmd, r.GetWarnings())
		if text := prompt.Undelivered(r); text != "" {
			return problem.Failf(problem.ExitError, "%s", text)
		}
	}
	return nil
}

// warnAbsent warns of artifacts that a message refers to and that no agent has uploaded so far. What else may be wrong with
// them, the send reports.
func warnAbsent(c *command.Caller, cmd *cobra.Command, broker *client.Client, artifacts []string) {
	for _, artifact := range artifacts {
		name, version := client.ParseArtifact(artifact)
		request := &pb.GetArtifactRequest{Name: name, Version: version, PageSize: 1}
		_, err := broker.Artifacts().GetArtifact(cmd.Context(), request)
		if status.Code(err) == codes.NotFound {
			c.Warn(cmd, []string{"there is no artifact " + artifact + " so far"})
		}
	}
}

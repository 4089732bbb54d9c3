package messages

import (
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
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

// sendOptions are the options of send.
type sendOptions struct {
	command.ContentOptions
	all, one       bool
	kind           string
	payloadVersion string
	channel        string
	thread         string
	correlation    string
	replyTo        string
	task           string
	labels         []string
	ttl            time.Duration
	delay          time.Duration
	notBefore      string
	orderingKey    string
	maxAttempts    int32
	requestID      string

	requiresResponse bool
	respondWithin    time.Duration
	resendAfter      time.Duration
}

// AddFlags adds the options.
func (o *sendOptions) AddFlags(f *pflag.FlagSet) {
	o.ContentOptions.AddFlags(f)
	o.AddPriority(f)
	f.BoolVar(&o.all, "all", false, "a copy for each match (the default, except for a role)")
	f.BoolVar(&o.one, "one", false, "only for the first match that claims it (the default for a role)")
	f.StringVar(&o.kind, "type", "", "type of the message, such as task_assignment (default: message)")
	f.StringVar(&o.payloadVersion, "payload-version", "", "version of the payload's format, MAJOR.MINOR (default: 1.0)")
	f.StringVar(&o.channel, "channel", "", "a channel as label, beside another receiver; its default TTL applies")
	f.StringVar(&o.thread, "thread", "", "conversation that it belongs to (default: that of --reply-to, or a new one)")
	f.StringVar(&o.correlation, "correlation", "", "your own id, to recognise an answer by")
	f.StringVar(&o.replyTo, "reply-to", "", "id or revision of the message that it answers")
	f.StringVar(&o.task, "task", "", "task that it belongs to")
	f.StringArrayVar(&o.labels, "label", nil, "a label; repeatable")
	command.DurationVar(f, &o.ttl, "ttl", 0, "discard it if it is not finished within this time (default: the channel's TTL, or none)")
	command.DurationVar(f, &o.delay, "delay", 0, "deliver it after this time")
	f.StringVar(&o.notBefore, "not-before", "", "deliver it at this time: RFC 3339, or 2h or 1d (from now)")
	f.StringVar(&o.orderingKey, "ordering-key", "", "deliver messages with the same key one after the other")
	f.Int32Var(&o.maxAttempts, "max-attempts", 0, "failed attempts until it becomes a dead letter (default: the session's)")
	f.BoolVar(&o.requiresResponse, "requires-response", false, "ask for an answer within the session's response time")
	command.DurationVar(f, &o.respondWithin, "respond-within", 0, "ask for an answer within this time")
	command.DurationVar(f, &o.resendAfter, "resend-after", 0, "redeliver after this time if neither read nor claimed, up to 5 times")
	f.StringVar(&o.requestID, "request-id", "", "makes retries idempotent for 1h")
}

// NewSendCommand returns the command brokerctl send.
func NewSendCommand(c *command.Caller) *cobra.Command {
	o := &sendOptions{}
	cmd := &cobra.Command{
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
		Args:              command.Between(1, "the receiver", "the text"),
		ValidArgsFunction: c.CompleteArgs(false, words.ReceiverNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := o.message(c, cmd, args)
			if err != nil {
				return err
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			if err := transfer.PayloadArtifact(c, cmd, broker, m, o.ContentOptions); err != nil {
				return err
			}
			warnAbsent(c, cmd, broker, o.Artifacts)
			return send(c, cmd, &pb.SendMessagesRequest{RequestId: o.requestID, Messages: []*pb.Message{m}})
		},
	}
	o.AddFlags(cmd.Flags())
	o.complete(c, cmd)
	return cmd
}

// complete adds completions, and says which options exclude each other.
func (o *sendOptions) complete(c *command.Caller, cmd *cobra.Command) {
	cmd.MarkFlagsMutuallyExclusive("all", "one")
	cmd.MarkFlagsMutuallyExclusive("delay", "not-before")
}

// message builds what the command line describes.
func (o *sendOptions) message(c *command.Caller, cmd *cobra.Command, args []string) (*pb.Message, error) {
	m, err := o.content(c, cmd)
	if err != nil {
		return nil, err
	}
	if m.Target, err = command.ParseReceiver(args[0]); err != nil {
		return nil, err
	}
	if len(args) > 1 {
		mcp.SetText(m, args[1])
	}
	return m, nil
}

// content builds what the options describe.
func (o *sendOptions) content(c *command.Caller, cmd *cobra.Command) (*pb.Message, error) {
	m, err := o.Message(c, cmd)
	if err != nil {
		return nil, err
	}
	m.Type, m.Version, m.Channel = o.kind, o.payloadVersion, o.channel
	m.ThreadId, m.CorrelationId, m.InReplyTo, m.TaskId = o.thread, o.correlation, o.replyTo, o.task
	m.OrderingKey, m.MaxAttempts = o.orderingKey, o.maxAttempts
	if cmd.Flags().Changed("ttl") {
		if o.ttl <= 0 {
			return nil, problem.Usagef("--ttl %v: it must be above 0", o.ttl)
		}
		m.Ttl = command.Duration(o.ttl)
	}
	switch {
	case o.all:
		m.Reach = pb.Reach_REACH_ALL
	case o.one:
		m.Reach = pb.Reach_REACH_ONE
	}
	if o.delay > 0 {
		m.NotBefore = timestamppb.New(c.Env.Now().Add(o.delay))
	}
	m.RequiresResponse = o.requiresResponse || cmd.Flags().Changed("respond-within")
	if cmd.Flags().Changed("respond-within") {
		if o.respondWithin <= 0 {
			return nil, problem.Usagef("--respond-within %v: it must be above 0", o.respondWithin)
		}
		m.ResponseDeadline = timestamppb.New(c.Env.Now().Add(o.respondWithin))
	}
	m.ResendAfter = command.Duration(o.resendAfter)
	if m.Labels, err = command.ParseLabels(o.labels); err != nil {
		return nil, err
	}
	if o.notBefore != "" {
		if m.NotBefore, err = c.ParseTime("not-before", o.notBefore, +1); err != nil {
			return nil, err
		}
	}
	return m, nil
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

package messages

import (
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/words"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

const settleLong = `
An ID is a claim id, a message's id or its revision; without IDs, the agent's
only open claim is meant.`

// NewAckCommand returns the command brokerctl ack.
func NewAckCommand(c *command.Caller) *cobra.Command {
	var requestID string
	cmd := &cobra.Command{
		Use:   "ack [ID...]",
		Short: "Finish messages",
		Long: `Finish messages, also ones in the agent's own mailbox that no agent claimed.

Exit code 6: the claim expired and another consumer has claimed the message.
` + settleLong,
		Example: `  brokerctl --agent builder-1 ack
  brokerctl --agent builder-1 ack 4711.1`,
		ValidArgsFunction: c.CompleteArgs(true, words.ClaimWords),
		RunE: func(cmd *cobra.Command, args []string) error {
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Messages().AckMessages(cmd.Context(), &pb.AckMessagesRequest{RequestId: requestID, Ids: args})
			if err != nil {
				return err
			}
			return c.Show(cmd, answer, func(w io.Writer) {
				prompt.Say(w, "acked %s", strings.Join(answer.GetAcked(), ", "))
			})
		},
	}
	command.AddRequestID(cmd, &requestID)
	return cmd
}

// nackOptions are the options of nack.
type nackOptions struct {
	fault     string
	fatal     bool
	delay     time.Duration
	requestID string
}

// AddFlags adds the options.
func (o *nackOptions) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&o.fault, "error", "", "what failed, for the history; @FILE reads a file, - standard input")
	f.BoolVar(&o.fatal, "fatal", false, "do not retry: make it a dead letter at once")
	command.DurationVar(f, &o.delay, "delay", 0, "wait this long before the next attempt (default: longer after each attempt)")
}

// NewNackCommand returns the command brokerctl nack.
func NewNackCommand(c *command.Caller) *cobra.Command {
	o := &nackOptions{}
	cmd := &cobra.Command{
		Use:   "nack [ID...]",
		Short: "Report that work on messages failed",
		Long: `Report that work on messages failed. This counts as an attempt; the broker
redelivers each message after a delay, and after the last attempt makes it a dead
letter (brokerctl dlq). Exit code 6: the claim is lost.
` + settleLong,
		Example: `  brokerctl --agent builder-1 nack --error "tests fail: TestLogin"
  brokerctl --agent builder-1 nack 4711.1 --fatal --error "no such repository"`,
		ValidArgsFunction: c.CompleteArgs(true, words.ClaimWords),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(c, cmd, args) },
	}
	o.AddFlags(cmd.Flags())
	command.AddRequestID(cmd, &o.requestID)
	cmd.MarkFlagsMutuallyExclusive("fatal", "delay")
	return cmd
}

func (o *nackOptions) run(c *command.Caller, cmd *cobra.Command, args []string) error {
	fault, err := c.Text(cmd, "error", o.fault)
	if err != nil {
		return err
	}
	request := &pb.NackMessagesRequest{RequestId: o.requestID}
	for _, id := range orOnly(args) {
		nack := &pb.Nack{ClaimId: id, Fatal: o.fatal, Error: fault}
		if d := command.IfSet(cmd, "delay", o.delay); d != nil {
			nack.Delay = durationpb.New(*d)
		}
		request.Nacks = append(request.Nacks, nack)
	}
	broker, err := c.Connect(cmd.Context())
	if err != nil {
		return err
	}
	answer, err := broker.Messages().NackMessages(cmd.Context(), request)
	if err != nil {
		return err
	}
	return c.Show(cmd, answer, func(w io.Writer) {
		for _, outcome := range answer.GetOutcomes() {
			state := prompt.Enum(outcome.GetState())
			if outcome.GetState() == pb.DeliveryState_DELIVERY_STATE_DEAD {
				state = "now a dead letter"
			}
			due := prompt.Either(outcome.GetDueAt() != nil, ", again "+c.When(outcome.GetDueAt()), "")
			prompt.Say(w, "nacked %s: %s%s", outcome.GetClaimId(), state, due)
		}
	})
}

// NewExtendCommand returns the command brokerctl extend.
func NewExtendCommand(c *command.Caller) *cobra.Command {
	var claimFor time.Duration
	var requestID string
	cmd := &cobra.Command{
		Use:   "extend [ID...]",
		Short: "Prolong claims, counted from now",
		Long:  "Prolong claims, counted from now. Exit code 6: the claim is lost.\n" + settleLong,
		Example: `  brokerctl --agent builder-1 extend
  brokerctl --agent builder-1 extend 4711.1 --for 2h`,
		ValidArgsFunction: c.CompleteArgs(true, words.ClaimWords),
		RunE: func(cmd *cobra.Command, args []string) error {
			request := &pb.ExtendClaimsRequest{RequestId: requestID}
			for _, id := range orOnly(args) {
				request.Extensions = append(request.Extensions, &pb.Extension{ClaimId: id, ClaimFor: command.Duration(claimFor)})
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Messages().ExtendClaims(cmd.Context(), request)
			if err != nil {
				return err
			}
			return c.Show(cmd, answer, func(w io.Writer) {
				prompt.Say(w, "extended %s%s", strings.Join(answer.GetClaimIds(), ", "), prompt.Either(claimFor > 0, " by "+prompt.Duration(claimFor), ""))
			})
		},
	}
	command.DurationVar(cmd.Flags(), &claimFor, "for", 0, "how long from now on (default: as long as it was claimed for)")
	command.AddRequestID(cmd, &requestID)
	return cmd
}

// NewReleaseCommand returns the command brokerctl release.
func NewReleaseCommand(c *command.Caller) *cobra.Command {
	var requestID string
	cmd := &cobra.Command{
		Use:   "release [ID...]",
		Short: "Return claims without counting an attempt",
		Long: `Return claims without counting an attempt; each message keeps its place. Exit
code 6: the claim is lost.
` + settleLong,
		Example:           `  brokerctl --agent builder-1 release 4711.1`,
		ValidArgsFunction: c.CompleteArgs(true, words.ClaimWords),
		RunE: func(cmd *cobra.Command, args []string) error {
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Messages().ReleaseClaims(cmd.Context(), &pb.ReleaseClaimsRequest{RequestId: requestID, Ids: args})
			if err != nil {
				return err
			}
			return c.Show(cmd, answer, func(w io.Writer) {
				prompt.Say(w, "released %s", strings.Join(answer.GetReleased(), ", "))
			})
		},
	}
	command.AddRequestID(cmd, &requestID)
	return cmd
}

// orOnly returns the ids, or one empty id: the only open claim.
func orOnly(ids []string) []string {
	if len(ids) == 0 {
		return []string{""}
	}
	return ids
}

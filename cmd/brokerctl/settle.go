package main

import (
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/internal/prompt"

	pb "brokerd/gen/brokerd/v1"
)

const settleLong = `
An ID is a claim id, a message's id or its revision; without IDs, the agent's
only open claim is meant.`

func newAckCommand(c *cli) *cobra.Command {
	var requestID string
	cmd := &cobra.Command{
		Use:   "ack [ID...]",
		Short: "Finish messages",
		Long: `Finish messages, also ones in the agent's own mailbox that no agent claimed.

Exit code 6: the claim expired and another consumer has claimed the message.
` + settleLong,
		Example: `  brokerctl --agent builder-1 ack
  brokerctl --agent builder-1 ack 4711.1`,
		ValidArgsFunction: c.completeArgs(true, claimWords),
		RunE: func(cmd *cobra.Command, args []string) error {
			broker, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Messages().AckMessages(cmd.Context(), &pb.AckMessagesRequest{RequestId: requestID, Ids: args})
			if err != nil {
				return err
			}
			return c.show(cmd, answer, func(w io.Writer) {
				prompt.Say(w, "acked %s", strings.Join(answer.GetAcked(), ", "))
			})
		},
	}
	addRequestID(cmd, &requestID)
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
	durationVar(f, &o.delay, "delay", 0, "wait this long before the next attempt (default: longer after each attempt)")
}

func newNackCommand(c *cli) *cobra.Command {
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
		ValidArgsFunction: c.completeArgs(true, claimWords),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(c, cmd, args) },
	}
	o.AddFlags(cmd.Flags())
	addRequestID(cmd, &o.requestID)
	cmd.MarkFlagsMutuallyExclusive("fatal", "delay")
	return cmd
}

func (o *nackOptions) run(c *cli, cmd *cobra.Command, args []string) error {
	fault, err := c.text(cmd, "error", o.fault)
	if err != nil {
		return err
	}
	request := &pb.NackMessagesRequest{RequestId: o.requestID}
	for _, id := range orOnly(args) {
		nack := &pb.Nack{ClaimId: id, Fatal: o.fatal, Error: fault}
		if d := ifSet(cmd, "delay", o.delay); d != nil {
			nack.Delay = durationpb.New(*d)
		}
		request.Nacks = append(request.Nacks, nack)
	}
	broker, err := c.connect(cmd.Context())
	if err != nil {
		return err
	}
	answer, err := broker.Messages().NackMessages(cmd.Context(), request)
	if err != nil {
		return err
	}
	return c.show(cmd, answer, func(w io.Writer) {
		for _, outcome := range answer.GetOutcomes() {
			state := prompt.Enum(outcome.GetState())
			if outcome.GetState() == pb.DeliveryState_DELIVERY_STATE_DEAD {
				state = "now a dead letter"
			}
			due := prompt.Either(outcome.GetDueAt() != nil, ", again "+c.when(outcome.GetDueAt()), "")
			prompt.Say(w, "nacked %s: %s%s", outcome.GetClaimId(), state, due)
		}
	})
}

func newExtendCommand(c *cli) *cobra.Command {
	var claimFor time.Duration
	var requestID string
	cmd := &cobra.Command{
		Use:   "extend [ID...]",
		Short: "Prolong claims, counted from now",
		Long:  "Prolong claims, counted from now. Exit code 6: the claim is lost.\n" + settleLong,
		Example: `  brokerctl --agent builder-1 extend
  brokerctl --agent builder-1 extend 4711.1 --for 2h`,
		ValidArgsFunction: c.completeArgs(true, claimWords),
		RunE: func(cmd *cobra.Command, args []string) error {
			request := &pb.ExtendClaimsRequest{RequestId: requestID}
			for _, id := range orOnly(args) {
				request.Extensions = append(request.Extensions, &pb.Extension{ClaimId: id, ClaimFor: duration(claimFor)})
			}
			broker, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Messages().ExtendClaims(cmd.Context(), request)
			if err != nil {
				return err
			}
			return c.show(cmd, answer, func(w io.Writer) {
				prompt.Say(w, "extended %s%s", strings.Join(answer.GetClaimIds(), ", "), prompt.Either(claimFor > 0, " by "+prompt.Duration(claimFor), ""))
			})
		},
	}
	durationVar(cmd.Flags(), &claimFor, "for", 0, "how long from now on (default: as long as it was claimed for)")
	addRequestID(cmd, &requestID)
	return cmd
}

func newReleaseCommand(c *cli) *cobra.Command {
	var requestID string
	cmd := &cobra.Command{
		Use:   "release [ID...]",
		Short: "Return claims without counting an attempt",
		Long: `Return claims without counting an attempt; each message keeps its place. Exit
code 6: the claim is lost.
` + settleLong,
		Example:           `  brokerctl --agent builder-1 release 4711.1`,
		ValidArgsFunction: c.completeArgs(true, claimWords),
		RunE: func(cmd *cobra.Command, args []string) error {
			broker, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Messages().ReleaseClaims(cmd.Context(), &pb.ReleaseClaimsRequest{RequestId: requestID, Ids: args})
			if err != nil {
				return err
			}
			return c.show(cmd, answer, func(w io.Writer) {
				prompt.Say(w, "released %s", strings.Join(answer.GetReleased(), ", "))
			})
		},
	}
	addRequestID(cmd, &requestID)
	return cmd
}

// orOnly returns the ids, or one empty id: the only open claim.
func orOnly(ids []string) []string {
	if len(ids) == 0 {
		return []string{""}
	}
	return ids
}

// addRequestID adds the option that changes share.
func addRequestID(cmd *cobra.Command, id *string) {
	cmd.Flags().StringVar(id, "request-id", "", "makes retries idempotent for 1h")
}

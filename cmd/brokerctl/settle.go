package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	pb "brokerd/gen/brokerd/v1"
)

const settleLong = `
An ID is a claim id, a message's id or its revision; without any, the agent's only open claim is meant.`

func newAckCommand(c *cli) *cobra.Command {
	var requestID string
	cmd := &cobra.Command{
		Use:   "ack [ID...]",
		Short: "Finish messages",
		Long: `Finish messages. Also takes mail of one's own that nobody claimed. An ack after the claim's time is accepted
as long as nobody has claimed since; after that the exit code is 6.
` + settleLong,
		Example: `  brokerctl --agent builder-1 ack
  brokerctl --agent builder-1 ack 4711.1`,
		ValidArgsFunction: c.completeClaims,
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
				fmt.Fprintf(w, "acked %s\n", strings.Join(answer.GetAcked(), ", "))
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
	f.StringVar(&o.fault, "error", "", "what went wrong; kept in the history; @FILE reads a file, - standard input")
	f.BoolVar(&o.fatal, "fatal", false, "trying again is of no use: make it a dead letter at once")
	durationVar(f, &o.delay, "delay", 0, "wait this long before the next attempt (default: longer from attempt to attempt)")
}

func newNackCommand(c *cli) *cobra.Command {
	o := &nackOptions{}
	cmd := &cobra.Command{
		Use:   "nack [ID...]",
		Short: "Give messages up as failed",
		Long: `Give messages up as failed: the attempt counts, and after a while the message is handed out again; after the
last attempt it is a dead letter (see dlq). A claim that is lost is refused with exit code 6.
` + settleLong,
		Example: `  brokerctl --agent builder-1 nack --error "tests fail: TestLogin"
  brokerctl --agent builder-1 nack 4711.1 --fatal --error "no such repository"`,
		ValidArgsFunction: c.completeClaims,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(c, cmd, args) },
	}
	o.AddFlags(cmd.Flags())
	addRequestID(cmd, &o.requestID)
	cmd.MarkFlagsMutuallyExclusive("fatal", "delay")
	return cmd
}

func (o *nackOptions) run(c *cli, cmd *cobra.Command, args []string) error {
	fault, err := text(cmd, "error", o.fault)
	if err != nil {
		return err
	}
	request := &pb.NackMessagesRequest{RequestId: o.requestID}
	for _, id := range orOnly(args) {
		nack := &pb.Nack{ClaimId: id, Fatal: o.fatal, Error: fault}
		if d := ifSet(cmd, "delay", o.delay); d != nil {
			nack.Delay = always(*d)
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
			state := strings.ToLower(enumOf(outcome.GetState()))
			if outcome.GetState() == pb.DeliveryState_DELIVERY_STATE_DEAD {
				state = "now a dead letter"
			}
			due := cond(outcome.GetDueAt() != nil, ", again "+c.due(outcome.GetDueAt()), "")
			fmt.Fprintf(w, "nacked %s: %s%s\n", outcome.GetClaimId(), state, due)
		}
	})
}

func newExtendCommand(c *cli) *cobra.Command {
	var claimFor time.Duration
	var requestID string
	cmd := &cobra.Command{
		Use:   "extend [ID...]",
		Short: "Get more time for claims",
		Long:  "Get more time for claims, counted from now. A claim that is lost is refused with exit code 6.\n" + settleLong,
		Example: `  brokerctl --agent builder-1 extend
  brokerctl --agent builder-1 extend 4711.1 --for 2h`,
		ValidArgsFunction: c.completeClaims,
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
				fmt.Fprintf(w, "extended %s%s\n", strings.Join(answer.GetClaimIds(), ", "), cond(claimFor > 0, " by "+short(claimFor), ""))
			})
		},
	}
	durationVar(cmd.Flags(), &claimFor, "for", 0, "how long from now on (default: what the claim had at first)")
	addRequestID(cmd, &requestID)
	return cmd
}

func newReleaseCommand(c *cli) *cobra.Command {
	var requestID string
	cmd := &cobra.Command{
		Use:   "release [ID...]",
		Short: "Give claims back unharmed",
		Long: `Give claims back unharmed: no attempt is counted, and each message keeps its place. A claim that is lost is
refused with exit code 6.
` + settleLong,
		Example:           `  brokerctl --agent builder-1 release 4711.1`,
		ValidArgsFunction: c.completeClaims,
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
				fmt.Fprintf(w, "released %s\n", strings.Join(answer.GetReleased(), ", "))
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
	cmd.Flags().StringVar(id, "request-id", "", "a UUID: the same request again within an hour does nothing twice")
}

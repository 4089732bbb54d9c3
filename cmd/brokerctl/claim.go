package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	pb "brokerd/gen/brokerd/v1"
)

// takeOptions say what to take; claim and work share them.
type takeOptions struct {
	consumer       string
	mailboxes      []string
	role           string
	types          []string
	lowestPriority string
}

// AddFlags adds the options.
func (o *takeOptions) AddFlags(f *pflag.FlagSet) {
	f.StringSliceVar(&o.mailboxes, "mailbox", nil, "take from these only: the agent's name, role:NAME, channel:NAME (default: all it may)")
	f.StringVar(&o.role, "role", "", "take from this role's queue only; the same as --mailbox role:NAME")
	f.StringSliceVar(&o.types, "type", nil, "only these types; may be repeated")
	f.StringVar(&o.lowestPriority, "lowest-priority", "", "only this priority or a higher one")
}

// from returns the mailboxes to take from; none = all.
func (o *takeOptions) from() []string {
	if o.role == "" {
		return o.mailboxes
	}
	return append(o.mailboxes[:len(o.mailboxes):len(o.mailboxes)], "role:"+o.role)
}

// claimOptions are the options of claim.
type claimOptions struct {
	takeOptions
	max      int32
	wait     time.Duration
	claimFor time.Duration
}

// AddFlags adds the options.
func (o *claimOptions) AddFlags(f *pflag.FlagSet) {
	o.takeOptions.AddFlags(f)
	f.StringVar(&o.consumer, "consumer", "", "tells workers under one agent's name apart")
	f.Int32Var(&o.max, "max", 1, "how many claims to hold, those held before included")
	f.DurationVar(&o.wait, "wait", 0, "if nothing is there, wait this long")
	f.DurationVar(&o.claimFor, "for", 30*time.Minute, "how long a new claim lasts; extend gives more")
}

func newClaimCommand(c *cli) *cobra.Command {
	o := &claimOptions{}
	cmd := &cobra.Command{
		Use:   "claim",
		Short: "Take messages to work on",
		Long: `Take messages to work on, the most urgent first; nobody else gets them meanwhile. What the agent holds
already comes first, so that a claim is found again after a crash.

Finish with ack, give up with nack, give back with release. Exit code 4: nothing was there, or came in time.`,
		Example: `  brokerctl --agent builder-1 claim --wait 30s -o json
  brokerctl --agent builder-1 claim --role builder --max 5 --for 2h`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return o.run(c, cmd) },
	}
	o.AddFlags(cmd.Flags())
	must(cmd.RegisterFlagCompletionFunc("type", c.completeTypes))
	return cmd
}

func (o *claimOptions) run(c *cli, cmd *cobra.Command) error {
	lowest, err := parsePriority("lowest-priority", o.lowestPriority)
	if err != nil {
		return err
	}
	broker, err := c.connect(cmd.Context())
	if err != nil {
		return err
	}
	answer, err := broker.Messages().ClaimMessages(cmd.Context(), &pb.ClaimMessagesRequest{
		Consumer: o.consumer, Mailboxes: o.from(), Types: o.types, LowestPriority: lowest,
		Max: o.max, Wait: duration(o.wait), ClaimFor: always(o.claimFor),
	})
	if err != nil {
		return err
	}
	if len(answer.GetClaims()) == 0 {
		return failf(exitNothing, "%s", c.whyEmpty(answer, o.wait))
	}
	format, err := c.format()
	if err != nil {
		return err
	}
	for i, claim := range answer.GetClaims() {
		if i > 0 && format == formatTable {
			fmt.Fprintln(cmd.OutOrStdout())
		}
		err := c.show(cmd, claim, func(w io.Writer) {
			c.render(w, c.claimed(claim))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// whyEmpty says why there was nothing to claim.
func (c *cli) whyEmpty(answer *pb.ClaimMessagesResponse, wait time.Duration) string {
	s := "nothing to claim" + cond(wait > 0, " within "+short(wait), "")
	switch answer.GetEmptyReason() {
	case pb.EmptyReason_EMPTY_REASON_DELAYED:
		s += ": what waits is delayed"
	case pb.EmptyReason_EMPTY_REASON_BLOCKED_BY_ORDER:
		s += ": what waits follows an unfinished message of its ordering key"
	case pb.EmptyReason_EMPTY_REASON_BREAKER_OPEN:
		s += ": the agent failed too often in a row, and gets nothing for a while"
	case pb.EmptyReason_EMPTY_REASON_HALTED:
		s += ": the agent is halted until a resume"
	}
	if due := answer.GetNextDue(); due != nil {
		s += "; the next is due " + c.due(due)
	}
	return s
}

package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/durationpb"

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
	f.StringSliceVar(&o.mailboxes, "mailbox", nil, "only from this mailbox: the agent's name, role:NAME or channel:NAME; repeatable (default: all that the agent may take from)")
	f.StringVar(&o.role, "role", "", "only from this role's queue; the same as --mailbox role:NAME")
	f.StringSliceVar(&o.types, "type", nil, "only this type; repeatable")
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
	thread, task, correlation string
	senders                   []string

	limit    int32
	wait     time.Duration
	claimFor time.Duration
}

// AddFlags adds the options.
func (o *claimOptions) AddFlags(f *pflag.FlagSet) {
	o.takeOptions.AddFlags(f)
	f.StringVar(&o.thread, "thread", "", "only of this thread")
	f.StringVar(&o.task, "task", "", "only of this task")
	f.StringVar(&o.correlation, "correlation", "", "only with this correlation id")
	f.StringSliceVar(&o.senders, "from", nil, "only from this sender; repeatable")
	f.StringVar(&o.consumer, "consumer", "", "tells workers with the same agent name apart")
	f.Int32Var(&o.limit, "limit", 1, "claims to hold, those already held included")
	durationVar(f, &o.wait, "wait", 0, "if there is none, wait up to this long")
	durationVar(f, &o.claimFor, "for", 30*time.Minute, "how long a new claim lasts; extend prolongs it")
}

func newClaimCommand(c *cli) *cobra.Command {
	o := &claimOptions{}
	cmd := &cobra.Command{
		Use:   "claim [ID...]",
		Short: "Claim messages to work on, the most urgent first",
		Long: `Claim messages to work on, the most urgent first. A claim is exclusive for the
time --for. Claims that the agent already holds come first, so that it finds them
again after a crash. --thread, --task, --correlation and --from select messages,
among those already held too.

With IDs (message ids or revisions), claim exactly these messages: all or none.
If one cannot be claimed, the error says why: exit code 5 if another agent holds
it, or it is finished, delayed, or follows an unfinished message with its
ordering key; exit code 3 if it is in none of the agent's mailboxes.

Finish a message with ack, report failure with nack, return it with release.
Exit code 4: there was nothing to claim, or nothing came within --wait.`,
		Example: `  brokerctl --agent builder-1 claim --wait 30s -o json
  brokerctl --agent builder-1 claim --role builder --limit 5 --for 2h
  brokerctl --agent builder-1 claim 4711`,
		Args:              messageIDs,
		ValidArgsFunction: c.completeArgs(true, waitingWords),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(c, cmd, args) },
	}
	o.AddFlags(cmd.Flags())
	return cmd
}

func (o *claimOptions) run(c *cli, cmd *cobra.Command, ids []string) error {
	request, err := o.request(cmd, ids)
	if err != nil {
		return err
	}
	broker, err := c.connect(cmd.Context())
	if err != nil {
		return err
	}
	if request.ThreadId, err = c.threadOf(cmd.Context(), request.GetThreadId()); err != nil {
		return err
	}
	done := c.progress(o.wait, "work")
	answer, err := broker.Messages().ClaimMessages(cmd.Context(), request)
	done()
	if err != nil {
		return err
	}
	if len(answer.GetClaims()) == 0 {
		return failf(exitNothing, "%s", c.voice().WhyNoMessage(answer, waited(o.wait)))
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
			c.render(w, c.voice().Claimed(claim))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// request builds what the command line describes.
func (o *claimOptions) request(cmd *cobra.Command, ids []string) (*pb.ClaimMessagesRequest, error) {
	r := &pb.ClaimMessagesRequest{Consumer: o.consumer, Mailboxes: o.from(), ClaimFor: durationpb.New(o.claimFor), Ids: ids}
	if len(ids) > 0 {
		return r, onlyWithIDs(cmd, "consumer", "mailbox", "role", "for")
	}
	lowest, err := parsePriority("lowest-priority", o.lowestPriority)
	r.Types, r.LowestPriority, r.Max, r.Wait = o.types, lowest, o.limit, duration(o.wait)
	r.ThreadId, r.TaskId, r.CorrelationId, r.Senders = o.thread, o.task, o.correlation, o.senders
	return r, err
}

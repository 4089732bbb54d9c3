package messages

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/mail"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/words"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// claimOptions are the options of claim.
type claimOptions struct {
	mail.TakeOptions
	thread, task, correlation string
	senders                   []string

	limit    int32
	wait     time.Duration
	claimFor time.Duration
}

// AddFlags adds the options.
func (o *claimOptions) AddFlags(f *pflag.FlagSet) {
	o.TakeOptions.AddFlags(f)
	f.StringVar(&o.thread, "thread", "", "only of this thread")
	f.StringVar(&o.task, "task", "", "only of this task")
	f.StringVar(&o.correlation, "correlation", "", "only with this correlation id")
	f.StringSliceVar(&o.senders, "from", nil, "only from this sender; repeatable")
	f.StringVar(&o.Consumer, "consumer", "", "tells workers with the same agent name apart")
	f.Int32Var(&o.limit, "limit", 1, "claims to hold, those already held included")
	command.DurationVar(f, &o.wait, "wait", 0, "if there is none, wait up to this long")
	command.DurationVar(f, &o.claimFor, "for", 30*time.Minute, "how long a new claim lasts; extend prolongs it")
}

// NewClaimCommand returns the command brokerctl claim.
func NewClaimCommand(c *command.Caller) *cobra.Command {
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
		ValidArgsFunction: c.CompleteArgs(true, words.WaitingWords),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(c, cmd, args) },
	}
	o.AddFlags(cmd.Flags())
	return cmd
}

func (o *claimOptions) run(c *command.Caller, cmd *cobra.Command, ids []string) error {
	request, err := o.request(cmd, ids)
	if err != nil {
		return err
	}
	broker, err := c.Connect(cmd.Context())
	if err != nil {
		return err
	}
	if request.ThreadId, err = threadOf(c, cmd.Context(), request.GetThreadId()); err != nil {
		return err
	}
	done := c.Progress(o.wait, "work")
	answer, err := broker.Messages().ClaimMessages(cmd.Context(), request)
	done()
	if err != nil {
		return err
	}
	if len(answer.GetClaims()) == 0 {
		return problem.Failf(problem.ExitNothing, "%s", c.Voice().WhyNoMessage(answer, prompt.Either(o.wait > 0, prompt.Duration(o.wait), "")))
	}
	format, err := c.Format()
	if err != nil {
		return err
	}
	for i, claim := range answer.GetClaims() {
		if i > 0 && format == output.FormatTable {
			fmt.Fprintln(cmd.OutOrStdout())
		}
		err := c.Show(cmd, claim, func(w io.Writer) {
			mail.Render(c, w, c.Voice().Claimed(claim))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// request builds what the command line describes.
func (o *claimOptions) request(cmd *cobra.Command, ids []string) (*pb.ClaimMessagesRequest, error) {
	r := &pb.ClaimMessagesRequest{Consumer: o.Consumer, Mailboxes: o.From(), ClaimFor: durationpb.New(o.claimFor), Ids: ids}
	if len(ids) > 0 {
		return r, onlyWithIDs(cmd, "consumer", "mailbox", "role", "for")
	}
	lowest, err := command.ParsePriority("lowest-priority", o.LowestPriority)
	r.Types, r.LowestPriority, r.Max, r.Wait = o.Types, lowest, o.limit, command.Duration(o.wait)
	r.ThreadId, r.TaskId, r.CorrelationId, r.Senders = o.thread, o.task, o.correlation, o.senders
	return r, err
}

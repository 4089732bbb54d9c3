package messages

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/mail"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/words"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// NewClaimCommand returns the command brokerctl claim.
func NewClaimCommand(c *command.Caller) *cobra.Command { return takingIDs(claimCommand.Command(c)) }

var claimCommand = command.Procedure[*pb.ClaimMessagesRequest]{
	Page: command.Page{
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
	},
	Args: waitingIDs,
	Options: append([]command.Option{
		{Field: "thread_id", Name: "thread", Kind: threadName, Usage: "only of this thread"},
		{Field: "task_id", Name: "task", Kind: words.Task, Usage: "only of this task"},
		{Field: "correlation_id", Name: "correlation", Kind: anID, Usage: "only with this correlation id"},
		{Field: "senders", Name: "from", Comma: true, Kind: words.Agent, Usage: "only from this sender; repeatable"},
		{Field: "consumer", Kind: command.Name, Usage: "tells workers with the same agent name apart"},
		{Field: "max", Name: "limit", Value: "1", Usage: "claims to hold, those already held included"},
		{Field: "wait", Usage: "if there is none, wait up to this long"},
		{Field: "claim_for", Name: "for", Value: "30m", Zero: true, Usage: "how long a new claim lasts; extend prolongs it"},
	}, mail.Taking...),
	Says: true,
	Run: func(g *command.Given, q *pb.ClaimMessagesRequest) error {
		c, cmd := g.Caller, g.Cmd
		mail.AddQueue(g, q)
		if len(q.GetIds()) > 0 {
			q.Max = 0
			if err := onlyWithIDs(cmd, "consumer", "mailbox", "role", "for"); err != nil {
				return err
			}
		}
		broker, err := c.Connect(cmd.Context())
		if err != nil {
			return err
		}
		if q.ThreadId, err = threadOf(c, cmd.Context(), q.GetThreadId()); err != nil {
			return err
		}
		wait := q.GetWait().AsDuration()
		done := c.Progress(wait, "work")
		answer, err := broker.Messages().ClaimMessages(cmd.Context(), q)
		done()
		if err != nil {
			return err
		}
		if len(answer.GetClaims()) == 0 {
			waited := prompt.Either(wait > 0, prompt.Duration(wait), "")
			return problem.Failf(problem.ExitNothing, "%s", c.Voice().WhyNoMessage(answer, waited))
		}
		format, err := c.Format()
		if err != nil {
			return err
		}
		for i, claim := range answer.GetClaims() {
			if i > 0 && format == output.FormatTable {
				fmt.Fprintln(cmd.OutOrStdout())
			}
			err := c.Show(cmd, claim, func(w io.Writer) { mail.Render(c, w, c.Voice().Claimed(claim)) })
			if err != nil {
				return err
			}
		}
		return nil
	},
}

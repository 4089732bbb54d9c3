package top

import (
	"time"

	"github.com/spf13/cobra"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
)

// NewCommand returns the command brokerctl top.
func NewCommand(c *command.Caller) *cobra.Command {
	return &cobra.Command{
		Use:   "top",
		Short: "Show the team live on a terminal, and act on what is stuck (operators)",
		Long: `Show the session live on a terminal of 80 columns and 24 rows or more, in eight
views:

  1 Attention        what needs a person, worst first
  2 Team             what agents do, which are silent, what they hold
  3 Queues           where work gets old
  4 Timeline         the newest events
  5 Conversations    open questions and answers
  6 Dead letters     what failed, and why
  7 Locks and turns  who blocks whom
  8 Work             tasks, votes, decisions, handoffs, blockers

Enter opens a row with its details, a offers the actions on it. Each action asks
for a confirmation. / filters the rows, s sorts them, c shows another session, ?
lists all keys. Observers have no actions, and agents may not watch the session:
give no --agent.

When the connection breaks, top says so, keeps the last screen, and resumes by
itself. Without a terminal, use brokerctl overview --follow.`,
		Example: `  brokerctl top
  brokerctl --session web top`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			in, out := cmd.InOrStdin(), cmd.OutOrStdout()
			if !output.IsTerminal(in) || !output.IsTerminal(out) {
				return problem.Usagef("top needs a terminal; use brokerctl overview --follow")
			}
			if format, _ := c.Format(); format != output.FormatTable { // checked before
				return problem.Usagef("top shows a screen and has no -o %s; use brokerctl overview --follow -o %s", format,
					format)
			}
			options := Options{
				Color: c.Screen().Color, Now: c.Env.Now, Command: c.Proposed,
				Explain: func(err error) string { _, text := c.Explain(err); return text },
			}
			return Run(cmd.Context(), in, out, options,
				func(lost func(error, time.Duration)) (*client.Client, error) {
					return c.Connect(cmd.Context(), client.WithRetryNotice(lost))
				})
		},
	}
}

package shared

import (
	"io"

	"github.com/spf13/cobra"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/turn"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// AcquireOptions say how lock acquire and token acquire ask.
type AcquireOptions struct{ keep, dryRun bool }

// acquireFlags are the options of lock acquire and token acquire.
var acquireFlags = append([]command.Option{
	holderFlag,
	{Field: "keep_ticket", Name: "keep", Usage: "stay in the queue after --wait; a notice reports the grant"},
	{Field: "dry_run", Usage: "only report whether it would be granted now"},
	command.RequestID,
}, turn.Options...)

// acquireApart are those of them that exclude each other.
var acquireApart = [][]string{{"dry-run", "wait"}, {"dry-run", "keep"}}

// holderFlag says which worker of the agent owns what is asked for.
var holderFlag = command.Option{
	Name: "holder", Type: "string", Says: "holder", Kind: command.Name,
	Usage: "worker of the agent that is the owner; workers exclude each other (" + turn.HolderVariable + "); '': none",
}

// HolderOf returns whom --holder, or else the environment, names. What the environment says is of its agent, not of
// another.
func HolderOf(g *command.Given) (string, error) {
	if g.Cmd.Flags().Changed("holder") {
		return g.Text("holder"), nil
	}
	s, err := g.Settings()
	if err != nil || s.OtherAgent {
		return "", err
	}
	return g.Env.Get(turn.HolderVariable), nil
}

// ShowAcquired prints the status of a request for paths, or for a token, which has no paths. Unless it was granted,
// the error has the exit code.
func ShowAcquired(c *command.Caller,
	cmd *cobra.Command, answer turn.Acquired, paths []string, o *AcquireOptions, text func(w io.Writer),
) error {
	if answer.GetOutcome() == pb.AcquireOutcome_ACQUIRE_OUTCOME_GRANTED {
		return c.Show(cmd, answer, func(w io.Writer) {
			if o.dryRun {
				prompt.Say(w, "it would be granted now")
				return
			}
			text(w)
		})
	}
	if format, err := c.Format(); err != nil {
		return err
	} else if format == output.FormatJSON {
		if err := output.WriteJSON(cmd.OutOrStdout(), answer); err != nil {
			return err
		}
	}
	err := turn.NotAcquired(c, answer, paths)
	if answer.GetTicket() == 0 {
		return err
	}
	next := "the agent stays in the queue until it releases the ticket; a notice reports the grant"
	if !o.keep {
		next = "the agent stays in the queue for 10s: run the command again to keep the place, or release the ticket"
	}
	return problem.Failf(problem.ExitNothing, "%v; %s", err, next)
}

// notReleased is the error of a release that found nothing.
func notReleased(broker *client.Client, what string) error {
	return problem.Failf(problem.ExitLost, "the agent %s neither holds %s nor waits for it: "+
		"it never did, or it has lost it; stop the work that needs it", broker.Identity().Agent, what)
}

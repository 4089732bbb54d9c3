package messages

import (
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/words"
)

// waitingIDs are the arguments of commands that take message ids or revisions.
var waitingIDs = []command.Arg{{Field: "ids", Kind: command.Kind{Words: words.WaitingWords}}}

// takingIDs makes a command refuse arguments that are no ids.
func takingIDs(cmd *cobra.Command) *cobra.Command {
	cmd.Args = func(_ *cobra.Command, args []string) error {
		for _, arg := range args {
			if !words.IsID(arg) {
				return problem.Usagef("%q is neither a message's id nor its revision", arg)
			}
		}
		return nil
	}
	return cmd
}

// onlyWithIDs refuses options of a command that do not go together with ids as arguments.
func onlyWithIDs(cmd *cobra.Command, allowed ...string) (err error) {
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		if f.Changed && !slices.Contains(allowed, f.Name) {
			err = problem.Usagef("IDs do not go together with --%s", f.Name)
		}
	})
	return err
}

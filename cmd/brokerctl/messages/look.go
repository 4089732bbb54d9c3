package messages

import (
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/words"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/jsonform"
)

// lookOptions choose the order of a read, and whether it shows the queues too; inbox and receive
// share them.
type lookOptions struct {
	order  string
	queues bool
}

// AddFlags adds the options.
func (o *lookOptions) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&o.order, "order", "", "arrival, or priority: the order in which claim takes (default: arrival)")
	f.BoolVar(&o.queues, "queues", false, "also show messages that wait in the queues of the agent's role and channels")
}

// complete adds completions, and names the options that exclude these.
func (o *lookOptions) complete(cmd *cobra.Command, others ...string) {
	orders := jsonform.EnumNames(pb.MessageOrder(0).Descriptor())
	command.Must(cmd.RegisterFlagCompletionFunc("order", cobra.FixedCompletions(orders, cobra.ShellCompDirectiveNoFileComp)))
	for _, other := range others {
		cmd.MarkFlagsMutuallyExclusive("order", other)
		cmd.MarkFlagsMutuallyExclusive("queues", other)
	}
}

// parse returns the order in the API's form.
func (o *lookOptions) parse() (pb.MessageOrder, error) {
	order, err := output.ParseEnum("order", pb.MessageOrder(0).Descriptor(), o.order)
	return pb.MessageOrder(order), err
}

// messageIDs wants message ids or revisions as arguments.
func messageIDs(_ *cobra.Command, args []string) error {
	for _, arg := range args {
		if !words.IsID(arg) {
			return problem.Usagef("%q is neither a message's id nor its revision", arg)
		}
	}
	return nil
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

package command

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/setting"
	pb "brokerd/gen/brokerd/v1"
)

// A Caller is one run of brokerctl: its settings and output, and the connection once a command needs it.
type Caller struct {
	output.Output
	Client *client.Client
	Hurry  chan struct{}  // closed by the second signal
	Args   []string       // the command line
	Work   []*pb.WorkItem // that concerns the calling agent, once it was read

	Start    func(context.Context) error // starts a broker and connects to it
	starting bool                        // start has been called

	Unknown error // the command whose help was asked for does not exist

	Ran   bool           // a command's own code was reached: errors before that are usage errors
	flags *pflag.FlagSet // of that command

	unbound map[*cobra.Command]func() // adds the flags of declared commands
	forms   forms                     // the commands that say requests

	path      string   // of that command, such as brokerctl task list
	arguments []string // the words for them in its usage, such as RECEIVER and TEXT
}

// New returns a run of brokerctl with a command line.
func New(env setting.Environment, args ...string) *Caller {
	out := output.Output{Resolver: setting.Resolver{Env: env}}
	return &Caller{Output: out, Args: args, Hurry: make(chan struct{}), forms: forms{}}
}

// MarkRuns notes, for every command below, that its own code was reached.
func (c *Caller) MarkRuns(cmd *cobra.Command) {
	if runE := cmd.RunE; runE != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			c.Ran, c.flags, c.path, c.arguments = true, cmd.Flags(), cmd.CommandPath(), ArgumentWords(cmd)
			return runE(cmd, args)
		}
	}
	for _, sub := range cmd.Commands() {
		c.MarkRuns(sub)
	}
}

// Group is a command that only has commands below it.
func Group(use, short, long, example string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use:                   use + " COMMAND",
		Short:                 short,
		Long:                  long,
		Example:               example,
		DisableFlagsInUseLine: true,
		Args:                  cobra.ArbitraryArgs,
		ValidArgsFunction:     cobra.NoFileCompletions,
		RunE:                  ChooseCommand,
	}
	cmd.AddCommand(commands...)
	return cmd
}

// ChooseCommand is what a group does by itself: it shows its help. An unknown command below it would get
// help and exit code 0 from cobra, which a script takes for success.
func ChooseCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	return UnknownCommand(cmd, args)
}

// Must is for errors that only a defect of the command tree can cause.
func Must(err error) {
	if err != nil {
		panic(fmt.Sprintf("build command tree: %v", err))
	}
}

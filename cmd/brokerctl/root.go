package main

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"brokerd"
	"brokerd/client"
	"brokerd/cmd/brokerctl/harness"
	"brokerd/cmd/internal/manual"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// cli is one run of brokerctl: the global options, and the connection once a command needs it.
type cli struct {
	env    environment
	global globalOptions
	client *client.Client
	hurry  chan struct{}  // closed by the second signal
	found  *settings      // the settings of this run, once they were read
	args   []string       // the command line
	work   []*pb.WorkItem // that concerns the calling agent, once it was read

	prompt *prompt.Writer // standard output, if this run prints for a language model

	starting bool // this run starts a broker, because none ran

	hooked harness.Session // of the coding agent whose hook runs this; zero outside of hooks

	unknown error // the command whose help was asked for does not exist

	ran   bool           // a command's own code was reached: errors before that are usage errors
	flags *pflag.FlagSet // of that command

	path      string   // of that command, such as brokerctl task list
	arguments []string // the words for them in its usage, such as RECEIVER and TEXT
}

// globalOptions are the options of every command.
type globalOptions struct {
	addr    string
	session string
	agent   string
	output  string

	noConfig bool
	screenOptions

	operator bool // --agent '' was given: act as operator whatever the environment says
	// yields is set where setup writes --agent into a file that all sessions of a folder read: the environment, and an init
	// in the session of the coding agent, speak of one session, and win.
	yields bool
}

// AddFlags adds the options; the environment gives their defaults when they are used.
func (o *globalOptions) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&o.addr, "addr", "", "the broker: unix:PATH, tls://HOST:PORT or HOST:PORT (BROKERD_ADDR; default: the local daemon)")
	f.StringVar(&o.session, "session", "", "the session to work in (BROKERD_SESSION; default: default)")
	f.StringVar(&o.agent, "agent", "", "the agent to act as (BROKERD_AGENT; none or '': as operator)")
	f.StringVarP(&o.output, "output", "o", "", "table, json or prompt (BROKERD_OUTPUT; default: table)")
	f.BoolVar(&o.noConfig, "no-config", false, "ignore .brokerd.yaml")
	o.screenOptions.AddFlags(f)
}

const rootLong = `brokerctl is the command line of brokerd, the broker through which agents work
together.

With -o json, commands print one object per line: 64-bit numbers as numbers,
payloads nested, defaults included, durations such as "30s", times in RFC 3339.
With -o prompt, they print short text for a language model.`

// newRoot builds the command tree of one run.
func newRoot(c *cli) *cobra.Command {
	root := &cobra.Command{
		Use:   "brokerctl",
		Short: "The command line of brokerd",
		Long:  rootLong,
		Example: `  brokerctl agent register builder-1 --role builder
  brokerctl --agent lead send builder-1 "Add login" --payload '{"task_id":"t1"}'
  brokerctl --agent builder-1 claim --wait 30s
  brokerctl --agent builder-1 ack`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       brokerd.ThisBuild().String(),
		Args:          cobra.ArbitraryArgs,
		RunE:          chooseCommand,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			c.global.operator = cmd.Flags().Changed("agent") && c.global.agent == ""
			if err := refuseEmptyFlags(cmd.Flags()); err != nil {
				return err
			}
			format, err := c.format()
			if err == nil {
				err = c.global.check()
			}
			if err == nil {
				c.frameOutput(cmd, format)
			}
			return err
		},
	}
	c.global.AddFlags(root.PersistentFlags())
	root.SetVersionTemplate("brokerctl {{.Version}}\n")
	root.AddGroup(
		&cobra.Group{ID: "start", Title: "Start here:"},
		&cobra.Group{ID: "messages", Title: "Messages:"},
		&cobra.Group{ID: "work", Title: "Work:"},
		&cobra.Group{ID: "together", Title: "Coordination:"},
		&cobra.Group{ID: "who", Title: "Agents, channels, sessions:"},
		&cobra.Group{ID: "watch", Title: "Observe:"},
		&cobra.Group{ID: "other", Title: "Other:"},
	)
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(explainFlagError)
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		if given := cmd.Flags().Args(); cmd.HasSubCommands() && len(given) > 0 { // with --help
			c.unknown = unknownCommand(cmd, given)
			return
		}
		writeHelp(cmd.OutOrStdout(), cmd)
	})
	add := func(id string, commands ...*cobra.Command) {
		for _, cmd := range commands {
			cmd.GroupID = id
			root.AddCommand(cmd)
		}
	}
	add("start", newDemoCommand(c), newUpCommand(c), newDownCommand(c), newSetupCommand(c), newInitCommand(c), newGuideCommand(c),
		newDashboardCommand(c), newExplainCommand(c))
	add("messages", newSendCommand(c), newAskCommand(c), newReplyCommand(c), newThreadCommand(c),
		newReceiveCommand(c), newInboxCommand(c), newMessageCommand(c), newMailboxCommand(c), newDLQCommand(c),
		newTypeCommand(c))
	add("work", newNextCommand(c), newClaimCommand(c), newAckCommand(c), newNackCommand(c), newExtendCommand(c), newReleaseCommand(c), newWorkCommand(c), newTaskCommand(c), newReviewCommand(c),
		newPlanCommand(c), newDecisionCommand(c),
		newBlockerCommand(c), newHandoffCommand(c),
		newVoteCommand(c))
	add("who", newAgentCommand(c), newChannelCommand(c), newSessionCommand(c), newCredentialCommand(c))
	add("together", newLockCommand(c), newTokenCommand(c), newStateCommand(c), newArtifactCommand(c), newHookCommand(c),
		newMCPCommand(c))
	add("watch", newEventCommand(c), newStatusCommand(c), newOverviewCommand(c), newTopCommand(c),
		newReportCommand(c), newWhoamiCommand(c), newPingCommand(c), newAdminCommand(c))
	add("other", newTrustCommand(c), newBridgeCommand(c),
		newBenchCommand(c), newCallCommand(c), newVersionCommand(c),
		newCompletionCommand(), manual.NewCommand(flagUsages))
	help := newHelpCommand()
	help.GroupID = "other"
	root.SetHelpCommand(help)
	root.AddCommand(topics()...)
	addAliases(root)
	must(root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(outputs, cobra.ShellCompDirectiveNoFileComp)))
	must(root.RegisterFlagCompletionFunc("color", cobra.FixedCompletions(colorChoices, cobra.ShellCompDirectiveNoFileComp)))
	if slices.Contains(c.args, cobra.ShellCompRequestCmd) || slices.Contains(c.args, cobra.ShellCompNoDescRequestCmd) {
		c.completeFlags(root) // this is the slowest part, and only a shell's request for completions needs it
	}
	refuseEmptyArguments(root)
	c.markRuns(root)
	return root
}

// markRuns notes, for every command below, that its own code was reached.
func (c *cli) markRuns(cmd *cobra.Command) {
	if runE := cmd.RunE; runE != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			c.ran, c.flags, c.path, c.arguments = true, cmd.Flags(), cmd.CommandPath(), argumentWords(cmd)
			return runE(cmd, args)
		}
	}
	for _, sub := range cmd.Commands() {
		c.markRuns(sub)
	}
}

// group is a command that only has commands below it.
func group(use, short, long, example string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use:                   use + " COMMAND",
		Short:                 short,
		Long:                  long,
		Example:               example,
		DisableFlagsInUseLine: true,
		Args:                  cobra.ArbitraryArgs,
		ValidArgsFunction:     cobra.NoFileCompletions,
		RunE:                  chooseCommand,
	}
	cmd.AddCommand(commands...)
	return cmd
}

// chooseCommand is what a group does by itself: it shows its help. An unknown command below it would get
// help and exit code 0 from cobra, which a script takes for success.
func chooseCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	return unknownCommand(cmd, args)
}

// must is for errors that only a defect of the command tree can cause.
func must(err error) {
	if err != nil {
		panic(fmt.Sprintf("build command tree: %v", err))
	}
}

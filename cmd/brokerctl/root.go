package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"brokerd"
	"brokerd/client"
)

// cli is one run of brokerctl: the global options, and the connection once a command needs it.
type cli struct {
	env    environment
	global globalOptions
	client *client.Client
	hurry  chan struct{} // closed by the second signal
	found  *settings     // the settings of this run, once they were read

	hookedBy string // the session of the coding agent whose hook runs this; "" outside of hooks

	ran bool // a command's own code was reached: errors before that are usage errors
}

// globalOptions are the options of every command.
type globalOptions struct {
	addr    string
	session string
	agent   string
	output  string

	operator bool // --agent '' was given: act as operator whatever the environment says
}

// AddFlags adds the options; the environment gives their defaults when they are used.
func (o *globalOptions) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&o.addr, "addr", "", "the broker: unix:PATH or HOST:PORT (BROKERD_ADDR; default: the local daemon)")
	f.StringVar(&o.session, "session", "", "the session to work in (BROKERD_SESSION; default: default)")
	f.StringVar(&o.agent, "agent", "", "the agent to act as (BROKERD_AGENT; none or '': as operator)")
	f.StringVarP(&o.output, "output", "o", "", "table, json or prompt (BROKERD_OUTPUT; default: table)")
}

const rootLong = `brokerctl speaks to brokerd, the broker through which agents work together.

Receivers are written the same everywhere:
  builder-1          one agent
  role:builder       one agent of a role, whoever claims first (--all: each of them)
  channel:general    every subscriber of a channel (--one: one of them)
  'builder-*'        every agent whose name matches
  all_builders       every agent of the role builder, unless an agent has that name
  everyone           every registered agent but the sender; all, ALL and '*' mean the same

Output (-o): table for people; json, one object a line, with 64-bit numbers as numbers, payloads
nested, defaults shown, durations such as "30s" and times in RFC 3339; prompt, short text for a
language model.

Exit codes: 0 done, 1 error, 2 usage, 3 not found, 4 nothing was there or came in time, 5 conflict,
6 lost (stop working on it), 7 denied, 69 broker unreachable, 128+N ended by signal N.

Environment: BROKERD_ADDR, BROKERD_SESSION, BROKERD_AGENT, BROKERD_INCARNATION, BROKERD_FENCE,
BROKERD_CREDENTIAL_FILE, BROKERD_OUTPUT, BROKERD_DATA (the local daemon's data folder), BROKERD_ROOT (what paths of
locks are relative to), BROKERD_HOLDER (which worker of the agent locks). Commands that run a command also set
BROKERD_ROLE, the agent's role.

A file .brokerd.yaml in the working folder or one above it may give addr, session, agents, output
and credential_file (see brokerctl init). Flags win over the environment, and that over the file.`

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
		SilenceErrors:              true,
		SilenceUsage:               true,
		SuggestionsMinimumDistance: 2,
		Version:                    brokerd.ThisBuild().String(),
		Args:                       cobra.ArbitraryArgs,
		RunE:                       chooseCommand,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			c.global.operator = cmd.Flags().Changed("agent") && c.global.agent == ""
			_, err := c.format()
			return err
		},
	}
	c.global.AddFlags(root.PersistentFlags())
	root.SetVersionTemplate("brokerctl {{.Version}}\n")
	root.AddGroup(
		&cobra.Group{ID: "messages", Title: "Messages:"},
		&cobra.Group{ID: "work", Title: "Taking work:"},
		&cobra.Group{ID: "together", Title: "Working together:"},
		&cobra.Group{ID: "who", Title: "Agents, channels, sessions:"},
		&cobra.Group{ID: "watch", Title: "Looking on:"},
		&cobra.Group{ID: "other", Title: "Other:"},
	)
	root.SetHelpCommandGroupID("other")
	root.SetCompletionCommandGroupID("other")
	add := func(id string, commands ...*cobra.Command) {
		for _, cmd := range commands {
			cmd.GroupID = id
			root.AddCommand(cmd)
		}
	}
	add("messages", newSendCommand(c), newAskCommand(c), newReplyCommand(c), newThreadCommand(c),
		newReceiveCommand(c), newInboxCommand(c), newMessageCommand(c), newDLQCommand(c))
	add("work", newNextCommand(c), newClaimCommand(c), newAckCommand(c), newNackCommand(c), newExtendCommand(c), newReleaseCommand(c), newWorkCommand(c), newReviewCommand(c))
	add("who", newAgentCommand(c), newChannelCommand(c), newSessionCommand(c))
	add("together", newLockCommand(c), newTokenCommand(c), newStateCommand(c), newHookCommand(c))
	add("watch", newEventCommand(c), newStatusCommand(c), newExplainCommand(c), newWhoamiCommand(c), newPingCommand(c), newAdminCommand(c))
	add("other", newInitCommand(c), newGuideCommand(c), newDemoCommand(c), newBenchCommand(c), newVersionCommand(c))
	must(root.RegisterFlagCompletionFunc("agent", c.completeAgents))
	must(root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(outputs, cobra.ShellCompDirectiveNoFileComp)))
	c.markRuns(root)
	return root
}

// markRuns notes, for every command below, that its own code was reached.
func (c *cli) markRuns(cmd *cobra.Command) {
	if runE := cmd.RunE; runE != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			c.ran = true
			return runE(cmd, args)
		}
	}
	for _, sub := range cmd.Commands() {
		c.markRuns(sub)
	}
}

// group is a command that only has commands below it.
func group(use, short, long string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use:                        use + " COMMAND",
		Short:                      short,
		Long:                       long,
		DisableFlagsInUseLine:      true,
		SuggestionsMinimumDistance: 2,
		Args:                       cobra.ArbitraryArgs,
		ValidArgsFunction:          cobra.NoFileCompletions,
		RunE:                       chooseCommand,
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
	hint := ""
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		hint = "; did you mean " + strings.Join(near, " or ") + "?"
	}
	return usagef("unknown command %q for %s%s", args[0], cmd.CommandPath(), hint)
}

// must is for errors that only a defect of the command tree can cause.
func must(err error) {
	if err != nil {
		panic(fmt.Sprintf("build command tree: %v", err))
	}
}

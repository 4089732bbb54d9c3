package main

import (
	"github.com/spf13/cobra"

	"brokerd"
	"brokerd/cmd/brokerctl/authority"
	"brokerd/cmd/brokerctl/bench"
	"brokerd/cmd/brokerctl/bridge"
	"brokerd/cmd/brokerctl/call"
	"brokerd/cmd/brokerctl/decisions"
	"brokerd/cmd/brokerctl/demo"
	"brokerd/cmd/brokerctl/hook"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/setting"
	"brokerd/cmd/brokerctl/internal/words"
	"brokerd/cmd/brokerctl/local"
	"brokerd/cmd/brokerctl/mcp"
	"brokerd/cmd/brokerctl/messages"
	"brokerd/cmd/brokerctl/observe"
	"brokerd/cmd/brokerctl/people"
	"brokerd/cmd/brokerctl/setup"
	"brokerd/cmd/brokerctl/shared"
	"brokerd/cmd/brokerctl/supervise"
	"brokerd/cmd/brokerctl/top"
	"brokerd/cmd/brokerctl/work"
	"brokerd/cmd/internal/manual"
)

const rootLong = `brokerctl is the command line of brokerd, the broker through which agents work
together.

With -o json, commands print one object per line: 64-bit numbers as numbers,
defaults included, durations such as "30s", times in RFC 3339. -o prompt prints
short text for a language model, -o id only ids.`

// newRoot builds the command tree of one run.
func newRoot(c *command.Caller) *cobra.Command {
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
		Annotations: map[string]string{
			command.StartHere: "up,demo,setup,init,agent register,send,claim,explain,dashboard",
		},
		Args: cobra.ArbitraryArgs,
		RunE: command.ChooseCommand,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			c.Global.Operator = cmd.Flags().Changed("agent") && c.Global.Agent == ""
			if err := command.RefuseEmptyFlags(cmd.Flags()); err != nil {
				return err
			}
			format, err := c.Format()
			if err == nil {
				err = c.Global.Check()
			}
			if err != nil {
				return err
			}
			return c.FrameOutput(cmd, format)
		},
	}
	c.Global.AddFlags(root.PersistentFlags())
	root.SetVersionTemplate("brokerctl {{.Version}}\n")
	root.AddGroup(
		&cobra.Group{ID: "messages", Title: "Messages:"},
		&cobra.Group{ID: "work", Title: "Work:"},
		&cobra.Group{ID: "together", Title: "Coordination:"},
		&cobra.Group{ID: "who", Title: "Agents, channels, sessions:"},
		&cobra.Group{ID: "watch", Title: "Observe:"},
		&cobra.Group{ID: "here", Title: "This machine:"},
		&cobra.Group{ID: "other", Title: "Other:"},
	)
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(command.ExplainFlagError)
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		if given := cmd.Flags().Args(); cmd.HasSubCommands() && len(given) > 0 { // with --help
			c.Unknown = command.UnknownCommand(cmd, given)
			return
		}
		command.WriteHelp(cmd.OutOrStdout(), cmd)
	})
	add := func(id string, commands ...*cobra.Command) {
		for _, cmd := range commands {
			cmd.GroupID = id
			root.AddCommand(cmd)
		}
	}
	add("messages",
		messages.Send.Command(c), messages.Ask.Command(c), messages.NewReplyCommand(c), messages.NewThreadCommand(c),
		messages.Receive.Command(c), messages.NewInboxCommand(c), messages.NewMessageCommand(c),
		messages.NewMailboxCommand(c), messages.NewDLQCommand(c), messages.NewTypeCommand(c))
	add("work",
		work.Next.Command(c), messages.NewClaimCommand(c), messages.Ack.Command(c), messages.Nack.Command(c),
		messages.Extend.Command(c), messages.Release.Command(c), supervise.NewWorkCommand(c),
		with(work.NewTaskCommand(c), supervise.NewTaskWorkCommand(c)), work.NewBlockerCommand(c),
		work.NewHandoffCommand(c), decisions.NewReviewCommand(c), decisions.NewPlanCommand(c),
		decisions.NewDecisionCommand(c), decisions.NewVoteCommand(c))
	add("together",
		with(shared.NewLockCommand(c), supervise.NewLockRunCommand(c)),
		with(shared.NewTokenCommand(c), supervise.NewTokenRunCommand(c)),
		shared.NewStateCommand(c), shared.NewArtifactCommand(c), hook.NewCommand(c), mcp.Command.Command(c))
	agent := with(people.NewAgentCommand(c), supervise.NewAgentRunCommand(c), decisions.AgentShutdown.Command(c))
	add("who",
		with(agent, messages.NewDirectiveCommands(c)...), messages.NewChannelCommand(c), people.NewSessionCommand(c),
		with(people.NewCredentialCommand(c), authority.Command.Command(c)))
	add("watch",
		observe.NewEventCommand(c), observe.NewStatusCommand(c), observe.Overview.Command(c), top.NewCommand(c),
		work.ReportCommand.Command(c), people.NewWhoamiCommand(c), observe.Ping.Command(c), observe.NewAdminCommand(c),
		observe.NewExplainCommand(c))
	add("here",
		local.UpCommand.Command(c), local.DownCommand.Command(c), demo.NewCommand(c, local.OperatorLink), setup.NewCommand(c),
		setup.Init.Command(c), local.Dashboard.Command(c), local.NewTrustCommand(c))
	add("other",
		work.NewGuideCommand(c), bridge.NewCommand(c), bench.Command.Command(c), call.NewCommand(c), newVersionCommand(c),
		command.NewCompletionCommand(), manual.NewCommand(command.FlagUsages))
	help := command.NewHelpCommand()
	help.GroupID = "other"
	root.SetHelpCommand(help)
	root.AddCommand(topics()...)
	command.AddAliases(root)
	for name, kind := range map[string]command.Kind{
		"addr": {Name: "ADDRESS"}, "session": words.Session, "agent": words.Agent,
		"output": {Name: "FORMAT", Fixed: output.Outputs}, "color": {Name: "WHEN", Fixed: setting.ColorChoices},
	} {
		c.Describe(root, root.PersistentFlags().Lookup(name), kind)
	}
	c.Bind(root)
	command.RefuseEmptyArguments(root)
	c.MarkRuns(root)
	return root
}

// with adds commands of other packages to a group.
func with(group *cobra.Command, more ...*cobra.Command) *cobra.Command {
	group.AddCommand(more...)
	return group
}

package observe

import (
	"io"
	"strings"

	"github.com/spf13/cobra"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/jsonform"
	"brokerd/internal/prompt"
)

func newEventPublishCommand(c *command.Caller) *cobra.Command {
	request := &pb.PublishEventRequest{}
	var details, severity, category string
	cmd := &cobra.Command{
		Use:   "publish TYPE [SUMMARY]",
		Short: "Add your own event to the log",
		Long: `Add an event to the log. Agents that subscribe to the channel event/TYPE, or to
event/*, receive it as a message of type event, with a priority by severity:
debug 3, info 5, warning 6, error 7, critical 10.

TYPE is a word such as build.finished. First words that types of the broker use
(agent, message, session, …) are refused.`,
		Example: `  brokerctl --agent builder-1 event publish build.finished "All green"
  brokerctl --agent lead channel subscribe event/build.finished`,
		Args:              command.Between(1, "the type", "the summary"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			request.Type = args[0]
			if len(args) > 1 {
				request.Summary = args[1]
			}
			number, err := output.ParseEnum("category", pb.EventCategory(0).Descriptor(), category)
			if err != nil {
				return err
			}
			request.Category = pb.EventCategory(number)
			if number, err = output.ParseEnum("severity", pb.Severity(0).Descriptor(), severity); err != nil {
				return err
			}
			request.Severity = pb.Severity(number)
			if request.Details, err = c.JSONInput(cmd, "details", details); err != nil {
				return err
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Events().PublishEvent(cmd.Context(), request)
			if err != nil {
				return err
			}
			return c.Show(cmd, answer, func(w io.Writer) {
				blocker := prompt.Either(answer.GetBlocker() == "", "", "; blocker "+prompt.Clean(answer.GetBlocker()))
				prompt.Say(w, "published %d, %s, to %s%s", answer.GetRevision(), request.GetType(),
					prompt.Count(answer.GetSubscribers(), "subscriber"), blocker)
			})
		},
	}
	categories, severities := jsonform.EnumNames(pb.EventCategory(0).Descriptor()), jsonform.EnumNames(pb.Severity(0).Descriptor())
	cmd.Flags().StringVar(&details, "details", "", "a JSON object; @FILE reads a file, - standard input")
	cmd.Flags().StringVar(&category, "category", "", strings.Join(categories, ", ")+" (default: agent)")
	cmd.Flags().StringVar(&severity, "severity", "", strings.Join(severities, ", ")+" (default: info)")
	cmd.Flags().StringSliceVar(&request.Related, "related", nil, "what it is about, such as a message's revision; repeatable")
	cmd.Flags().StringVar(&request.TaskId, "task", "", "task that it belongs to")
	cmd.Flags().BoolVar(&request.Blocker, "blocker", false, "BlockerEncountered, BlockerResolved: also raise or resolve it")
	command.AddRequestID(cmd, &request.RequestId)
	command.Must(cmd.RegisterFlagCompletionFunc("category", cobra.FixedCompletions(categories, cobra.ShellCompDirectiveNoFileComp)))
	command.Must(cmd.RegisterFlagCompletionFunc("severity", cobra.FixedCompletions(severities, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

package observe

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/words"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// NewAdminCommand returns the commands of brokerctl admin.
func NewAdminCommand(c *command.Caller) *cobra.Command {
	return command.Group("admin", "Check, back up, prune and drain the broker, and move misdirected mail (operators)", "", "  brokerctl admin backup brokerd.tar",
		newAdminBackupCommand(c), newAdminCheckCommand(c), newAdminDrainCommand(c), newAdminMoveCommand(c), newAdminPruneCommand(c))
}

func newAdminCheckCommand(c *command.Caller) *cobra.Command {
	return &cobra.Command{
		Use:     "check",
		Short:   "Check the database and the broker's invariants",
		Example: "  brokerctl admin check",
		Long: `Check the database for damage, and the broker's invariants in all sessions, while
the broker runs. Exit code 1: something was found.`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Admin().CheckDatabase(cmd.Context(), &pb.CheckDatabaseRequest{})
			if err != nil {
				return err
			}
			err = c.Show(cmd, answer, func(w io.Writer) {
				for _, p := range answer.GetProblems() {
					fmt.Fprintln(w, prompt.OneLine(p))
				}
				prompt.Say(w, "checked %s, %s and %s up to revision %d: %s", prompt.Count(answer.GetMessages(), "message"),
					prompt.Count(answer.GetDeliveries(), "delivery"), prompt.Count(answer.GetEvents(), "event"), answer.GetRevision(), problems(len(answer.GetProblems())))
			})
			if n := len(answer.GetProblems()); err == nil && n > 0 {
				return problem.Failf(problem.ExitError, "the check found %s", problems(n))
			}
			return err
		},
	}
}

func problems(n int) string {
	if n == 0 {
		return "all is well"
	}
	return prompt.Count(n, "problem")
}

func newAdminMoveCommand(c *command.Caller) *cobra.Command {
	var ids []string
	var reason, requestID string
	cmd := &cobra.Command{
		Use:   "move FROM TO",
		Short: "Move messages that wait in one mailbox to another",
		Long: `Move the messages that wait in one mailbox to another: mail for a role that no agent has, or for an agent that will
not return. A mailbox is an agent's name, role:NAME or channel:NAME. Messages keep their ids, their order and their
failed attempts. Claimed and finished messages stay, and so do directives.`,
		Example: `  brokerctl admin move role:bulider role:builder
  brokerctl admin move builder-1 builder-2 --id 4711`,
		Args:              command.Exactly("the mailbox that the messages wait in", "the mailbox that they go to"),
		ValidArgsFunction: c.CompleteArgs(false, words.MailboxNames, words.MailboxNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(ids) == 0 && requestID != "" {
				return problem.Usagef("--request-id needs --id: a whole mailbox can take several requests")
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer := &pb.MoveMessagesResponse{}
			for moved := int32(0); ; {
				answer, err = broker.Admin().MoveMessages(cmd.Context(),
					&pb.MoveMessagesRequest{RequestId: requestID, From: args[0], To: args[1], Ids: ids, Reason: reason})
				if err != nil {
					return err
				}
				moved += answer.GetMoved()
				if len(ids) > 0 || answer.GetMoved() < command.MaxPage {
					answer.Moved = moved
					break
				}
			}
			return c.Show(cmd, answer, func(w io.Writer) {
				prompt.Say(w, "moved %s to %s%s", prompt.Count(answer.GetMoved(), "message"), args[1],
					prompt.Either(answer.GetLeft() > 0, fmt.Sprintf("; %d still in %s", answer.GetLeft(), args[0]), ""))
			})
		},
	}
	cmd.Flags().StringSliceVar(&ids, "id", nil, "move only the message with this id or revision; repeatable")
	cmd.Flags().StringVar(&reason, "reason", "", "why; for the log")
	command.AddRequestID(cmd, &requestID)
	return cmd
}

package messages

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/words"
	pb "brokerd/gen/brokerd/v1"
)

// NewDirectiveCommands returns agent nudge, halt, resume and terminate.
func NewDirectiveCommands(c *command.Caller) []*cobra.Command {
	var commands []*cobra.Command
	for _, d := range [][2]string{
		{"nudge", "Ask agents to read their messages"},
		{"halt", "Stop agents: they receive only directives until a resume"},
		{"resume", "Let halted agents continue"},
		{"terminate", "Tell agents to end"},
	} {
		commands = append(commands, newDirectiveCommand(c, d[0], d[1]))
	}
	return commands
}

// newDirectiveCommand sends a message of a type that agents obey. It goes to all who match, of a role too.
func newDirectiveCommand(c *command.Caller, kind, short string) *cobra.Command {
	var requestID string
	cmd := &cobra.Command{
		Use:   kind + " RECEIVER [TEXT...]",
		Short: short,
		Long: short + `. RECEIVER is an agent, role:NAME, channel:NAME, a pattern or everyone
(brokerctl help receivers), and always means every agent that matches.

Operators may send directives, and agents of the session's director roles.`,
		Example: fmt.Sprintf("  brokerctl agent %s builder-1\n  brokerctl --agent lead agent %s role:builder \"until the build is green\"", kind, kind),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return problem.Usagef("the receiver is missing")
			}
			return nil
		},
		ValidArgsFunction: c.CompleteArgs(false, words.ReceiverNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			target, err := command.ParseReceiver(args[0])
			if err != nil {
				return err
			}
			return send(c, cmd, &pb.SendMessagesRequest{RequestId: requestID, Messages: []*pb.Message{{
				Target: target, Reach: pb.Reach_REACH_ALL, Type: kind, Priority: 10, Subject: strings.Join(args[1:], " "),
			}}})
		},
	}
	command.AddRequestID(cmd, &requestID)
	return cmd
}

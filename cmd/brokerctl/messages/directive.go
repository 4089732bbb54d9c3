package messages

import (
	"github.com/spf13/cobra"

	"brokerd/cmd/brokerctl/internal/command"
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
	return command.Procedure[*pb.SendMessagesRequest]{
		Page: command.Page{
			Use:   kind + " RECEIVER [TEXT...]",
			Short: short,
			Long: short + `. RECEIVER is an agent, role:NAME, channel:NAME, a pattern or everyone
(brokerctl help receivers), and always means every agent that matches.

For operators, and for agents of the session's director roles.`,
			Example: "  brokerctl agent " + kind + " builder-1\n" +
				"  brokerctl --agent lead agent " + kind + ` role:builder "until the build is green"`,
		},
		Args: []command.Arg{
			{Field: "messages.target", Name: "the receiver", Kind: receiver},
			{Field: "messages.subject", Text: true, Kind: command.Joined},
		},
		Options: []command.Option{command.RequestID},
		Sets:    map[string]string{"messages.type": kind, "messages.priority": "10"},
		Says:    true,
		Run: func(g *command.Given, q *pb.SendMessagesRequest) error {
			m := q.GetMessages()[0]
			m.Reach, m.Type, m.Priority = pb.Reach_REACH_ALL, kind, 10
			return send(g.Caller, g.Cmd, q)
		},
	}.Command(c)
}

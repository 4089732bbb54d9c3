package registration

import (
	"time"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/setting"
	"brokerd/cmd/brokerctl/internal/words"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// ShellLease is how long an agent that only has a shell is believed alive: it forgets nothing by thinking.
const ShellLease = 24 * time.Hour

// Options are the options of agent register; lease is what it is unless it is given.
func Options(lease time.Duration) []command.Option {
	return []command.Option{
		{Field: "display_name", Kind: command.Name, Usage: "name for people"},
		{Field: "description", Usage: "what the agent is for"},
		{Field: "role", Kind: words.Role, Usage: "role, such as builder (default: the one in .brokerd.yaml)"},
		{Field: "capabilities", Name: "capability", Kind: command.Name, Usage: "a capability; repeatable"},
		{Field: "instance", Kind: command.Name, Usage: "instance of the role"},
		{Field: "worktree", Kind: command.Folder, Usage: "the agent's working folder"},
		{Field: "labels", Name: "label", Usage: "a label; repeatable"},
		{Field: "lease", Value: prompt.Duration(lease), Zero: true,
			Usage: "how long the agent may be silent before the broker considers it failed, 1s to 7d"},
		{Field: "replace", Usage: "forget what an earlier registration says, such as its capabilities and labels"},
	}
}

// AsDescribed adds to a registration what the configFile says of the agent.
func AsDescribed(c *command.Caller, q *pb.RegisterAgentRequest, agent string) {
	if agent == c.Found.Agent.Value {
		agent = c.Found.BaseOf()
	}
	setting.AsDescribed(q, c.Found.Content.Agents[agent])
}

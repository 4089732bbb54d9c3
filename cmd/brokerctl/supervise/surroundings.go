package supervise

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/turn"
	pb "brokerd/gen/brokerd/v1"
)

// surroundings returns the variables that tell a command about its agent beyond the identity of its
// calls: the role, the data folder of the broker, and the session's root. It omits a folder that it
// cannot determine; the command then inherits the variable as it is.
func surroundings(c *command.Caller, ctx context.Context, broker *client.Client) [][2]string {
	var role string
	if broker.Identity().Agent != "" {
		ctx, cancel := context.WithTimeout(ctx, command.CallTimeout)
		defer cancel()
		// An error leaves the role empty. The calls that the command is for report it.
		answer, _ := broker.Agents().GetAgent(ctx, &pb.GetAgentRequest{})
		role = answer.GetAgent().GetRole()
	}
	variables := [][2]string{{"BROKERD_ROLE", role}}
	if dir := dataDirOf(c, broker.Address()); dir != "" {
		variables = append(variables, [2]string{"BROKERD_DATA", dir})
	}
	if paths, err := turn.Paths(c, ""); err == nil {
		variables = append(variables, [2]string{"BROKERD_ROOT", paths.Root()})
	}
	return variables
}

// dataDirOf returns the data folder of the local broker with an address, or "" if it is not known.
// The broker's socket usually is in its data folder.
func dataDirOf(c *command.Caller, address string) string {
	candidates := []string{filepath.Dir(strings.TrimPrefix(strings.TrimPrefix(address, "unix:"), "//"))}
	if dir, err := c.Env.Client().DataDir(); err == nil {
		candidates = append(candidates, dir)
	}
	for _, dir := range candidates {
		text, err := os.ReadFile(filepath.Join(dir, "endpoint"))
		line, _, _ := strings.Cut(string(text), "\n")
		if err != nil || strings.TrimSpace(line) != address {
			continue
		}
		if dir, err := filepath.Abs(dir); err == nil {
			return dir
		}
	}
	return ""
}

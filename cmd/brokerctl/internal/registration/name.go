package registration

import (
	"context"
	"path/filepath"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
)

// An agent without a configured name is named after its folder, by the MCP server and by setup: the
// first of the numbered names that no agent of another folder has.

// AgentName makes a valid name of an agent from that of a folder.
func AgentName(folder string) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '.', r == '_', r == '-':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, filepath.Base(folder))
	name = strings.Trim(name[:min(len(name), 60)], ".-_")
	switch name {
	case "":
		return "agent"
	case "all", "everyone", "system":
		return name + "-agent"
	}
	return name
}

// TakenElsewhere reports whether an agent that works in another folder has registered the name.
func TakenElsewhere(ctx context.Context, broker *client.Client, name, folder string) (bool, error) {
	known, err := broker.Agents().GetAgent(ctx, &pb.GetAgentRequest{Name: name})
	if status.Code(err) == codes.NotFound {
		return false, nil
	}
	worktree := known.GetAgent().GetWorktree()
	return worktree != "" && worktree != folder, err
}

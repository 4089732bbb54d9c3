package main

import (
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/mcp"
)

// parseReceiver reads the one grammar for receivers: NAME, role:NAME, channel:NAME, a pattern,
// everyone. The broker checks names, and resolves all_ROLE.
func parseReceiver(s string) (*pb.Target, error) {
	target, err := mcp.ParseReceiver(s)
	return target, asUsage(err)
}

// agentOrRole reads a receiver that is an agent or a role.
func agentOrRole(s string) (agent, role string, err error) {
	agent, role, err = mcp.ParseAgentOrRole(s)
	return agent, role, asUsage(err)
}

// asUsage returns the error of a command line that cannot be read; nil for nil.
func asUsage(err error) error {
	if err == nil {
		return nil
	}
	return usagef("%v", err)
}

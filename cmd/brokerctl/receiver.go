package main

import (
	"strings"

	pb "brokerd/gen/brokerd/v1"
)

// parseReceiver reads the one grammar for receivers: NAME, role:NAME, channel:NAME, a pattern,
// everyone. The broker checks names, and resolves all_ROLE.
func parseReceiver(s string) (*pb.Target, error) {
	kind, name, qualified := strings.Cut(s, ":")
	switch {
	case s == "":
		return nil, usagef("the receiver is empty: give an agent's name, role:NAME, channel:NAME, a pattern such as 'builder-*', or everyone")
	case s == "everyone", s == "all", s == "ALL", s == "*":
		return &pb.Target{To: &pb.Target_Everyone{Everyone: true}}, nil
	case qualified && (kind == "role" || kind == "channel"):
		if name == "" {
			return nil, usagef("receiver %q names no %s: write %s:NAME", s, kind, kind)
		}
		if strings.ContainsAny(name, "*?") {
			return nil, usagef("receiver %q: patterns match agents' names only, not a %s's", s, kind)
		}
		if kind == "role" {
			return &pb.Target{To: &pb.Target_Role{Role: name}}, nil
		}
		return &pb.Target{To: &pb.Target_Channel{Channel: name}}, nil
	case strings.ContainsAny(s, "*?"):
		return &pb.Target{To: &pb.Target_Pattern{Pattern: s}}, nil
	}
	return &pb.Target{To: &pb.Target_Agent{Agent: s}}, nil
}

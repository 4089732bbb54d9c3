package mailfile

import (
	"strings"

	pb "brokerd/gen/brokerd/v1"
)

// Target reads the recipient of a file as brokerctl does: a name, role:NAME, channel:NAME, a pattern
// with * or ?. The broker itself reads the names all, ALL, all_ROLE and all_ROLEs.
func Target(to string) (*pb.Target, error) {
	if to == "" {
		return nil, Refusal("it names no recipient")
	}
	if name, ok := strings.CutPrefix(to, "role:"); ok {
		return &pb.Target{To: &pb.Target_Role{Role: name}}, nil
	}
	if name, ok := strings.CutPrefix(to, "channel:"); ok {
		return &pb.Target{To: &pb.Target_Channel{Channel: name}}, nil
	}
	if strings.ContainsAny(to, "*?") {
		return &pb.Target{To: &pb.Target_Pattern{Pattern: to}}, nil
	}
	return &pb.Target{To: &pb.Target_Agent{Agent: to}}, nil
}

// Recipient writes the target of a message for a file. everyone is the format's word.
func Recipient(t *pb.Target, everyone string) string {
	switch to := t.GetTo().(type) {
	case *pb.Target_Role:
		return "role:" + to.Role
	case *pb.Target_Channel:
		return "channel:" + to.Channel
	case *pb.Target_Pattern:
		if to.Pattern != "*" {
			return to.Pattern
		}
	case *pb.Target_Agent:
		return to.Agent
	}
	return everyone
}

package main

import (
	"strings"
	"testing"

	"brokerd/cmd/brokerctl/internal/output"
	pb "brokerd/gen/brokerd/v1"
)

func TestEnumOptions_AreReadInAnyCase(t *testing.T) {
	status := pb.AgentStatus(0).Descriptor()
	for _, in := range []string{"idle", "IDLE"} {
		if n, err := output.ParseEnum("status", status, in); err != nil || pb.AgentStatus(n) != pb.AgentStatus_AGENT_STATUS_IDLE {
			t.Errorf("%q: %v, %v", in, n, err)
		}
	}
	for _, in := range []string{"unspecified", "lazy"} {
		if _, err := output.ParseEnum("status", status, in); err == nil || !strings.Contains(err.Error(), "initializing, active, idle") {
			t.Errorf("%q: %v", in, err)
		}
	}
}

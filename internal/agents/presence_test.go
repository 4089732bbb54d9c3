package agents_test

import (
	"fmt"
	"testing"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/identity"
)

func TestPresence_CallsUnderUnknownNamesLeaveNothingInMemory(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	k.register("a", &pb.RegisterAgentRequest{})
	for i := range 100 {
		for _, incarnation := range []int64{0, 1, 7} {
			who := identity.Caller{Access: identity.Agent, Session: "default", Agent: fmt.Sprintf("unknown-%d", i), Incarnation: incarnation}
			k.registry.Presence.Began(t.Context(), who, "/brokerd.v1.AgentService/GetAgent", k.clock.Now())
			k.registry.Presence.Ended(who, "/brokerd.v1.AgentService/GetAgent", 0)
		}
	}
	if got := k.registry.Presence.Lives(); got != 1 {
		t.Errorf("%d agents are in memory, want only the registered one", got)
	}
}

package bridge_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/cmd/brokerctl/bridge/engine"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestRoles_ComeFromTheOptionsOrTheName(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "maildir")
	wanted := map[string]string{
		"agent_engineer_1_abc123": "engineer", "agent_engineer_002": "engineer", "agent_data_base_3_0f-9": "data_base",
		"agent_2": "agent", "scout-2": "scout", "critic": "critic", "7": "7", "reviewer-1": "judge", "reviewer-2": "critic",
	}
	for name := range wanted {
		d.write("messages/inbox/"+name+"/.keep", "")
	}
	d.start(func(o *engine.Options) {
		o.Roles = []engine.Role{{Names: "reviewer-1", Role: "judge"}, {Names: "rev*-*", Role: "critic"},
			{Names: "crit", Role: "odd"}}
	})
	for name, want := range wanted {
		if got := d.awaitAgent(name).GetRole(); got != want {
			t.Errorf("the role of %s is %s, not %s", name, got, want)
		}
	}
}

// register registers an agent as an operator does that sets its role alone.
func (d *team) register(name, role string) {
	d.t.Helper()
	if _, err := pb.NewAgentServiceClient(d.broker.Conn(name)).RegisterAgent(d.t.Context(),
		&pb.RegisterAgentRequest{Role: role, Lease: durationpb.New(apptest.LongLease)}); err != nil {
		d.t.Fatal(err)
	}
}

func TestRoles_OperatorSetsTheRoleAndTheFolderKeepsTheMail(t *testing.T) {
	t.Parallel()
	for format, inbox := range map[string]string{"maildir": "messages/inbox/scout",
		"agent-messages": agentRoot + "inbox/scout"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			d := newTeam(t, format)
			lead := d.broker.Registered("lead", "lead")
			d.write(inbox+"/.keep", "")
			stop := d.start()
			d.awaitAgent("scout")
			d.register("scout", "analyst")
			d.send(lead, toAgent("scout", "one"))
			d.send(lead, &pb.Message{Target: &pb.Target{To: &pb.Target_Role{Role: "analyst"}}, Body: "two"})
			d.awaitFiles(inbox, 2)
			if format == "agent-messages" {
				d.await(filepath.Dir(agentRoot+"registry.json"), "the role in registry.json", func() bool {
					agents, _ := d.object(agentRoot + "registry.json")["agents"].(map[string]any)
					scout, _ := agents["scout"].(map[string]any)
					return scout["role"] == "analyst"
				})
			}
			if text := stop(); !strings.Contains(text,
				"another client has registered scout, role analyst: the bridge still delivers") {
				t.Errorf("the bridge logged\n%s", text)
			}
			before := d.agent("scout").GetIncarnation()
			d.start()
			d.awaitEvents("the next bridge registers scout", func(_ context.Context) bool {
				return d.agent("scout").GetIncarnation() > before
			})
			if role := d.agent("scout").GetRole(); role != "analyst" {
				t.Errorf("the next bridge has registered scout as %s", role)
			}
		})
	}
}

package agents_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/sessions"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

// read runs fn on a snapshot.
func (k *kit) read(fn func(*store.Snapshot) error) {
	k.t.Helper()
	apptest.NoError(k.t, k.store.Read(k.t.Context(), fn))
}

func names(list []*pb.Agent) []string {
	var out []string
	for _, a := range list {
		out = append(out, a.GetName())
	}
	return out
}

func TestGet_NameThatIsNotRegisteredNamesTheNearest(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	get := func(name string) error {
		t.Helper()
		_, err := k.api.GetAgent(testkit.Operator(t.Context()), &pb.GetAgentRequest{Name: name})
		if status.Code(err) != codes.NotFound {
			t.Fatalf("got %v", err)
		}
		return err
	}
	if err := get("builder-1"); !strings.Contains(err.Error(), "the session has no agents") {
		t.Error(err)
	}
	for _, name := range []string{"lead", "builder-1", "builder-2", "tester", "bulider", "gone-x"} {
		k.register(name, &pb.RegisterAgentRequest{})
	}
	k.deregister("gone-x")
	for _, c := range []struct {
		name string
		want []string
		hint string
	}{
		{"builder-3", []string{"builder-1", "builder-2", "bulider"}, "did you mean builder-1, builder-2?"},
		{"tster", []string{"tester", "bulider", "lead"}, "did you mean tester?"},
		{"gone-x", []string{"lead", "tester", "builder-1"}, "the nearest names are lead, tester, builder-1"},
	} {
		k.read(func(snap *store.Snapshot) error {
			got, err := k.people.Nearest(snap, defaultSession, c.name)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("nearest to %s (-want +got):\n%s", c.name, diff)
			}
			return err
		})
		if err := get(c.name); !strings.HasSuffix(err.Error(), c.hint) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestGet_AnotherSessionsAgentIsNotFound(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	who := identity.Caller{Access: identity.Operator, Session: "default"}
	if _, err := k.sessions.Create(context.Background(), who, idempotency.Request{}, "other", sessions.Change{}); err != nil {
		t.Fatal(err)
	}
	k.register("a", &pb.RegisterAgentRequest{})
	other := testkit.As(t.Context(), identity.Caller{Access: identity.Agent, Session: "other", Agent: "b"})
	if _, err := k.api.GetAgent(other, &pb.GetAgentRequest{Name: "a"}); status.Code(err) != codes.NotFound {
		t.Errorf("get: %v", err)
	}
	if out, err := k.api.ListAgents(other, &pb.ListAgentsRequest{}); err != nil || len(out.GetAgents()) != 0 || len(out.GetRoles()) != 0 {
		t.Errorf("list: %v, %v", out, err)
	}
	if out, err := k.api.RegisterAgent(testkit.As(t.Context(), identity.Caller{Access: identity.Agent, Session: "other", Agent: "a"}), &pb.RegisterAgentRequest{}); err != nil || out.GetAgent().GetIncarnation() != 1 {
		t.Errorf("the same name in another session is another agent: %v, %v", out, err)
	}
	nowhere := testkit.As(t.Context(), identity.Caller{Access: identity.Agent, Session: "nowhere", Agent: "a"})
	for rpc, call := range map[string]func() error{
		"RegisterAgent":   func() error { _, err := k.api.RegisterAgent(nowhere, &pb.RegisterAgentRequest{}); return err },
		"Heartbeat":       func() error { _, err := k.api.Heartbeat(nowhere, &pb.HeartbeatRequest{}); return err },
		"GetAgent":        func() error { _, err := k.api.GetAgent(nowhere, &pb.GetAgentRequest{}); return err },
		"ListAgents":      func() error { _, err := k.api.ListAgents(nowhere, &pb.ListAgentsRequest{}); return err },
		"DeregisterAgent": func() error { _, err := k.api.DeregisterAgent(nowhere, &pb.DeregisterAgentRequest{}); return err },
	} {
		if err := call(); status.Code(err) != codes.NotFound {
			t.Errorf("%s in a session that does not exist: %v", rpc, err)
		}
	}
}

func TestList_AllThatIsSetMustMatchAndTheSummaryCountsAllThatMatch(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	for _, a := range []struct {
		name, role   string
		capabilities []string
		status       pb.AgentStatus
	}{
		{"b1", "builder", []string{"go", "sql"}, pb.AgentStatus_AGENT_STATUS_ACTIVE},
		{"b2", "builder", []string{"go"}, pb.AgentStatus_AGENT_STATUS_IDLE},
		{"b3", "builder", nil, pb.AgentStatus_AGENT_STATUS_ACTIVE},
		{"lead", "lead", []string{"sql"}, pb.AgentStatus_AGENT_STATUS_ACTIVE},
		{"x", "", []string{"go", "gopher"}, pb.AgentStatus_AGENT_STATUS_BLOCKED},
		{"gone", "builder", []string{"go"}, pb.AgentStatus_AGENT_STATUS_ACTIVE},
	} {
		k.register(a.name, &pb.RegisterAgentRequest{Role: a.role, Capabilities: a.capabilities})
		k.beat(a.name, &pb.HeartbeatRequest{Status: a.status})
	}
	k.deregister("gone")
	roles := func(none, builders, activeBuilders, leads int32) (out []*pb.RoleSummary) {
		if none > 0 {
			out = append(out, &pb.RoleSummary{Agents: none})
		}
		if builders > 0 {
			out = append(out, &pb.RoleSummary{Role: "builder", Agents: builders, Active: activeBuilders})
		}
		if leads > 0 {
			out = append(out, &pb.RoleSummary{Role: "lead", Agents: leads, Active: leads})
		}
		return out
	}
	for name, c := range map[string]struct {
		in    *pb.ListAgentsRequest
		want  []string
		roles []*pb.RoleSummary
	}{
		"all":              {&pb.ListAgentsRequest{}, []string{"b1", "b2", "b3", "lead", "x"}, roles(1, 3, 2, 1)},
		"role":             {&pb.ListAgentsRequest{Role: "builder"}, []string{"b1", "b2", "b3"}, roles(0, 3, 2, 0)},
		"capability":       {&pb.ListAgentsRequest{Capabilities: []string{"go"}}, []string{"b1", "b2", "x"}, roles(1, 2, 1, 0)},
		"all capabilities": {&pb.ListAgentsRequest{Capabilities: []string{"sql", "go"}}, []string{"b1"}, roles(0, 1, 1, 0)},
		"status":           {&pb.ListAgentsRequest{Status: pb.AgentStatus_AGENT_STATUS_ACTIVE}, []string{"b1", "b3", "lead"}, roles(0, 2, 2, 1)},
		"pattern":          {&pb.ListAgentsRequest{Pattern: "b?"}, []string{"b1", "b2", "b3"}, roles(0, 3, 2, 0)},
		"together":         {&pb.ListAgentsRequest{Role: "builder", Capabilities: []string{"go"}, Status: 2, Pattern: "*1"}, []string{"b1"}, roles(0, 1, 1, 0)},
		"nobody":           {&pb.ListAgentsRequest{Role: "lead", Capabilities: []string{"go"}}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			for _, size := range []int32{0, 2} { // in one page, and in several
				var got []string
				c.in.PageSize, c.in.PageToken = size, ""
				for {
					out, err := k.api.ListAgents(testkit.Operator(t.Context()), c.in)
					apptest.NoError(t, err)
					got = append(got, names(out.GetAgents())...)
					if diff := cmp.Diff(c.roles, out.GetRoles(), protocmp.Transform()); diff != "" {
						t.Errorf("summary (-want +got):\n%s", diff)
					}
					if out.GetRevision() != k.store.Revision() || size > 0 && len(out.GetAgents()) > int(size) {
						t.Errorf("page %v", out)
					}
					if c.in.PageToken = out.GetNextPageToken(); c.in.PageToken == "" {
						break
					}
				}
				if diff := cmp.Diff(c.want, got); diff != "" {
					t.Errorf("page size %d (-want +got):\n%s", size, diff)
				}
			}
		})
	}
}

func TestList_PageOfLargeAgentsFitsIntoAnAnswer(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	labels := map[string]string{}
	for i := range 64 {
		labels[fmt.Sprintf("%s%d", strings.Repeat("k", 200), i)] = strings.Repeat("v", 256)
	}
	const total = 200 // of about 30 KB
	for i := range total {
		k.register(fmt.Sprintf("agent-%d", i), &pb.RegisterAgentRequest{Labels: labels})
	}
	in := &pb.ListAgentsRequest{PageSize: 1000}
	found := 0
	for {
		out, err := k.api.ListAgents(testkit.Operator(t.Context()), in)
		apptest.NoError(t, err)
		if size := proto.Size(out); size > 4<<20 {
			t.Fatalf("an answer of %d bytes", size)
		}
		found += len(out.GetAgents())
		if in.PageToken = out.GetNextPageToken(); in.PageToken == "" {
			break
		}
	}
	if found != total {
		t.Errorf("%d agents, want %d", found, total)
	}
}

func TestBadInput_NamesTheField(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	k.register("a", &pb.RegisterAgentRequest{})
	register := func(name string, in *pb.RegisterAgentRequest) func() error {
		return func() error { return apptest.Err(k.api.RegisterAgent(k.as(name), in)) }
	}
	for _, c := range []struct {
		field string
		call  func() error
	}{
		{"brokerd-agent", register("", &pb.RegisterAgentRequest{})},
		{"brokerd-agent", register("everyone", &pb.RegisterAgentRequest{})},
		{"brokerd-agent", register("role:builder", &pb.RegisterAgentRequest{})},
		{"brokerd-agent", register("channel:x", &pb.RegisterAgentRequest{})},
		{"request_id", register("b", &pb.RegisterAgentRequest{RequestId: "x"})},
		{"name", func() error {
			return apptest.Err(k.api.GetAgent(testkit.Operator(t.Context()), &pb.GetAgentRequest{}))
		}},
		{"page_token", func() error {
			return apptest.Err(k.api.ListAgents(k.as("a"), &pb.ListAgentsRequest{PageToken: "W10"}))
		}},
		{"request_id", func() error {
			return apptest.Err(k.api.DeregisterAgent(k.as("a"), &pb.DeregisterAgentRequest{RequestId: "x"}))
		}},
	} {
		if err := c.call(); status.Code(err) != codes.InvalidArgument || !slices.Contains(testkit.Fields(err), c.field) {
			t.Errorf("got %v, naming %v; want INVALID_ARGUMENT naming %s", err, testkit.Fields(err), c.field)
		}
	}
	for rpc, call := range map[string]func() error{
		"Heartbeat": func() error {
			return apptest.Err(k.api.Heartbeat(testkit.Operator(t.Context()), &pb.HeartbeatRequest{}))
		},
		"DeregisterAgent": func() error {
			return apptest.Err(k.api.DeregisterAgent(testkit.Operator(t.Context()), &pb.DeregisterAgentRequest{}))
		},
	} {
		if err := call(); testkit.Reason(err) != "AGENT_REQUIRED" {
			t.Errorf("%s without an agent: %v", rpc, err)
		}
	}
}

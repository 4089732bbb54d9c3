package agents

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/page"
	"brokerd/internal/validate"
)

const (
	defaultLease  = 90 * time.Second
	callerField   = "brokerd-agent"
	agentListName = "ListAgents"
	// registerMethod is the call that brings back a failed agent by itself.
	registerMethod  = pb.AgentService_RegisterAgent_FullMethodName
	heartbeatMethod = pb.AgentService_Heartbeat_FullMethodName
)

// Service is the AgentService of the API.
type Service struct {
	pb.UnimplementedAgentServiceServer
	registry *Registry
}

// NewService returns the service of a registry.
func NewService(r *Registry) *Service { return &Service{registry: r} }

// RegisterAgent implements pb.AgentServiceServer.
func (s *Service) RegisterAgent(ctx context.Context, in *pb.RegisterAgentRequest) (*pb.RegisterAgentResponse, error) {
	who := identity.FromContext(ctx)
	var c validate.Check
	if newName(&c, who.Agent); c.Found() > 0 {
		return nil, c.Err()
	}
	d := Description{
		DisplayName: in.GetDisplayName(),
		Purpose:     in.GetDescription(),
		Role:        in.GetRole(),
		Instance:    in.GetInstance(),
		Worktree:    in.GetWorktree(),
		Labels:      in.GetLabels(),
		Lease:       cmp.Or(in.GetLease().AsDuration(), defaultLease),
	}
	of := Harnessed{Session: in.GetHarness(), Attention: directory.Attention(in.GetAttention())}
	if who.Role != "" && d.Role != "" && d.Role != who.Role {
		return nil, fault.New(fault.Denied, "ROLE_BOUND", "the credential is for the role %s, and the registration names the role %s", who.Role, d.Role)
	}
	d.Role = cmp.Or(d.Role, who.Role)
	d.Capabilities = slices.Sorted(slices.Values(in.GetCapabilities()))
	d.Capabilities = slices.Compact(d.Capabilities)
	req, err := idempotency.Of(ctx, "RegisterAgent", in.GetRequestId(), in)
	if err != nil {
		return nil, err
	}
	a, lost, err := s.registry.Register(ctx, who, req, d, in.GetReplace(), of)
	if err != nil {
		return nil, err
	}
	return &pb.RegisterAgentResponse{
		Agent: agentProto(a), Revision: a.Revision, Losses: lossProtos(lost.Losses), MoreLosses: int32(lost.More),
	}, nil
}

// Heartbeat implements pb.AgentServiceServer.
func (s *Service) Heartbeat(ctx context.Context, in *pb.HeartbeatRequest) (*pb.HeartbeatResponse, error) {
	h := Heartbeat{
		Reason: in.StatusReason, Activity: in.Activity, TaskID: in.TaskId, Progress: in.Progress,
		LastTool: in.LastTool, LastFile: in.LastFile, Notices: in.GetNotices(),
	}
	if status := Status(in.GetStatus()); status != 0 {
		h.Status = &status
	}
	if n := in.GetCounters(); n != nil {
		h.Counters.Turns, h.Counters.ModelTokens, h.Counters.Files = n.Turns, n.ModelTokens, n.Files
		h.Counters.ToolCalls, h.Counters.Errors = n.ToolCalls, n.Errors
	}
	h.Harness, h.Attention = harnessOf(in.GetHarness()), directory.Attention(in.GetAttention())
	st, err := s.registry.Heartbeat(ctx, identity.FromContext(ctx), h)
	if err != nil {
		return nil, err
	}
	out := &pb.HeartbeatResponse{
		Incarnation: st.Incarnation, Lease: durationpb.New(st.Lease), Unread: st.Unread, Claimable: st.Claimable,
		Directives: st.Directives, Losses: lossProtos(st.Losses), MoreLosses: int32(st.More),
	}
	for _, n := range st.Notices {
		out.Notices = append(out.Notices, &pb.Notice{
			Revision: n.Revision, Type: n.Type, Subject: n.Subject, Payload: n.Payload, CreatedAt: timestamppb.New(n.CreatedAt),
		})
	}
	return out, nil
}

// SaveCheckpoint implements pb.AgentServiceServer.
func (s *Service) SaveCheckpoint(ctx context.Context, in *pb.SaveCheckpointRequest) (*pb.SaveCheckpointResponse, error) {
	kind := cmp.Or(in.GetKind(), pb.CheckpointKind_CHECKPOINT_KIND_CUSTOM)
	req, err := idempotency.Of(ctx, "SaveCheckpoint", in.GetRequestId(), in)
	if err != nil {
		return nil, err
	}
	revision, err := s.registry.SaveCheckpoint(ctx, identity.FromContext(ctx), req,
		Checkpoint{Kind: CheckpointKind(kind), Reference: in.GetReference(), Data: in.GetData()})
	if err != nil {
		return nil, err
	}
	return &pb.SaveCheckpointResponse{Revision: revision}, nil
}

// GetAgent implements pb.AgentServiceServer.
func (s *Service) GetAgent(ctx context.Context, in *pb.GetAgentRequest) (*pb.GetAgentResponse, error) {
	who, name := identity.FromContext(ctx), in.GetName()
	if name == "" {
		name = who.Agent
	}
	var c validate.Check
	c.Name("name", name)
	if err := c.Err(); err != nil {
		return nil, err
	}
	full := in.GetView() == pb.AgentView_AGENT_VIEW_FULL
	f, err := s.registry.Get(ctx, who, name, full)
	if err != nil {
		return nil, err
	}
	out := &pb.GetAgentResponse{Agent: agentProto(f.Agent), Unread: f.Unread, Claimable: f.Claimable, Revision: f.At}
	if full {
		out.Holdings = holdingsProto(who.Session, &f.Holdings)
		out.Checkpoints = checkpointProtos(f.Checkpoints)
	}
	return out, nil
}

// ListAgents implements pb.AgentServiceServer.
func (s *Service) ListAgents(ctx context.Context, in *pb.ListAgentsRequest) (*pb.ListAgentsResponse, error) {
	f := Filter{
		Role:         in.GetRole(),
		Capabilities: in.GetCapabilities(),
		Status:       Status(in.GetStatus()),
		Pattern:      in.GetPattern(),
		Health:       Health(in.GetHealth()),
	}
	var after string
	if err := page.Parse(agentListName, in.GetPageToken(), &after); err != nil {
		return nil, err
	}
	found, err := s.registry.List(ctx, identity.FromContext(ctx), f, after, page.Size(in.GetPageSize()))
	if err != nil {
		return nil, err
	}
	out := &pb.ListAgentsResponse{Revision: found.Revision}
	for _, a := range found.Agents {
		out.Agents = append(out.Agents, agentProto(a))
		after = a.Name
	}
	if found.More {
		out.NextPageToken = page.Token(agentListName, after)
	}
	for _, role := range found.Roles {
		out.Roles = append(out.Roles, &pb.RoleSummary{Role: role.Role, Agents: int32(role.Agents), Active: int32(role.Active), Failed: int32(role.Failed)})
	}
	return out, nil
}

// DeregisterAgent implements pb.AgentServiceServer.
func (s *Service) DeregisterAgent(ctx context.Context, in *pb.DeregisterAgentRequest) (*pb.DeregisterAgentResponse, error) {
	req, err := idempotency.Of(ctx, "DeregisterAgent", in.GetRequestId(), in)
	if err != nil {
		return nil, err
	}
	revision, err := s.registry.Deregister(ctx, identity.FromContext(ctx), req, in.GetReason())
	if err != nil {
		return nil, err
	}
	return &pb.DeregisterAgentResponse{Revision: revision}, nil
}

// newName wants a name that cannot be taken for a mailbox of another kind: those are written
// role:NAME and channel:NAME.
func newName(c *validate.Check, name string) {
	for _, prefix := range []string{"role:", "channel:"} {
		if strings.HasPrefix(name, prefix) {
			c.Fail(callerField, "%q begins as no agent's name may: %s stands for other receivers", name, prefix)
			return
		}
	}
	c.NewName(callerField, name)
}

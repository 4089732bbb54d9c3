package agents

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/page"
	"brokerd/internal/validate"
)

const (
	leastLease    = time.Second
	mostLease     = 7 * 24 * time.Hour
	defaultLease  = 90 * time.Second
	mostDisplay   = 128  // bytes
	mostPurpose   = 1024 // bytes
	mostInstance  = 128  // bytes
	callerField   = "brokerd-agent"
	agentListName = "ListAgents"
	mostTool      = 256       // bytes
	mostHarness   = 128       // bytes
	mostProgram   = 64        // bytes
	mostReference = 512       // bytes
	mostData      = 256 << 10 // bytes
	mostCounted   = 1 << 53   // what JSON still has exactly
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
	newName(&c, who.Agent)
	c.OptionalName("role", in.GetRole())
	capabilities(&c, in.GetCapabilities())
	c.Line("instance", in.GetInstance(), mostInstance)
	c.Line("worktree", in.GetWorktree(), validate.MaxPath)
	c.Labels("labels", in.GetLabels())
	c.Line("display_name", in.GetDisplayName(), mostDisplay)
	c.Text("description", in.GetDescription(), mostPurpose)
	d := Description{
		DisplayName: in.GetDisplayName(),
		Purpose:     in.GetDescription(),
		Role:        in.GetRole(),
		Instance:    in.GetInstance(),
		Worktree:    in.GetWorktree(),
		Labels:      in.GetLabels(),
		Lease:       c.Duration("lease", in.GetLease(), leastLease, mostLease, defaultLease),
	}
	of := Harnessed{Session: in.GetHarness(), Attention: attentionOf(&c, in.GetAttention())}
	c.Line("harness", of.Session, mostHarness)
	if err := c.Err(); err != nil {
		return nil, err
	}
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
	var c validate.Check
	h := Heartbeat{
		Reason: in.StatusReason, Activity: in.Activity, TaskID: in.TaskId, Progress: in.Progress,
		LastTool: in.LastTool, LastFile: in.LastFile, Notices: in.GetNotices(),
	}
	if status := statusOf(&c, in.GetStatus()); status != 0 {
		h.Status = &status
	}
	if n := in.GetCounters(); n != nil {
		h.Counters.Turns = counter(&c, "turns", n.Turns)
		h.Counters.ModelTokens = counter(&c, "model_tokens", n.ModelTokens)
		h.Counters.Files = counter(&c, "files", n.Files)
		h.Counters.ToolCalls = counter(&c, "tool_calls", n.ToolCalls)
		h.Counters.Errors = counter(&c, "errors", n.Errors)
	}
	c.Line("last_tool", in.GetLastTool(), mostTool)
	c.Line("last_file", in.GetLastFile(), validate.MaxPath)
	c.Line("status_reason", in.GetStatusReason(), validate.MaxLine)
	c.Line("activity", in.GetActivity(), validate.MaxLine)
	c.Line("task_id", in.GetTaskId(), validate.MaxID)
	if p := in.GetProgress(); !(p >= 0 && p <= 1) { // a NaN is neither
		c.Fail("progress", "is %v; 0 to 1 is allowed", p)
	}
	h.Harness, h.Attention = harnessOf(&c, in.GetHarness()), attentionOf(&c, in.GetAttention())
	if err := c.Err(); err != nil {
		return nil, err
	}
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

// counter checks a counter that may be absent.
func counter(c *validate.Check, name string, n *int64) *int64 {
	if n != nil {
		c.Between("counters."+name, *n, 0, mostCounted)
	}
	return n
}

// SaveCheckpoint implements pb.AgentServiceServer.
func (s *Service) SaveCheckpoint(ctx context.Context, in *pb.SaveCheckpointRequest) (*pb.SaveCheckpointResponse, error) {
	var c validate.Check
	kind := in.GetKind()
	if _, known := pb.CheckpointKind_name[int32(kind)]; !known {
		c.Fail("kind", "%d is no kind of checkpoint", kind)
	}
	if kind == pb.CheckpointKind_CHECKPOINT_KIND_UNSPECIFIED {
		kind = pb.CheckpointKind_CHECKPOINT_KIND_CUSTOM
	}
	c.Line("reference", in.GetReference(), mostReference)
	c.JSON("data", in.GetData(), mostData)
	if err := c.Err(); err != nil {
		return nil, err
	}
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
	if _, known := pb.AgentView_name[int32(in.GetView())]; !known {
		c.Fail("view", "%d is no view", in.GetView())
	}
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
	var c validate.Check
	f := Filter{
		Role:         in.GetRole(),
		Capabilities: in.GetCapabilities(),
		Status:       statusOf(&c, in.GetStatus()),
		Pattern:      in.GetPattern(),
		Health:       Health(in.GetHealth()),
	}
	if _, known := pb.Health_name[int32(in.GetHealth())]; !known {
		c.Fail("health", "%d is no health", in.GetHealth())
	}
	c.OptionalName("role", f.Role)
	capabilities(&c, f.Capabilities)
	if f.Pattern != "" {
		c.Pattern("pattern", f.Pattern)
	}
	size := c.PageSize("page_size", in.GetPageSize())
	if err := c.Err(); err != nil {
		return nil, err
	}
	var after string
	if err := page.Parse(agentListName, in.GetPageToken(), &after); err != nil {
		return nil, err
	}
	found, err := s.registry.List(ctx, identity.FromContext(ctx), f, after, size)
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
	var c validate.Check
	c.Line("reason", in.GetReason(), validate.MaxLine)
	if err := c.Err(); err != nil {
		return nil, err
	}
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

func capabilities(c *validate.Check, list []string) {
	if len(list) > validate.MaxLabels {
		c.Count("capabilities", len(list), validate.MaxLabels)
		return
	}
	for i, name := range list {
		c.Name(fmt.Sprintf("capabilities[%d]", i), name)
	}
}

func statusOf(c *validate.Check, in pb.AgentStatus) Status {
	if _, known := pb.AgentStatus_name[int32(in)]; !known {
		c.Fail("status", "%d is no status", in)
	}
	return Status(in)
}

package blockers

import (
	"context"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/page"
	"brokerd/internal/validate"
)

const (
	blockerList = "ListBlockers"
	longestWait = time.Hour
	maxAwaited  = 1024 // bytes of the path of a lock
)

// Service is the BlockerService of the API.
type Service struct {
	pb.UnimplementedBlockerServiceServer
	board *Board
}

// NewService returns the service of the blockers.
func NewService(b *Board) *Service { return &Service{board: b} }

// RaiseBlocker implements pb.BlockerServiceServer.
func (s *Service) RaiseBlocker(ctx context.Context, in *pb.RaiseBlockerRequest) (*pb.RaiseBlockerResponse, error) {
	var c validate.Check
	if strings.TrimSpace(in.GetReason()) == "" {
		c.Fail("reason", "is empty; say what stops the work")
	}
	c.Text("reason", in.GetReason(), MaxReason)
	c.Line("task_id", in.GetTaskId(), validate.MaxID)
	c.Count("recipients", len(in.GetRecipients()), MaxRecipients)
	d := Draft{
		Reason: in.GetReason(), Severity: severityOf(&c, "severity", in.GetSeverity(), Medium), Awaited: awaitedOf(&c, in.GetAwaited()),
		Task: in.GetTaskId(), AutoResolve: in.GetAutoResolve(),
	}
	for _, r := range in.GetRecipients() {
		c.Name("recipients", r.GetAgent()+r.GetRole())
		d.Recipients = append(d.Recipients, Recipient{Agent: r.GetAgent(), Role: r.GetRole()})
	}
	if d.AutoResolve && d.Awaited.Kind != Agent && d.Awaited.Kind != Task {
		c.Fail("auto_resolve", "is set, but awaited names neither an agent nor a task")
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	req, err := idempotency.Of(ctx, "RaiseBlocker", in.GetRequestId(), in)
	if err != nil {
		return nil, err
	}
	x, err := s.board.Raise(ctx, identity.FromContext(ctx), req, d)
	if err != nil {
		return nil, err
	}
	return &pb.RaiseBlockerResponse{Blocker: s.proto(&x)}, nil
}

// AcknowledgeBlocker implements pb.BlockerServiceServer.
func (s *Service) AcknowledgeBlocker(ctx context.Context, in *pb.AcknowledgeBlockerRequest) (*pb.AcknowledgeBlockerResponse, error) {
	var c validate.Check
	c.Line("id", in.GetId(), validate.MaxID)
	c.Text("note", in.GetNote(), MaxNote)
	if err := c.Err(); err != nil {
		return nil, err
	}
	req, err := idempotency.Of(ctx, "AcknowledgeBlocker", in.GetRequestId(), in)
	if err != nil {
		return nil, err
	}
	x, err := s.board.Acknowledge(ctx, identity.FromContext(ctx), req, in.GetId(), in.GetNote())
	if err != nil {
		return nil, err
	}
	return &pb.AcknowledgeBlockerResponse{Blocker: s.proto(&x)}, nil
}

// ResolveBlocker implements pb.BlockerServiceServer.
func (s *Service) ResolveBlocker(ctx context.Context, in *pb.ResolveBlockerRequest) (*pb.ResolveBlockerResponse, error) {
	var c validate.Check
	c.Line("id", in.GetId(), validate.MaxID)
	c.Text("resolution", in.GetResolution(), MaxNote)
	if err := c.Err(); err != nil {
		return nil, err
	}
	req, err := idempotency.Of(ctx, "ResolveBlocker", in.GetRequestId(), in)
	if err != nil {
		return nil, err
	}
	x, err := s.board.Resolve(ctx, identity.FromContext(ctx), req, in.GetId(), in.GetResolution())
	if err != nil {
		return nil, err
	}
	return &pb.ResolveBlockerResponse{Blocker: s.proto(&x)}, nil
}

// GetBlocker implements pb.BlockerServiceServer.
func (s *Service) GetBlocker(ctx context.Context, in *pb.GetBlockerRequest) (*pb.GetBlockerResponse, error) {
	var c validate.Check
	c.Line("id", in.GetId(), validate.MaxID)
	wait := c.Duration("wait", in.GetWait(), 0, longestWait, 0)
	if err := c.Err(); err != nil {
		return nil, err
	}
	x, err := s.board.Get(ctx, identity.FromContext(ctx), in.GetId(), wait)
	if err != nil {
		return nil, err
	}
	return &pb.GetBlockerResponse{Blocker: s.proto(&x)}, nil
}

// ListBlockers implements pb.BlockerServiceServer.
func (s *Service) ListBlockers(ctx context.Context, in *pb.ListBlockersRequest) (*pb.ListBlockersResponse, error) {
	var c validate.Check
	sel := Selection{
		Agent: in.GetAgent(), Task: in.GetTaskId(), Severity: severityOf(&c, "lowest_severity", in.GetLowestSeverity(), 0),
		Awaited: in.GetAwaitedAgent(), Limit: c.PageSize("page_size", in.GetPageSize()),
	}
	for _, state := range in.GetStates() {
		if _, known := pb.BlockerState_name[int32(state)]; !known || state == 0 {
			c.Fail("states", "%d is no state of a blocker", state)
			continue
		}
		sel.States = append(sel.States, State(state))
	}
	c.OptionalName("agent", sel.Agent)
	c.OptionalName("awaited_agent", sel.Awaited)
	c.Line("task_id", sel.Task, validate.MaxID)
	if err := c.Err(); err != nil {
		return nil, err
	}
	if err := page.Parse(blockerList, in.GetPageToken(), &sel.After); err != nil {
		return nil, err
	}
	p, err := s.board.List(ctx, identity.FromContext(ctx), sel)
	if err != nil {
		return nil, err
	}
	out := &pb.ListBlockersResponse{Revision: p.Revision}
	for i := range p.Blockers {
		out.Blockers = append(out.Blockers, s.proto(&p.Blockers[i]))
	}
	if p.Next != 0 {
		out.NextPageToken = page.Token(blockerList, p.Next)
	}
	return out, nil
}

func severityOf(c *validate.Check, field string, in pb.BlockerSeverity, absent Severity) Severity {
	if in == 0 {
		return absent
	}
	if _, known := pb.BlockerSeverity_name[int32(in)]; !known {
		c.Fail(field, "%d is no severity of a blocker", in)
		return absent
	}
	return Severity(in)
}

func awaitedOf(c *validate.Check, in *pb.AwaitedObject) Awaited {
	switch o := in.GetObject().(type) {
	case *pb.AwaitedObject_Agent:
		c.NewName("awaited.agent", o.Agent)
		return Awaited{Agent, o.Agent}
	case *pb.AwaitedObject_Role:
		c.Name("awaited.role", o.Role)
		return Awaited{Role, o.Role}
	case *pb.AwaitedObject_TaskId:
		required(c, "awaited.task_id", o.TaskId, validate.MaxID)
		return Awaited{Task, o.TaskId}
	case *pb.AwaitedObject_Lock:
		required(c, "awaited.lock", o.Lock, maxAwaited)
		return Awaited{Lock, o.Lock}
	case *pb.AwaitedObject_Text:
		required(c, "awaited.text", o.Text, validate.MaxLine)
		return Awaited{Text, o.Text}
	}
	return Awaited{}
}

func required(c *validate.Check, field, s string, most int) {
	if s == "" {
		c.Fail(field, "is empty")
	}
	c.Line(field, s, most)
}

// proto converts a blocker.
func (s *Service) proto(x *Blocker) *pb.Blocker {
	out := &pb.Blocker{
		Id: x.Name(), Revision: x.Revision, State: pb.BlockerState(x.State), Agent: x.Agent, Reason: x.Reason,
		Severity: pb.BlockerSeverity(x.Severity), Awaited: awaitedProto(x.Awaited), TaskId: x.Task, TaskBlocked: x.TaskBlocked,
		AutoResolve: x.AutoResolve, RaisedAt: stamp(x.RaisedAt), EscalatesAt: stamp(x.EscalatesAt), Escalations: int32(x.Escalations),
		ResolvedAt: stamp(x.ResolvedAt), TimeBlocked: durationpb.New(x.TimeBlocked(s.board.clock.Now())),
	}
	for i, a := range x.Acknowledgements() {
		if i == 0 {
			out.AcknowledgedAt = stamp(a.At)
		}
		out.AcknowledgedBy = append(out.AcknowledgedBy, a.Agent)
	}
	for _, e := range x.Timeline {
		entry := &pb.BlockerTimelineEntry{
			Step: pb.BlockerStep(e.Step), At: stamp(e.At), Agent: e.Agent, Recipient: recipientProto(e.Recipient), Message: e.Message,
			Note: e.Note, Revision: e.Revision,
		}
		if e.Step == Notified {
			out.Recipients = append(out.Recipients, entry.Recipient)
		}
		out.Timeline = append(out.Timeline, entry)
	}
	if x.State == Resolved {
		r := x.Resolution()
		out.ResolvedBy, out.Resolution = r.Agent, r.Note
	}
	return out
}

func awaitedProto(a Awaited) *pb.AwaitedObject {
	switch a.Kind {
	case Agent:
		return &pb.AwaitedObject{Object: &pb.AwaitedObject_Agent{Agent: a.Name}}
	case Role:
		return &pb.AwaitedObject{Object: &pb.AwaitedObject_Role{Role: a.Name}}
	case Task:
		return &pb.AwaitedObject{Object: &pb.AwaitedObject_TaskId{TaskId: a.Name}}
	case Lock:
		return &pb.AwaitedObject{Object: &pb.AwaitedObject_Lock{Lock: a.Name}}
	case Text:
		return &pb.AwaitedObject{Object: &pb.AwaitedObject_Text{Text: a.Name}}
	}
	return nil
}

func recipientProto(r Recipient) *pb.BlockerRecipient {
	switch {
	case r.Agent != "":
		return &pb.BlockerRecipient{Recipient: &pb.BlockerRecipient_Agent{Agent: r.Agent}}
	case r.Role != "":
		return &pb.BlockerRecipient{Recipient: &pb.BlockerRecipient_Role{Role: r.Role}}
	}
	return nil
}

func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

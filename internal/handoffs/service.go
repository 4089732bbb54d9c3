package handoffs

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/page"
	"brokerd/internal/validate"
)

const (
	handoffList = "ListHandoffs"
	longestWait = time.Hour
)

// Service is the HandoffService of the API.
type Service struct {
	pb.UnimplementedHandoffServiceServer
	desk *Desk
}

// NewService returns the service of the handoffs.
func NewService(d *Desk) *Service { return &Service{desk: d} }

// CreateHandoff implements pb.HandoffServiceServer.
func (s *Service) CreateHandoff(ctx context.Context, in *pb.CreateHandoffRequest) (*pb.CreateHandoffResponse, error) {
	var c validate.Check
	d := draftOf(&c, in)
	if err := c.Err(); err != nil {
		return nil, err
	}
	req, err := idempotency.Of(ctx, "CreateHandoff", in.GetRequestId(), in)
	if err != nil {
		return nil, err
	}
	h, err := s.desk.Create(ctx, identity.FromContext(ctx), req, d)
	if err != nil {
		return nil, err
	}
	return &pb.CreateHandoffResponse{Handoff: handoffProto(&h)}, nil
}

// AcceptHandoff implements pb.HandoffServiceServer.
func (s *Service) AcceptHandoff(ctx context.Context, in *pb.AcceptHandoffRequest) (*pb.AcceptHandoffResponse, error) {
	var c validate.Check
	c.Line("id", in.GetId(), validate.MaxID)
	c.Text("notes", in.GetNotes(), MaxItem)
	if err := c.Err(); err != nil {
		return nil, err
	}
	req, err := idempotency.Of(ctx, "AcceptHandoff", in.GetRequestId(), in)
	if err != nil {
		return nil, err
	}
	h, err := s.desk.Accept(ctx, identity.FromContext(ctx), req, in.GetId(), in.GetNotes(), in.GetPartial())
	if err != nil {
		return nil, err
	}
	return &pb.AcceptHandoffResponse{Handoff: handoffProto(&h)}, nil
}

// RejectHandoff implements pb.HandoffServiceServer.
func (s *Service) RejectHandoff(ctx context.Context, in *pb.RejectHandoffRequest) (*pb.RejectHandoffResponse, error) {
	var c validate.Check
	c.Line("id", in.GetId(), validate.MaxID)
	required(&c, "notes", in.GetNotes(), MaxItem)
	if err := c.Err(); err != nil {
		return nil, err
	}
	req, err := idempotency.Of(ctx, "RejectHandoff", in.GetRequestId(), in)
	if err != nil {
		return nil, err
	}
	h, err := s.desk.Reject(ctx, identity.FromContext(ctx), req, in.GetId(), in.GetNotes())
	if err != nil {
		return nil, err
	}
	return &pb.RejectHandoffResponse{Handoff: handoffProto(&h)}, nil
}

// CancelHandoff implements pb.HandoffServiceServer.
func (s *Service) CancelHandoff(ctx context.Context, in *pb.CancelHandoffRequest) (*pb.CancelHandoffResponse, error) {
	var c validate.Check
	c.Line("id", in.GetId(), validate.MaxID)
	c.Text("notes", in.GetNotes(), MaxItem)
	if err := c.Err(); err != nil {
		return nil, err
	}
	req, err := idempotency.Of(ctx, "CancelHandoff", in.GetRequestId(), in)
	if err != nil {
		return nil, err
	}
	h, err := s.desk.Cancel(ctx, identity.FromContext(ctx), req, in.GetId(), in.GetNotes())
	if err != nil {
		return nil, err
	}
	return &pb.CancelHandoffResponse{Handoff: handoffProto(&h)}, nil
}

// CheckHandoffItem implements pb.HandoffServiceServer.
func (s *Service) CheckHandoffItem(ctx context.Context, in *pb.CheckHandoffItemRequest) (*pb.CheckHandoffItemResponse, error) {
	var c validate.Check
	c.Line("id", in.GetId(), validate.MaxID)
	if err := c.Err(); err != nil {
		return nil, err
	}
	req, err := idempotency.Of(ctx, "CheckHandoffItem", in.GetRequestId(), in)
	if err != nil {
		return nil, err
	}
	h, err := s.desk.Check(ctx, identity.FromContext(ctx), req, in.GetId(), int(in.GetNumber()), !in.GetUncheck())
	if err != nil {
		return nil, err
	}
	return &pb.CheckHandoffItemResponse{Handoff: handoffProto(&h)}, nil
}

// GetHandoff implements pb.HandoffServiceServer.
func (s *Service) GetHandoff(ctx context.Context, in *pb.GetHandoffRequest) (*pb.GetHandoffResponse, error) {
	var c validate.Check
	c.Line("id", in.GetId(), validate.MaxID)
	wait := c.Duration("wait", in.GetWait(), 0, longestWait, 0)
	if err := c.Err(); err != nil {
		return nil, err
	}
	h, err := s.desk.Get(ctx, identity.FromContext(ctx), in.GetId(), wait)
	if err != nil {
		return nil, err
	}
	out := &pb.GetHandoffResponse{Handoff: handoffProto(&h)}
	if in.GetMarkdown() {
		out.Markdown = Markdown(&h)
	}
	return out, nil
}

// ListHandoffs implements pb.HandoffServiceServer.
func (s *Service) ListHandoffs(ctx context.Context, in *pb.ListHandoffsRequest) (*pb.ListHandoffsResponse, error) {
	var c validate.Check
	sel := Selection{
		From: in.GetFrom(), ToAgent: in.GetToAgent(), ToRole: in.GetToRole(), Task: in.GetTaskId(), Limit: c.PageSize("page_size", in.GetPageSize()),
	}
	for _, state := range in.GetStates() {
		if _, known := pb.HandoffState_name[int32(state)]; !known || state == 0 {
			c.Fail("states", "%d is no state of a handoff", state)
			continue
		}
		sel.States = append(sel.States, State(state))
	}
	c.OptionalName("from", sel.From)
	c.OptionalName("to_agent", sel.ToAgent)
	c.OptionalName("to_role", sel.ToRole)
	c.Line("task_id", sel.Task, validate.MaxID)
	if err := c.Err(); err != nil {
		return nil, err
	}
	if err := page.Parse(handoffList, in.GetPageToken(), &sel.After); err != nil {
		return nil, err
	}
	p, err := s.desk.List(ctx, identity.FromContext(ctx), sel)
	if err != nil {
		return nil, err
	}
	out := &pb.ListHandoffsResponse{Revision: p.Revision}
	for i := range p.Handoffs {
		h := handoffProto(&p.Handoffs[i])
		h.Content = nil
		out.Handoffs = append(out.Handoffs, h)
	}
	if p.Next != 0 {
		out.NextPageToken = page.Token(handoffList, p.Next)
	}
	return out, nil
}

// draftOf reads and checks a new handoff.
func draftOf(c *validate.Check, in *pb.CreateHandoffRequest) Draft {
	d := Draft{
		Title: in.GetTitle(), Task: in.GetTaskId(), ToAgent: in.GetToAgent(), ToRole: in.GetToRole(), Content: contentOf(c, in.GetContent()),
		Checklist: in.GetChecklist(), TransferTask: in.GetTransferTask(), Fences: slices.Compact(slices.Sorted(slices.Values(in.GetFences()))),
	}
	required(c, "title", d.Title, validate.MaxLine)
	c.Line("title", d.Title, validate.MaxLine)
	c.Line("task_id", d.Task, validate.MaxID)
	if (d.ToAgent == "") == (d.ToRole == "") {
		c.Fail("to_agent", "name either an agent or a role (to_role)")
	}
	c.OptionalName("to_agent", d.ToAgent)
	c.OptionalName("to_role", d.ToRole)
	if d.TransferTask && d.Task == "" {
		c.Fail("transfer_task", "is set, but task_id is empty")
	}
	texts(c, "checklist", d.Checklist)
	c.Count("fences", len(d.Fences), MaxItems)
	together := 0
	for _, list := range [][]string{{d.Content.Background, d.Content.WorkDone}, d.Checklist, d.Content.NextSteps, d.Content.KnownIssues, d.Content.OpenQuestions} {
		for _, s := range list {
			together += len(s)
		}
	}
	if together > MaxTogether {
		c.Fail("content", "has %d bytes of text with the checklist; at most %d are allowed", together, MaxTogether)
	}
	return d
}

func contentOf(c *validate.Check, in *pb.HandoffContent) Content {
	content := Content{
		Background: in.GetBackground(), WorkDone: in.GetWorkDone(), Artifacts: in.GetArtifacts(),
		NextSteps: in.GetNextSteps(), KnownIssues: in.GetKnownIssues(), OpenQuestions: in.GetOpenQuestions(),
	}
	c.Text("content.background", content.Background, MaxText)
	c.Text("content.work_done", content.WorkDone, MaxText)
	texts(c, "content.next_steps", content.NextSteps)
	texts(c, "content.known_issues", content.KnownIssues)
	texts(c, "content.open_questions", content.OpenQuestions)
	c.Count("content.artifacts", len(content.Artifacts), MaxItems)
	for i, name := range content.Artifacts {
		field := fmt.Sprintf("content.artifacts[%d]", i)
		required(c, field, name, validate.MaxLine)
		c.Line(field, name, validate.MaxLine)
	}
	c.Count("content.context_links", len(in.GetContextLinks()), MaxItems)
	for i, l := range in.GetContextLinks() {
		field := fmt.Sprintf("content.context_links[%d]", i)
		if _, known := pb.ContextLinkKind_name[int32(l.GetKind())]; !known || l.GetKind() == 0 {
			c.Fail(field+".kind", "%d is no kind of a context link", l.GetKind())
		}
		required(c, field+".target", l.GetTarget(), MaxTarget)
		c.Line(field+".target", l.GetTarget(), MaxTarget)
		c.Line(field+".title", l.GetTitle(), validate.MaxLine)
		content.Links = append(content.Links, Link{LinkKind(l.GetKind()), l.GetTarget(), l.GetTitle()})
	}
	return content
}

// texts checks a list of texts.
func texts(c *validate.Check, field string, list []string) {
	c.Count(field, len(list), MaxItems)
	for i, s := range list {
		required(c, fmt.Sprintf("%s[%d]", field, i), s, MaxItem)
	}
}

func required(c *validate.Check, field, s string, most int) {
	if strings.TrimSpace(s) == "" {
		c.Fail(field, "is empty")
	}
	c.Text(field, s, most)
}

func handoffProto(h *Handoff) *pb.Handoff {
	out := &pb.Handoff{
		Id: h.Name(), Revision: h.Revision, State: pb.HandoffState(h.State), Title: h.Title, TaskId: h.Task, From: h.From,
		ToAgent: h.ToAgent, ToRole: h.ToRole, Items: int32(h.Items), Checked: int32(h.Checked), CreatedAt: stamp(h.CreatedAt),
		SettledAt: stamp(h.SettledAt), SettledBy: h.SettledBy, Notes: h.Notes,
		Content: &pb.HandoffContent{
			Background: h.Content.Background, WorkDone: h.Content.WorkDone, Artifacts: h.Content.Artifacts,
			NextSteps: h.Content.NextSteps, KnownIssues: h.Content.KnownIssues, OpenQuestions: h.Content.OpenQuestions,
		},
	}
	for _, l := range h.Content.Links {
		out.Content.ContextLinks = append(out.Content.ContextLinks, &pb.ContextLink{Kind: pb.ContextLinkKind(l.Kind), Target: l.Target, Title: l.Title})
	}
	for i, item := range h.Checklist {
		out.Checklist = append(out.Checklist, &pb.ChecklistItem{
			Number: int32(i + 1), Text: item.Text, Checked: item.CheckedBy != "", CheckedBy: item.CheckedBy, CheckedAt: stamp(item.CheckedAt),
		})
	}
	for _, g := range h.Grants {
		out.Grants = append(out.Grants, &pb.HandoffGrant{Kind: pb.GrantKind(g.Kind), Name: g.Name, Fence: g.Fence, NewFence: g.New, Lost: g.Lost})
	}
	return out
}

func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

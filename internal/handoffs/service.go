package handoffs

import (
	"context"
	"slices"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/validate"
	"brokerd/internal/work"
)

// CreateHandoff implements pb.HandoffServiceServer.
func (s *Service) CreateHandoff(ctx context.Context, in *pb.CreateHandoffRequest) (*pb.CreateHandoffResponse, error) {
	if err := checkNew(in); err != nil {
		return nil, err
	}
	if err := s.Admit(ctx); err != nil {
		return nil, err
	}
	h, _, err := s.Change(ctx, in, func(t *work.Tx) (*pb.Handoff, error) { return s.create(t, in) })
	return work.Answer(err, &pb.CreateHandoffResponse{Handoff: h})
}

// AcceptHandoff implements pb.HandoffServiceServer.
func (s *Service) AcceptHandoff(ctx context.Context, in *pb.AcceptHandoffRequest) (*pb.AcceptHandoffResponse, error) {
	h, err := s.settle(ctx, in, func(t *work.Tx, h *pb.Handoff) error {
		if t.Actor.System() {
			return fault.AgentRequired()
		}
		if err := s.allows(t, h, "accept", isFor(h, t.Actor)); err != nil {
			return err
		}
		return s.accept(t, h, in.GetNotes(), in.GetPartial())
	})
	return work.Answer(err, &pb.AcceptHandoffResponse{Handoff: h})
}

// RejectHandoff implements pb.HandoffServiceServer.
func (s *Service) RejectHandoff(ctx context.Context, in *pb.RejectHandoffRequest) (*pb.RejectHandoffResponse, error) {
	h, err := s.settle(ctx, in, func(t *work.Tx, h *pb.Handoff) error {
		if err := s.allows(t, h, "reject", isFor(h, t.Actor) || t.Actor.System()); err != nil {
			return err
		}
		return s.end(t, h, rejected, in.GetNotes())
	})
	return work.Answer(err, &pb.RejectHandoffResponse{Handoff: h})
}

// CancelHandoff implements pb.HandoffServiceServer.
func (s *Service) CancelHandoff(ctx context.Context, in *pb.CancelHandoffRequest) (*pb.CancelHandoffResponse, error) {
	h, err := s.settle(ctx, in, func(t *work.Tx, h *pb.Handoff) error {
		switch {
		case h.From != t.Actor.Name && !t.Actor.Directs(t.Session):
			return fault.New(fault.Denied, "NOT_THE_SENDER", "only %s, a director or an operator may cancel handoff %s",
				h.From, h.Id)
		case !moves.Allows(h.State, "cancel"):
			return errClosed(h)
		}
		return s.end(t, h, cancelled, in.GetNotes())
	})
	return work.Answer(err, &pb.CancelHandoffResponse{Handoff: h})
}

// CheckHandoffItem implements pb.HandoffServiceServer.
func (s *Service) CheckHandoffItem(
	ctx context.Context, in *pb.CheckHandoffItemRequest,
) (*pb.CheckHandoffItemResponse, error) {
	h, err := s.settle(ctx, in, func(t *work.Tx, h *pb.Handoff) error {
		if !moves.Allows(h.State, "check") {
			return errClosed(h)
		}
		return s.checkItem(t, h, int(in.GetNumber()), !in.GetUncheck())
	})
	return work.Answer(err, &pb.CheckHandoffItemResponse{Handoff: h})
}

// GetHandoff implements pb.HandoffServiceServer.
func (s *Service) GetHandoff(ctx context.Context, in *pb.GetHandoffRequest) (*pb.GetHandoffResponse, error) {
	settled := func(h *pb.Handoff) bool { return h.State != pending }
	h, err := s.Await(ctx, in.GetId(), in.GetWait().AsDuration(), settled)
	out := &pb.GetHandoffResponse{Handoff: h}
	if err == nil && in.GetMarkdown() {
		out.Markdown = markdown(h)
	}
	return work.Answer(err, out)
}

// ListHandoffs implements pb.HandoffServiceServer.
func (s *Service) ListHandoffs(ctx context.Context, in *pb.ListHandoffsRequest) (*pb.ListHandoffsResponse, error) {
	l, err := s.List(ctx, in, func(q store.Querier, session directory.Session) (f work.Filter[*pb.Handoff], err error) {
		var recipient directory.Agent
		if in.GetToAgent() != "" {
			recipient, _, err = s.Directory.Find(q, session.ID, in.GetToAgent())
		}
		return work.Filter[*pb.Handoff]{
			States: work.States(in.GetStates()), Opener: in.GetFrom(), Role: in.GetToRole(), Task: in.GetTaskId(),
			Match: func(h *pb.Handoff) bool {
				return in.GetToAgent() == "" || h.ToAgent == in.GetToAgent() || recipient.Role != "" && h.ToRole == recipient.Role
			},
		}, err
	})
	for _, h := range l.Items {
		h.Grants, h.Checklist = nil, nil
	}
	return work.Answer(err, &pb.ListHandoffsResponse{Handoffs: l.Items, NextPageToken: l.Next, Revision: l.Revision})
}

// A settling is a request that names a handoff and changes it.
type settling interface {
	work.Request
	GetId() string
}

// settle makes a change of a handoff that exists.
func (s *Service) settle(
	ctx context.Context, in settling, fn func(t *work.Tx, h *pb.Handoff) error,
) (*pb.Handoff, error) {
	h, _, err := s.Change(ctx, in, func(t *work.Tx) (*pb.Handoff, error) {
		h, err := s.Get(t, t.Session.ID, in.GetId())
		if err == nil {
			err = fn(t, h)
		}
		return h, err
	})
	return h, err
}

// checkNew checks what the options of handoff.proto do not say about a new handoff.
func checkNew(in *pb.CreateHandoffRequest) error {
	var c validate.Check
	if (in.GetToAgent() == "") == (in.GetToRole() == "") {
		c.Fail("to_agent", "name either an agent or a role (to_role)")
	}
	if in.GetTransferTask() && in.GetTaskId() == "" {
		c.Fail("transfer_task", "is set, but task_id is empty")
	}
	c.Count("fences", len(fencesOf(in)), maxFences)
	content := in.GetContent()
	together := len(content.GetBackground()) + len(content.GetWorkDone())
	for _, list := range [][]string{
		in.GetChecklist(), content.GetNextSteps(), content.GetKnownIssues(), content.GetOpenQuestions(),
	} {
		for _, text := range list {
			together += len(text)
		}
	}
	if together > maxTogether {
		c.Fail("content", "has %d bytes of text with the checklist; at most %d are allowed", together, maxTogether)
	}
	return c.Err()
}

// fencesOf returns the fences of a new handoff, each once.
func fencesOf(in *pb.CreateHandoffRequest) []int64 {
	return slices.Compact(slices.Sorted(slices.Values(in.GetFences())))
}

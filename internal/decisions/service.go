package decisions

import (
	"context"
	"fmt"
	"slices"
	"time"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/validate"
	"brokerd/internal/work"
)

// Limits.
const (
	maxText        = 64 << 10 // bytes of all feedback
	maxContent     = 256 << 10
	someRounds     = 3
	mostUnfinished = 1000                 // per session
	mostAhead      = 365 * 24 * time.Hour // of times
)

// onlyReviewsPass is the error for a token that another decision is to pass.
const onlyReviewsPass = "is set; only a review with a scope passes a token"

// OpenDecision implements pb.DecisionServiceServer.
func (s *Service) OpenDecision(ctx context.Context, in *pb.OpenDecisionRequest) (*pb.OpenDecisionResponse, error) {
	var c validate.Check
	checkNew(&c, in)
	if err := c.Err(); err != nil {
		return nil, err
	}
	if err := s.Admit(ctx); err != nil {
		return nil, err
	}
	d, _, err := s.Change(ctx, in, func(t *work.Tx) (*pb.Decision, error) { return s.open(t, in) })
	if err == nil {
		d, err = s.await(ctx, d, in.GetWait().AsDuration())
	}
	return work.Answer(err, &pb.OpenDecisionResponse{Decision: d})
}

// await returns a decision that the call has changed or, with wait, the whole one after the wait.
func (s *Service) await(ctx context.Context, d *pb.Decision, wait time.Duration) (*pb.Decision, error) {
	if wait > 0 {
		return s.Await(ctx, d.Id, wait, func(d *pb.Decision) bool { return !waits(d) })
	}
	return brief(d), nil
}

// brief returns a decision as the answers of changes have it: without its content, with the newest verdict.
func brief(d *pb.Decision) *pb.Decision {
	if d != nil {
		d.Content, d.Rounds = nil, d.Rounds[max(len(d.Rounds)-1, 0):]
	}
	return d
}

// Decide implements pb.DecisionServiceServer.
func (s *Service) Decide(ctx context.Context, in *pb.DecideRequest) (*pb.DecideResponse, error) {
	if err := checkFeedback(in.GetFeedback()); err != nil {
		return nil, err
	}
	d, passed, err := s.Change(ctx, in, func(t *work.Tx) (*pb.Decision, error) {
		d, err := s.find(t, t.Session.ID, in.GetId())
		if err == nil {
			t.Flag, err = s.decide(t, d, in)
		}
		return d, err
	})
	return work.Answer(err, &pb.DecideResponse{Decision: brief(d), TokenPassed: passed})
}

// ResubmitDecision implements pb.DecisionServiceServer.
func (s *Service) ResubmitDecision(
	ctx context.Context, in *pb.ResubmitDecisionRequest,
) (*pb.ResubmitDecisionResponse, error) {
	var c validate.Check
	checkContent(&c, in.GetContent())
	if err := c.Err(); err != nil {
		return nil, err
	}
	if err := s.Admit(ctx); err != nil {
		return nil, err
	}
	d, _, err := s.Change(ctx, in, func(t *work.Tx) (*pb.Decision, error) {
		d, err := s.find(t, t.Session.ID, in.GetId())
		if err == nil {
			err = s.resubmit(t, d, in)
		}
		return d, err
	})
	if err == nil {
		d, err = s.await(ctx, d, in.GetWait().AsDuration())
	}
	return work.Answer(err, &pb.ResubmitDecisionResponse{Decision: d})
}

// CancelDecision implements pb.DecisionServiceServer.
func (s *Service) CancelDecision(
	ctx context.Context, in *pb.CancelDecisionRequest,
) (*pb.CancelDecisionResponse, error) {
	d, _, err := s.Change(ctx, in, func(t *work.Tx) (*pb.Decision, error) {
		d, err := s.find(t, t.Session.ID, in.GetId())
		switch {
		case err != nil:
			return nil, err
		case d.Opener != t.Actor.Name && !t.Actor.System():
			return nil, errNotYours(d, "only %s, who opened it, and operators may cancel it", d.Opener)
		case d.State == cancelled:
			return d, nil
		case d.State == decided:
			return nil, errClosed(d)
		}
		return d, s.cancel(t, d, in.GetReason(), d.Opener)
	})
	return work.Answer(err, &pb.CancelDecisionResponse{Decision: brief(d)})
}

// GetDecision implements pb.DecisionServiceServer.
func (s *Service) GetDecision(ctx context.Context, in *pb.GetDecisionRequest) (*pb.GetDecisionResponse, error) {
	out, wait := &pb.GetDecisionResponse{}, in.GetWait().AsDuration()
	err := s.AwaitIn(ctx, in.GetId(), wait, func(snap *store.Snapshot, d *pb.Decision) (bool, error) {
		out.Decision, out.Revision = d, snap.Revision()
		return !waits(d), nil
	})
	return work.Answer(err, out)
}

// ListDecisions implements pb.DecisionServiceServer.
func (s *Service) ListDecisions(ctx context.Context, in *pb.ListDecisionsRequest) (*pb.ListDecisionsResponse, error) {
	f := work.Filter[*pb.Decision]{
		States: work.States(in.GetStates()), Opener: in.GetOpener(), Task: in.GetTaskId(), Scope: in.GetScope(),
		Unfinished: in.GetOwedBy() != "",
		Match:      func(d *pb.Decision) bool { return in.GetKind() == 0 || d.Kind == in.GetKind() },
		Complete:   s.addLast,
	}
	l, err := s.List(ctx, in, func(q store.Querier, session directory.Session) (work.Filter[*pb.Decision], error) {
		if in.GetOwedBy() == "" {
			return f, nil
		}
		a, found, err := s.Directory.Find(q, session.ID, in.GetOwedBy())
		if err == nil && !found {
			err = work.UnknownAgent(q, s.Directory, session.ID, in.GetOwedBy())
		}
		owed := f
		owed.Match = func(d *pb.Decision) bool { return f.Match(d) && owedBy(d, a, session) }
		return owed, err
	})
	for _, d := range l.Items {
		if v := last(d); v != nil {
			v.Feedback = nil
		}
	}
	return work.Answer(err, &pb.ListDecisionsResponse{Decisions: l.Items, NextPageToken: l.Next, Revision: l.Revision})
}

// checkNew checks what the options of decision.proto do not say about a decision to open.
func checkNew(c *validate.Check, in *pb.OpenDecisionRequest) {
	checkContent(c, in.GetContent())
	switch {
	case in.GetTo() == nil:
		c.Fail("to", "is empty; name the agent or the role that decides")
	case in.GetRole() != "" && in.GetKind() == shutdown:
		c.Fail("role", "is set; a shutdown is addressed to an agent")
	}
	if in.GetPassToken() && !mayPass(in.GetKind(), in.GetScope()) {
		c.Fail("pass_token", onlyReviewsPass)
	}
	verdicts := in.GetVerdicts()
	if in.GetKind() != custom {
		if len(verdicts) > 0 {
			c.Fail("verdicts", "are set; the kind %s has fixed verdicts", work.Word(in.GetKind()))
		}
		if in.GetMessageType()+in.GetOutcomeType() != "" {
			c.Fail("message_type", "or outcome_type is set; the kind %s has fixed messages", work.Word(in.GetKind()))
		}
		return
	}
	if len(verdicts) == 0 {
		c.Fail("verdicts", "are empty; a custom decision names them")
	}
	for i, verdict := range verdicts {
		if slices.Contains(verdicts[:i], verdict) {
			c.Fail(fmt.Sprintf("verdicts[%d]", i), "%q is there twice", verdict)
		}
	}
}

// checkContent checks the size of a content.
func checkContent(c *validate.Check, in *pb.DecisionContent) {
	total := len(in.GetBody()) + len(in.GetPayload())
	for _, f := range in.GetFiles() {
		total += len(f.GetPath())
	}
	for _, name := range in.GetArtifacts() {
		total += len(name)
	}
	if total > maxContent {
		c.Fail("content", "has %d bytes; at most %d are allowed", total, maxContent)
	}
}

// checkFeedback checks the size of the feedback of a verdict.
func checkFeedback(list []*pb.Feedback) error {
	total := 0
	for _, f := range list {
		total += len(f.GetText()) + len(f.GetFile())
	}
	if total > maxText {
		return fault.Field("feedback", "has %d bytes; at most %d are allowed", total, maxText)
	}
	return nil
}

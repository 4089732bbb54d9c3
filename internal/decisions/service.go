package decisions

import (
	"cmp"
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/store"
	"brokerd/internal/validate"
	"brokerd/internal/work"
)

// Limits.
const (
	maxText        = 64 << 10 // bytes of a body, a payload, a reason, and of all feedback
	maxContent     = 256 << 10
	maxItems       = 1000 // files, artifacts
	maxFeedback    = 200
	maxRemark      = 4 << 10 // bytes of one piece of feedback
	maxVerdicts    = 20
	maxRounds      = 100
	someRounds     = 3
	mostUnfinished = 1000 // per session
	longestWait    = time.Hour
	mostAhead      = 365 * 24 * time.Hour // of times
)

// onlyReviewsPass is the error for a token that another decision is to pass.
const onlyReviewsPass = "is set; only a review with a scope passes a token"

// OpenDecision implements pb.DecisionServiceServer.
func (s *Service) OpenDecision(ctx context.Context, in *pb.OpenDecisionRequest) (*pb.OpenDecisionResponse, error) {
	var c validate.Check
	checkNew(&c, in)
	wait := checkWait(&c, in.GetWait())
	if err := c.Err(); err != nil {
		return nil, err
	}
	if err := s.Admit(ctx); err != nil {
		return nil, err
	}
	d, _, err := s.Change(ctx, in, func(t *work.Tx) (*pb.Decision, error) { return s.open(t, in) })
	if err == nil {
		d, err = s.await(ctx, d, wait)
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
	var c validate.Check
	checkFeedback(&c, in.GetFeedback())
	c.Time("until", in.GetUntil())
	c.Line("id", in.GetId(), validate.MaxID)
	c.Name("verdict", in.GetVerdict())
	c.Text("reason", in.GetReason(), maxText)
	c.Between("round", int64(in.GetRound()), 0, maxRounds*2)
	if err := c.Err(); err != nil {
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
	c.Time("deadline", in.GetDeadline())
	c.Line("id", in.GetId(), validate.MaxID)
	c.Line("title", in.GetTitle(), validate.MaxLine)
	checkContent(&c, in.GetContent())
	wait := checkWait(&c, in.GetWait())
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
		d, err = s.await(ctx, d, wait)
	}
	return work.Answer(err, &pb.ResubmitDecisionResponse{Decision: d})
}

// CancelDecision implements pb.DecisionServiceServer.
func (s *Service) CancelDecision(
	ctx context.Context, in *pb.CancelDecisionRequest,
) (*pb.CancelDecisionResponse, error) {
	var c validate.Check
	c.Line("id", in.GetId(), validate.MaxID)
	c.Line("reason", in.GetReason(), validate.MaxLine)
	if err := c.Err(); err != nil {
		return nil, err
	}
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
	var c validate.Check
	c.Line("id", in.GetId(), validate.MaxID)
	wait := checkWait(&c, in.GetWait())
	if err := c.Err(); err != nil {
		return nil, err
	}
	out := &pb.GetDecisionResponse{}
	err := s.AwaitIn(ctx, in.GetId(), wait, func(snap *store.Snapshot, d *pb.Decision) (bool, error) {
		out.Decision, out.Revision = d, snap.Revision()
		return !waits(d), nil
	})
	return work.Answer(err, out)
}

// ListDecisions implements pb.DecisionServiceServer.
func (s *Service) ListDecisions(ctx context.Context, in *pb.ListDecisionsRequest) (*pb.ListDecisionsResponse, error) {
	var c validate.Check
	c.PageSize("page_size", in.GetPageSize())
	states := work.States(in.GetStates())
	if in.GetKind() != 0 {
		c.Enum("kind", in.GetKind(), "kind of decision")
	}
	c.OptionalName("opener", in.GetOpener())
	c.OptionalName("owed_by", in.GetOwedBy())
	c.Line("task_id", in.GetTaskId(), validate.MaxID)
	c.Line("scope", in.GetScope(), validate.MaxLine)
	if err := c.Err(); err != nil {
		return nil, err
	}
	f := work.Filter[*pb.Decision]{
		States: states, Opener: in.GetOpener(), Task: in.GetTaskId(), Scope: in.GetScope(),
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

func checkWait(c *validate.Check, wait *durationpb.Duration) time.Duration {
	return c.Duration("wait", wait, 0, longestWait, 0)
}

// checkNew checks a decision to open.
func checkNew(c *validate.Check, in *pb.OpenDecisionRequest) {
	checkContent(c, in.GetContent())
	c.Time("deadline", in.GetDeadline())
	c.Enum("kind", in.GetKind(), "kind of decision")
	switch to := in.GetTo().(type) {
	case *pb.OpenDecisionRequest_Agent:
		c.Name("agent", to.Agent)
	case *pb.OpenDecisionRequest_Role:
		c.Name("role", to.Role)
		if in.GetKind() == shutdown {
			c.Fail("role", "is set; a shutdown is addressed to an agent")
		}
	default:
		c.Fail("to", "is empty; name the agent or the role that decides")
	}
	c.Line("title", in.GetTitle(), validate.MaxLine)
	c.Line("scope", in.GetScope(), validate.MaxLine)
	c.Line("task_id", in.GetTaskId(), validate.MaxID)
	c.Line("thread_id", in.GetThreadId(), validate.MaxID)
	c.Between("max_rounds", int64(cmp.Or(in.GetMaxRounds(), someRounds)), 1, maxRounds)
	if in.GetPassToken() && !mayPass(in.GetKind(), in.GetScope()) {
		c.Fail("pass_token", onlyReviewsPass)
	}
	checkCustom(c, in)
}

// checkCustom checks the fields of a custom decision.
func checkCustom(c *validate.Check, in *pb.OpenDecisionRequest) {
	verdicts := in.GetVerdicts()
	if in.GetKind() != custom {
		name := "unknown"
		if _, known := forms[in.GetKind()]; known {
			name = work.Word(in.GetKind())
		}
		if len(verdicts) > 0 {
			c.Fail("verdicts", "are set; the kind %s has fixed verdicts", name)
		}
		if in.GetMessageType()+in.GetOutcomeType() != "" {
			c.Fail("message_type", "or outcome_type is set; the kind %s has fixed messages", name)
		}
		return
	}
	if len(verdicts) == 0 {
		c.Fail("verdicts", "are empty; a custom decision names them")
	}
	c.Count("verdicts", len(verdicts), maxVerdicts)
	for i, verdict := range verdicts[:min(len(verdicts), maxVerdicts)] {
		c.InItem("verdicts", i)
		c.Name("", verdict)
		if slices.Contains(verdicts[:i], verdict) {
			c.Fail("", "%q is there twice", verdict)
		}
	}
	c.In("")
	c.OptionalName("message_type", in.GetMessageType())
	c.OptionalName("outcome_type", in.GetOutcomeType())
}

// checkContent checks the content of a decision.
func checkContent(c *validate.Check, in *pb.DecisionContent) {
	c.Text("content.body", in.GetBody(), maxText)
	c.JSON("content.payload", in.GetPayload(), maxText)
	c.Count("content.files", len(in.GetFiles()), maxItems)
	c.Count("content.artifacts", len(in.GetArtifacts()), maxItems)
	total := len(in.GetBody()) + len(in.GetPayload())
	for i, f := range in.GetFiles() {
		c.InItem("content.files", i)
		if f.GetPath() == "" {
			c.Fail("path", "is empty")
		}
		c.Line("path", f.GetPath(), validate.MaxPath)
		c.Between("line", int64(f.GetLine()), 0, 1<<31-1)
		total += len(f.GetPath())
	}
	for i, name := range in.GetArtifacts() {
		c.InItem("content.artifacts", i)
		c.Line("", name, validate.MaxPath)
		total += len(name)
	}
	c.In("")
	if total > maxContent {
		c.Fail("content", "has %d bytes; at most %d are allowed", total, maxContent)
	}
}

// checkFeedback checks the feedback of a verdict.
func checkFeedback(c *validate.Check, list []*pb.Feedback) {
	c.Count("feedback", len(list), maxFeedback)
	total := 0
	for i, f := range list {
		c.InItem("feedback", i)
		if f.GetText() == "" {
			c.Fail("text", "is empty")
		}
		if f.GetSeverity() != 0 {
			c.Enum("severity", f.GetSeverity(), "severity of feedback")
		}
		c.Text("text", f.GetText(), maxRemark)
		c.Line("file", f.GetFile(), validate.MaxPath)
		c.Between("line", int64(f.GetLine()), 0, 1<<31-1)
		total += len(f.GetText()) + len(f.GetFile())
	}
	c.In("")
	if total > maxText {
		c.Fail("feedback", "has %d bytes; at most %d are allowed", total, maxText)
	}
}

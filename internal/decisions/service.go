package decisions

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/page"
	"brokerd/internal/validate"
)

// Limits of a request.
const (
	maxText     = 64 << 10 // bytes of a body, a payload, a reason, and of all feedback
	maxContent  = 256 << 10
	maxItems    = 1000 // files, artifacts
	maxFeedback = 200
	maxRemark   = 4 << 10 // bytes of one piece of feedback
	maxVerdicts = 20
	maxRounds   = 100
	someRounds  = 3
	mostWait    = time.Hour
)

// decisionList is the name of the list that page tokens belong to.
const decisionList = "ListDecisions"

// Service is the DecisionService of the API.
type Service struct {
	pb.UnimplementedDecisionServiceServer
	table *Table
}

// NewService returns the service of a table.
func NewService(t *Table) *Service { return &Service{table: t} }

// OpenDecision implements pb.DecisionServiceServer.
func (s *Service) OpenDecision(ctx context.Context, in *pb.OpenDecisionRequest) (*pb.OpenDecisionResponse, error) {
	var c validate.Check
	o := openingOf(&c, in)
	wait := waitOf(&c, in.Wait)
	if err := c.Err(); err != nil {
		return nil, err
	}
	req, err := idempotency.Of(ctx, "OpenDecision", in.RequestId, in)
	if err != nil {
		return nil, err
	}
	d, err := s.table.Open(ctx, identity.FromContext(ctx), req, o)
	if err != nil {
		return nil, err
	}
	out, err := s.await(ctx, d, wait)
	return &pb.OpenDecisionResponse{Decision: out}, err
}

// await returns a decision that the call has changed or, with wait, as it is after the wait.
func (s *Service) await(ctx context.Context, d Decision, wait time.Duration) (*pb.Decision, error) {
	if wait > 0 {
		var err error
		if d, _, err = s.table.Get(ctx, identity.FromContext(ctx), d.Name(), wait); err != nil {
			return nil, err
		}
	}
	return decisionProto(&d, wait > 0), nil
}

// Decide implements pb.DecisionServiceServer.
func (s *Service) Decide(ctx context.Context, in *pb.DecideRequest) (*pb.DecideResponse, error) {
	var c validate.Check
	r := Ruling{
		Verdict: in.Verdict, Reason: in.Reason, Feedback: feedbackOf(&c, in.Feedback), Until: c.Time("until", in.Until), Round: int(in.Round),
	}
	c.Line("decision_id", in.DecisionId, validate.MaxID)
	c.Name("verdict", r.Verdict)
	c.Text("reason", r.Reason, maxText)
	c.Between("round", int64(in.Round), 0, maxRounds*2)
	if err := c.Err(); err != nil {
		return nil, err
	}
	req, err := idempotency.Of(ctx, "Decide", in.RequestId, in)
	if err != nil {
		return nil, err
	}
	done, err := s.table.Decide(ctx, identity.FromContext(ctx), req, in.DecisionId, r)
	if err != nil {
		return nil, err
	}
	return &pb.DecideResponse{Decision: decisionProto(&done.Decision, false), TokenPassed: done.Passed}, nil
}

// ResubmitDecision implements pb.DecisionServiceServer.
func (s *Service) ResubmitDecision(ctx context.Context, in *pb.ResubmitDecisionRequest) (*pb.ResubmitDecisionResponse, error) {
	var c validate.Check
	r := Resubmission{Title: in.Title, Deadline: c.Time("deadline", in.Deadline), PassToken: in.PassToken}
	c.Line("decision_id", in.DecisionId, validate.MaxID)
	c.Line("title", r.Title, validate.MaxLine)
	if in.Content != nil {
		content := contentOf(&c, in.Content)
		r.Content = &content
	}
	wait := waitOf(&c, in.Wait)
	if err := c.Err(); err != nil {
		return nil, err
	}
	req, err := idempotency.Of(ctx, "ResubmitDecision", in.RequestId, in)
	if err != nil {
		return nil, err
	}
	d, err := s.table.Resubmit(ctx, identity.FromContext(ctx), req, in.DecisionId, r)
	if err != nil {
		return nil, err
	}
	out, err := s.await(ctx, d, wait)
	return &pb.ResubmitDecisionResponse{Decision: out}, err
}

// CancelDecision implements pb.DecisionServiceServer.
func (s *Service) CancelDecision(ctx context.Context, in *pb.CancelDecisionRequest) (*pb.CancelDecisionResponse, error) {
	var c validate.Check
	c.Line("decision_id", in.DecisionId, validate.MaxID)
	c.Line("reason", in.Reason, validate.MaxLine)
	if err := c.Err(); err != nil {
		return nil, err
	}
	req, err := idempotency.Of(ctx, "CancelDecision", in.RequestId, in)
	if err != nil {
		return nil, err
	}
	d, err := s.table.Cancel(ctx, identity.FromContext(ctx), req, in.DecisionId, in.Reason)
	if err != nil {
		return nil, err
	}
	return &pb.CancelDecisionResponse{Decision: decisionProto(&d, false)}, nil
}

// GetDecision implements pb.DecisionServiceServer.
func (s *Service) GetDecision(ctx context.Context, in *pb.GetDecisionRequest) (*pb.GetDecisionResponse, error) {
	var c validate.Check
	c.Line("decision_id", in.DecisionId, validate.MaxID)
	wait := waitOf(&c, in.Wait)
	if err := c.Err(); err != nil {
		return nil, err
	}
	d, revision, err := s.table.Get(ctx, identity.FromContext(ctx), in.DecisionId, wait)
	if err != nil {
		return nil, err
	}
	return &pb.GetDecisionResponse{Decision: decisionProto(&d, true), Revision: revision}, nil
}

// ListDecisions implements pb.DecisionServiceServer.
func (s *Service) ListDecisions(ctx context.Context, in *pb.ListDecisionsRequest) (*pb.ListDecisionsResponse, error) {
	var c validate.Check
	sel := Selection{
		Kind: Kind(in.Kind), OpenedBy: in.OpenedBy, OwedBy: in.OwedBy, Task: in.TaskId, Scope: in.Scope,
		Limit: c.PageSize("page_size", in.PageSize),
	}
	if in.Kind < 0 || in.Kind > pb.DecisionKind(Custom) {
		c.Fail("kind", "%d is no kind of decision", in.Kind)
	}
	for i, state := range in.States {
		if state <= 0 || state > pb.DecisionState(Cancelled) {
			c.Fail(fmt.Sprintf("states[%d]", i), "%d is no state of a decision", state)
			break
		}
		sel.States = append(sel.States, State(state))
	}
	c.OptionalName("opened_by", sel.OpenedBy)
	c.OptionalName("owed_by", sel.OwedBy)
	c.Line("task_id", sel.Task, validate.MaxID)
	c.Line("scope", sel.Scope, validate.MaxLine)
	if err := c.Err(); err != nil {
		return nil, err
	}
	if err := page.Parse(decisionList, in.PageToken, &sel.Before); err != nil {
		return nil, err
	}
	p, err := s.table.List(ctx, identity.FromContext(ctx), sel)
	if err != nil {
		return nil, err
	}
	out := &pb.ListDecisionsResponse{Revision: p.Revision}
	for i := range p.Decisions {
		out.Decisions = append(out.Decisions, decisionProto(&p.Decisions[i], false))
	}
	if p.Next != 0 {
		out.NextPageToken = page.Token(decisionList, p.Next)
	}
	return out, nil
}

func waitOf(c *validate.Check, wait *durationpb.Duration) time.Duration {
	return c.Duration("wait", wait, 0, mostWait, 0)
}

// openingOf reads and checks a request to open a decision.
func openingOf(c *validate.Check, in *pb.OpenDecisionRequest) Opening {
	o := Opening{
		Kind: Kind(in.Kind), Agent: in.GetAgent(), Role: in.GetRole(), Title: in.Title, Scope: in.Scope, Content: contentOf(c, in.Content),
		Task: in.TaskId, Thread: in.ThreadId, Verdicts: in.Verdicts, Deadline: c.Time("deadline", in.Deadline),
		MaxRounds: int(in.MaxRounds), PassToken: in.PassToken, MessageType: in.MessageType, OutcomeType: in.OutcomeType,
	}
	if o.MaxRounds == 0 {
		o.MaxRounds = someRounds
	}
	if in.Kind <= 0 || in.Kind > pb.DecisionKind(Custom) {
		c.Fail("kind", "%d is no kind of decision", in.Kind)
	}
	switch in.To.(type) {
	case *pb.OpenDecisionRequest_Agent:
		c.Name("agent", o.Agent)
	case *pb.OpenDecisionRequest_Role:
		c.Name("role", o.Role)
		if o.Kind == Shutdown {
			c.Fail("role", "is set; a shutdown is addressed to an agent")
		}
	default:
		c.Fail("to", "is empty; name the agent or the role that decides")
	}
	c.Line("title", o.Title, validate.MaxLine)
	c.Line("scope", o.Scope, validate.MaxLine)
	c.Line("task_id", o.Task, validate.MaxID)
	c.Line("thread_id", o.Thread, validate.MaxID)
	c.Between("max_rounds", int64(o.MaxRounds), 1, maxRounds)
	if o.PassToken && (o.Kind != Review || o.Scope == "") {
		c.Fail("pass_token", onlyReviewsPass)
	}
	customOf(c, &o)
	return o
}

// customOf checks the fields of a custom decision.
func customOf(c *validate.Check, o *Opening) {
	if o.Kind != Custom {
		if len(o.Verdicts) > 0 {
			c.Fail("verdicts", "are set; the kind %s has fixed verdicts", kindName(o.Kind))
		}
		if o.MessageType+o.OutcomeType != "" {
			c.Fail("message_type", "or outcome_type is set; the kind %s has fixed messages", kindName(o.Kind))
		}
		return
	}
	if len(o.Verdicts) == 0 {
		c.Fail("verdicts", "are empty; a custom decision names them")
	}
	c.Count("verdicts", len(o.Verdicts), maxVerdicts)
	for i, verdict := range o.Verdicts[:min(len(o.Verdicts), maxVerdicts)] {
		c.Name(fmt.Sprintf("verdicts[%d]", i), verdict)
		if slices.Contains(o.Verdicts[:i], verdict) {
			c.Fail(fmt.Sprintf("verdicts[%d]", i), "%q is there twice", verdict)
		}
	}
	c.OptionalName("message_type", o.MessageType)
	c.OptionalName("outcome_type", o.OutcomeType)
}

// kindName names a kind that a client has sent.
func kindName(k Kind) string {
	if k < Review || k > Custom {
		return "unknown"
	}
	return k.String()
}

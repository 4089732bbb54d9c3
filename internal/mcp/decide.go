package mcp

import (
	"fmt"
	"regexp"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// outcomeWait is the wait in suggested calls; the call cuts it to what it may take.
const outcomeWait = " --wait 30m"

// decisionIDs are texts that name a decision by its id, not by its scope.
var decisionIDs = regexp.MustCompile(`^(d-)?[0-9]+$`)

// decisionID returns the id of a decision: the given one, or that of the newest decision of a scope.
func (c *call) decisionID(kind pb.DecisionKind) (string, error) {
	ref := c.arg("id")
	if decisionIDs.MatchString(ref) {
		return ref, nil
	}
	page, err := c.api.ListDecisions(c.ctx, &pb.ListDecisionsRequest{Kind: kind, Scope: ref, PageSize: 1})
	if err != nil {
		return "", err
	}
	if len(page.GetDecisions()) == 0 {
		what := prompt.Enum(kind)
		if kind == 0 {
			what = "decision"
		}
		return "", refusef("there is no %s of %s in this session", what, quote(ref))
	}
	return page.GetDecisions()[0].GetId(), nil
}

func (c *call) submitReview() error {
	return c.submit(pb.DecisionKind_DECISION_KIND_REVIEW, c.arg("about"))
}

func (c *call) submitPlan() error {
	return c.submit(pb.DecisionKind_DECISION_KIND_PLAN, c.arg("about"))
}

func (c *call) shutdown() error { return c.submit(pb.DecisionKind_DECISION_KIND_SHUTDOWN, c.arg("to")) }

func (c *call) question() error { return c.submit(pb.DecisionKind_DECISION_KIND_CUSTOM, "") }

// submit opens a decision, or the next round of the agent's own one of the same kind and scope, and waits for the
// verdict. While that one waits for its verdict, submit sends nothing, and refuses other content.
func (c *call) submit(kind pb.DecisionKind, scope string) error {
	r := &pb.OpenDecisionRequest{
		RequestId: c.requestID, Kind: kind, Scope: scope, TaskId: c.arg("task"), Verdicts: c.args["options"],
		Content: &pb.DecisionContent{Body: c.arg("text")}, MaxRounds: 3,
	}
	switch kind {
	case pb.DecisionKind_DECISION_KIND_SHUTDOWN:
		r.Title, r.Content, r.MaxRounds = c.arg("text"), nil, 0
	case pb.DecisionKind_DECISION_KIND_CUSTOM:
		if r.Title = c.arg("about"); r.Title == "" {
			r.Title, r.Content = c.arg("text"), &pb.DecisionContent{}
		}
	}
	if c.has("to") {
		agent, role, err := ParseAgentOrRole(c.arg("to"))
		if err != nil {
			return err
		}
		r.To = &pb.OpenDecisionRequest_Agent{Agent: agent}
		if role != "" {
			r.To = &pb.OpenDecisionRequest_Role{Role: role}
		}
	}
	d, err := c.ownDecision(r)
	if err != nil {
		return err
	}
	switch {
	case d.GetState() == pb.DecisionState_DECISION_STATE_REVISING:
		answer, err := c.api.ResubmitDecision(c.ctx, &pb.ResubmitDecisionRequest{
			RequestId: c.requestID, Id: d.GetId(), Title: r.Title, Content: r.Content,
		})
		if err != nil {
			return err
		}
		d = answer.GetDecision()
	case d == nil && r.To == nil:
		return argumentf("the receiver is missing: give to, an agent or role:NAME that decides")
	case d == nil:
		answer, err := c.api.OpenDecision(c.ctx, r)
		if err != nil {
			return err
		}
		d = answer.GetDecision()
	default:
		if err := c.sameRound(r, d); err != nil {
			return err
		}
	}
	return c.verdict(d)
}

// ownDecision returns the unfinished decision of the kind and scope of a request that the agent opened; nil if there is
// none.
func (c *call) ownDecision(r *pb.OpenDecisionRequest) (*pb.Decision, error) {
	if r.GetScope() == "" {
		return nil, nil
	}
	page, err := c.api.ListDecisions(c.ctx, &pb.ListDecisionsRequest{
		Kind: r.GetKind(), Scope: r.GetScope(), Opener: c.name, PageSize: 1, States: []pb.DecisionState{
			pb.DecisionState_DECISION_STATE_OPEN, pb.DecisionState_DECISION_STATE_REVISING,
			pb.DecisionState_DECISION_STATE_ESCALATED,
		},
	})
	if err != nil || len(page.GetDecisions()) == 0 {
		return nil, err
	}
	return page.GetDecisions()[0], nil
}

// sameRound reports that the round of a decision is open, and refuses a submission that differs from it. An absent
// title or content does not differ.
func (c *call) sameRound(r *pb.OpenDecisionRequest, d *pb.Decision) error {
	answer, err := c.api.GetDecision(c.ctx, &pb.GetDecisionRequest{Id: d.GetId()})
	if err != nil {
		return err
	}
	d = answer.GetDecision()
	differs := r.GetTitle() != "" && r.GetTitle() != d.GetTitle() || r.GetAgent() != "" && r.GetAgent() != d.GetAgent() ||
		r.GetRole() != "" && r.GetRole() != d.GetRole() ||
		r.GetContent().GetBody() != "" && !proto.Equal(r.GetContent(), d.GetContent())
	open := fmt.Sprintf("round %d of %s is open, and its receiver and content are unchanged", d.GetRound(), d.GetId())
	if differs {
		return refusef("%s: wait for the verdict (%s), or cancel it (%s) and submit again", open,
			toolCall("decision get "+d.GetId()+outcomeWait), toolCall("decision cancel "+d.GetId()))
	}
	return c.say("warning: %s", open)
}

// verdict shows a decision, after the wait of the call for a verdict.
func (c *call) verdict(d *pb.Decision) error {
	wait := c.wait()
	if wait == 0 {
		c.voice.Decision(c.w, d)
		return nil
	}
	decided, err := c.await(wait, func(left *durationpb.Duration) (bool, error) {
		answer, err := c.api.GetDecision(c.ctx, &pb.GetDecisionRequest{Id: d.GetId(), Wait: left})
		if err == nil {
			d = answer.GetDecision()
		}
		open := d.GetState() == pb.DecisionState_DECISION_STATE_OPEN || d.GetState() == pb.DecisionState_DECISION_STATE_ESCALATED
		return !open, err
	})
	if err != nil {
		return err
	}
	if !decided {
		return nothingf("no verdict on %s within %s; to wait on: %s", d.GetId(), prompt.Duration(wait),
			toolCall("decision get "+d.GetId()+outcomeWait))
	}
	c.voice.Decision(c.w, d)
	return nil
}

func (c *call) decide() error { return c.rule(0) }

func (c *call) decideReview() error { return c.rule(pb.DecisionKind_DECISION_KIND_REVIEW) }

func (c *call) decidePlan() error { return c.rule(pb.DecisionKind_DECISION_KIND_PLAN) }

// rule gives a verdict.
func (c *call) rule(kind pb.DecisionKind) error {
	id, err := c.decisionID(kind)
	if err != nil {
		return err
	}
	answer, err := c.api.Decide(c.ctx, &pb.DecideRequest{
		RequestId: c.requestID, Id: id, Verdict: c.arg("answer"), Reason: c.arg("text"),
	})
	if err != nil {
		return err
	}
	c.voice.Decision(c.w, answer.GetDecision())
	return nil
}

// deferDecision puts a decision off; wait is for how long.
func (c *call) deferDecision() error {
	id, err := c.decisionID(0)
	if err != nil {
		return err
	}
	wait, err := time.ParseDuration(c.arg("wait"))
	if err != nil || wait <= 0 {
		return argumentf("wait must be a number of seconds, not %s", quote(c.arg("wait")))
	}
	answer, err := c.api.Decide(c.ctx, &pb.DecideRequest{
		RequestId: c.requestID, Id: id, Verdict: "defer", Until: timestamppb.New(c.server.Clock.Now().Add(wait)),
	})
	if err != nil {
		return err
	}
	c.voice.Decision(c.w, answer.GetDecision())
	return nil
}

func (c *call) cancelDecision() error {
	answer, err := c.api.CancelDecision(c.ctx, &pb.CancelDecisionRequest{
		RequestId: c.requestID, Id: c.arg("id"),
	})
	if err != nil {
		return err
	}
	c.voice.Decision(c.w, answer.GetDecision())
	return nil
}

func (c *call) resubmit() error {
	request := &pb.ResubmitDecisionRequest{RequestId: c.requestID, Id: c.arg("id")}
	if c.has("text") {
		request.Content = &pb.DecisionContent{Body: c.arg("text")}
	}
	answer, err := c.api.ResubmitDecision(c.ctx, request)
	if err != nil {
		return err
	}
	c.voice.Decision(c.w, answer.GetDecision())
	return nil
}

func (c *call) showDecision() error { return c.show(0) }

func (c *call) showReview() error { return c.show(pb.DecisionKind_DECISION_KIND_REVIEW) }

func (c *call) showPlan() error { return c.show(pb.DecisionKind_DECISION_KIND_PLAN) }

// show shows a decision with its content and all verdicts, or waits for one.
func (c *call) show(kind pb.DecisionKind) error {
	id, err := c.decisionID(kind)
	if err != nil {
		return err
	}
	answer, err := c.api.GetDecision(c.ctx, &pb.GetDecisionRequest{Id: id})
	if err != nil {
		return err
	}
	d := answer.GetDecision()
	if c.wait() > 0 {
		return c.verdict(d)
	}
	fmt.Fprintln(c.w, prompt.OneLine(prompt.DecisionLine(d)))
	c.details(d, "content", "rounds")
	c.details(d.GetContent())
	for _, v := range d.GetRounds() {
		fmt.Fprintf(c.w, "round %d: %s by %s, %s: %s\n",
			v.GetRound(), prompt.Clean(v.GetVerdict()), prompt.Clean(v.GetDecidedBy()),
			c.voice.When(v.GetDecidedAt()), prompt.Clean(v.GetReason()))
		c.voice.Feedback(c.w, v)
	}
	c.voice.AfterDecision(c.w, d)
	return nil
}
